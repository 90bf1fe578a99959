"""What a page shows of a target that is not like the source."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from candapt.data.domains import Side
from candapt.report.run_data import Prediction, Run, read_run
from candapt.report.run_page import run_page
from candapt.report.targets import GROUPS, MEMBERS, target_parts
from candapt.report.thumbnails import thumbnails_of

SHARES = {"source": 0.5, "target": 0.9, "low": 0.85, "high": 0.95}


@pytest.fixture
def run() -> Run:
    names = [f"{number}.png" for number in range(60)]
    summary: dict[str, Any] = {
        "method": "can",
        "proportions": {"differ": True, "classes": {"a": SHARES, "b": {**SHARES, "target": 0.1}}},
        "unknown": {"share": 0.43, "groups": [names[:20], names[20:24]]},
        "auto": {"kept": "can", "methods": {"mcc": _evidence(0.7), "can": _evidence(0.8)}},
    }
    predictions = tuple(Prediction(name, "a", 0.5) for name in names)
    config = {"source": "a.npz", "target": "b.npz"}
    return Run(Path("run"), config, summary, [], ("a", "b"), (4,), predictions, None)


def _evidence(estimate: float) -> dict[str, Any]:
    return {"estimated_accuracy": estimate, "seconds": 12.3, "warnings": []}


def test_every_part(run: Run) -> None:
    parts = target_parts(run, thumbnails_of(run))
    assert parts.proportions is not None
    assert parts.proportions.rows[0] == ("a", "50.0%", "90.0%", "85.0% to 95.0%")
    assert parts.methods is not None
    assert parts.methods.rows == [("MCC", "70.0%", "12 s", ""), ("CAN", "80.0%", "12 s", "kept")]
    assert parts.methods.strong == {(1, 1)}
    assert parts.unknown_share == pytest.approx(0.43)
    assert [group.sentence for group in parts.groups] == [
        "20 samples resemble each other and none of your classes.",
        "4 samples resemble each other and none of your classes.",
    ]
    assert [len(group.samples) for group in parts.groups] == [MEMBERS, 4]


def test_a_run_without_them_has_none(run: Run) -> None:
    parts = target_parts(replace(run, summary={"method": "can"}), thumbnails_of(run))
    assert parts.proportions is None
    assert parts.methods is None
    assert not parts.groups


def test_few_groups_are_shown_and_only_of_samples_that_there_are(run: Run) -> None:
    groups = [[f"{number}.png"] for number in range(30)] + [["no such.png"]]
    some = target_parts(replace(run, summary={"unknown": {"share": 1, "groups": groups}}), thumbnails_of(run))
    assert len(some.groups) == GROUPS
    none = target_parts(
        replace(run, summary={"unknown": {"groups": groups[-1:]}}), {Side.TARGET: thumbnails_of(run)[Side.TARGET]}
    )
    assert not none.groups


def test_where_the_page_shows_them(run: Run, image_run: Path) -> None:
    """Unknown objects are to be checked by hand, proportions stand with the classes, and methods on top, unfolded."""
    whole = read_run(image_run)
    summary = {**run.summary, "unknown": {"share": 0.43, "groups": [[each.name for each in whole.predictions[:5]]]}}
    text = run_page(replace(whole, summary=whole.summary | summary))
    places = [text.index(each) for each in ('id="next"', "Methods that were tried")]
    places += [
        text.index(each) for each in ('id="check"', "Suspected unknown objects", "5 samples resemble", 'id="map"')
    ]
    places += [text.index(each) for each in ('id="classes"', "estimated without its labels", 'id="gallery"')]
    assert places == sorted(places)
