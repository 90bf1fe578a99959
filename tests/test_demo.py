"""The demonstration, shortened, and that CAN learns digits."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from candapt.adaptation import adapt
from candapt.benchmark.suites import SUITES
from candapt.commands import demo
from candapt.commands.main import main
from candapt.data import digits
from candapt.data.digits import enlarge, handwritten_digits, rendered_digits
from candapt.data.domains import Domain, Task
from candapt.data.features import array_samples, labeled_arrays
from candapt.presets import make_settings
from tests.predictions import without_confidence


@pytest.fixture(scope="class")
def short() -> Iterator[None]:
    """The demonstration with few digits and next to no training."""
    x, y = handwritten_digits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SUITES, "demo", replace(SUITES["demo"], changes={"rounds": 2, "training.steps": 2}))
        patch.setattr(digits, "RENDERED", 80)
        for module in (demo, digits):
            patch.setattr(module, "handwritten_digits", lambda: (x[:60], y[:60]))
        yield


@dataclass(frozen=True)
class Finished:
    """What a demonstration has left, and what it has printed."""

    folder: Path
    printed: str


@pytest.fixture(scope="class")
def finished(short: None, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A short demonstration with seed 3. Tests do not write there."""
    out, printed = tmp_path_factory.mktemp("demos") / "demo", io.StringIO()
    with redirect_stdout(printed):
        assert main(["demo", "--out", str(out), "--seed", "3"]) == 0
    return Finished(out, printed.getvalue())


@pytest.mark.usefixtures("short")
class TestShort:
    def test_what_it_leaves(self, finished: Finished) -> None:
        out = finished.folder
        summary = json.loads((out / "summary.json").read_text())
        assert list(summary) == ["source-only", "can"]
        for method, row in summary.items():
            assert {"accuracy", "seconds", "rounds"} <= row.keys()
            assert 0 <= row["accuracy"] <= 1
            run = json.loads((out / method / "summary.json").read_text())
            assert (run["method"], run["seed"]) == (method, 3)
            assert "oracle" not in run  # the labels serve the final table alone
            assert (out / method / "predictions.csv").read_text().count("\n") == 61
        for method, row in summary.items():
            assert method in finished.printed
            assert f"{row['accuracy']:.1%}" in finished.printed
        assert str(out / "can") in finished.printed

    def test_its_data_serve_every_command(self, finished: Finished, tmp_path: Path) -> None:
        out = finished.folder
        with np.load(out / "data" / "handwritten.npz") as target:
            assert target.files == ["x"]  # the target has no labels to read
        words = ["predict", str(out / "can"), str(out / "data" / "handwritten.npz"), "--out", str(tmp_path / "a.csv")]
        assert main(words) == 0
        assert without_confidence(tmp_path / "a.csv") == without_confidence(out / "can" / "predictions.csv")
        assert main(["evaluate", str(out / "can"), str(out / "data" / "rendered.npz")]) == 0

    def test_the_same_seed_gives_the_same_predictions(self, finished: Finished, tmp_path: Path) -> None:
        for name, seed in (("b", 3), ("c", 4)):
            assert main(["demo", "--out", str(tmp_path / name), "--seed", str(seed)]) == 0
        for method in ("source-only", "can"):
            first, again, other = (
                (folder / method / "predictions.csv").read_bytes()
                for folder in (finished.folder, tmp_path / "b", tmp_path / "c")
            )
            assert first == again
            assert first != other


def test_images_are_enlarged_to_values_from_zero_to_one() -> None:
    x, _ = handwritten_digits()
    large = enlarge(x[:20])
    assert large.shape == (20, digits.SIDE, digits.SIDE)
    assert large.dtype == np.float32
    assert 0 <= large.min() < large.max() <= 1


def test_can_beats_source_only_on_digits() -> None:
    """A sixth of the demonstration's work; the gap is smaller than there, but clear."""
    (source_x, source_y), (target_x, target_y) = rendered_digits(500, 0), handwritten_digits()
    target = Domain(array_samples(enlarge(target_x[:600])))
    task = Task(labeled_arrays(enlarge(source_x), source_y, where="the digits"), target)
    changes = {
        "rounds": 7,
        "training.steps": 20,
        "training.learning_rate": 0.003,
        "training.statistics": "domain",
        "training.accelerator": "cpu",
    }
    own = {"source-only": {}, "can": {"can.samples": 4, "can.warmup": 2}}
    accuracy = {
        method: float(
            np.mean(
                adapt(task, make_settings(method, changes=changes | more)).predictions.labels.numpy() == target_y[:600]
            )
        )
        for method, more in own.items()
    }
    assert accuracy["can"] > 0.82
    assert accuracy["can"] > accuracy["source-only"] + 0.05


@pytest.mark.slow
def test_the_bars_of_the_demonstration(tmp_path: Path) -> None:
    """Three seeds: at least 90 % on average, 20 points above source-only (the time is in the benchmark)."""
    rows = []
    for seed in range(3):
        assert main(["demo", "--out", str(tmp_path / str(seed)), "--seed", str(seed)]) == 0
        rows.append(json.loads((tmp_path / str(seed) / "summary.json").read_text()))
    accuracy = {method: np.mean([row[method]["accuracy"] for row in rows]) for method in ("source-only", "can")}
    assert accuracy["can"] >= 0.9
    assert accuracy["can"] >= accuracy["source-only"] + 0.2
