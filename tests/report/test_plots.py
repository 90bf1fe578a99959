"""The charts are what Plotly draws: its own package, which checks every property, takes them as they are."""

from typing import Any

import plotly.graph_objects as go
import pytest

from candapt.report import plots
from candapt.report.plots import Curve

LINES = [Curve(f"<b>{name}", range(12), [0.1 * name, None, float("nan"), *[0.2 * name] * 9]) for name in range(9)]
BINS = [{"confidence": 0.3, "accuracy": 0.2, "count": 10}, {"confidence": 0.8, "accuracy": 0.9, "count": 20}]
FIGURES = {
    "curves": plots.curves(LINES, percent=True, level=("level", 0.5), kept=3),
    "counts": plots.curves([Curve("kept", [0, 1], [1, 2])], kept=0),
    "no curves": plots.curves([]),
    "points": plots.points([(1.0, 2.0), (3.0, 4.0)], [0, 1]),
    "bars": plots.bars(["cat", "<dog>"], {"source": [0.1, None], "target": [0.3, 0.2]}),
    "matrix": plots.matrix(["cat", "<dog>"], [[1, 2], [0, 0]]),
    "reliability": plots.reliability(BINS, height=300),
}


def as_lists(value: Any) -> Any:
    """Without the tuples that the package makes of some lists."""
    if isinstance(value, dict):
        return {name: as_lists(each) for name, each in value.items()}
    return [as_lists(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES.keys())
def test_plotly_takes_them_as_they_are(figure: plots.Figure) -> None:
    checked = go.Figure(figure, skip_invalid=False)
    checked.update_layout(template=None)
    drawn = checked.to_plotly_json()
    assert as_lists(drawn["data"]) == as_lists(figure["data"])
    drawn["layout"].pop("template", None)
    assert as_lists(drawn["layout"]) == as_lists(figure["layout"])


def test_a_level_and_the_kept_round_are_lines_across_the_chart() -> None:
    shapes = FIGURES["curves"]["layout"]["shapes"]
    assert [(each["x0"], each["x1"], each["xref"]) for each in shapes] == [(0, 1, "x domain"), (4, 4, "x")]
    assert [(each["y0"], each["y1"], each["yref"]) for each in shapes] == [(0.5, 0.5, "y"), (0, 1, "y domain")]
