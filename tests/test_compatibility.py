"""What version 0.1 wrote is still read: `tests/fixtures/version_0_1/make.py` tells how the files there were made."""

import csv
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import dropout

import candapt
from candapt.commands.main import main
from tests.fixtures.version_0_1.make import FAST, METHODS, PLACEHOLDER, SMALL

FIXTURES = Path(__file__).parent / "fixtures" / "version_0_1"
FINISHED = ("finished", *(f"finished-{method}" for method in METHODS))
INTERRUPTED = ("interrupted", "interrupted-selecting")
TOLERANCE = 1e-5
"""Processors differ in the last digits; files hold six decimal places."""


def run(*words: object) -> None:
    """A command that must work."""
    assert main([str(word) for word in words]) == 0


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command says that must be refused in one sentence."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("candapt: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    return printed.err


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder: when it was written, and its content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def trials(path: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads(path.read_text())["trials"]
    return content


def assert_same_predictions(made: Path, expected: Path) -> None:
    """The same classes and clusters, and the same numbers up to rounding.

    A cluster reaches as far as the outermost sample that it keeps; rounding may put that very one on either side.
    """
    new, stored = rows(made), rows(expected)
    assert new[0].keys() >= stored[0].keys()
    for name in ("path", "label", "cluster_label"):
        assert [row[name] for row in new] == [row[name] for row in stored]
    for name, before in (("softmax", "confidence"), ("cluster_distance", "cluster_distance")):  # 0.1 called it so
        values = [float(row[name]) for row in new]
        assert values == pytest.approx([float(row[before]) for row in stored], abs=TOLERANCE, rel=0)
    reach: dict[str, float] = {}
    for row in stored:
        if row["kept"] == "1":
            reach[row["cluster_label"]] = max(reach.get(row["cluster_label"], 0), float(row["cluster_distance"]))
    for row, other in zip(new, stored, strict=True):
        edge = reach.get(other["cluster_label"], 0)
        assert row["kept"] == other["kept"] or abs(float(other["cluster_distance"]) - edge) <= TOLERANCE


@pytest.fixture(autouse=True)
def _old_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout draws other numbers since 0.1; with the draws of that time, trainings give what they gave then."""
    monkeypatch.setattr("candapt.network.dropout.drop_out", partial(dropout, training=True))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of all that version 0.1 wrote, as if it had written it there."""
    folder = tmp_path / "stored"
    shutil.copytree(FIXTURES, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for path in folder.rglob("*"):
        if path.suffix in (".yaml", ".json", ".txt"):
            path.write_bytes(path.read_bytes().replace(f"{PLACEHOLDER}/".encode(), f"{folder}/".encode()))
    return folder


@pytest.mark.parametrize("name", FINISHED)
class TestFinished:
    """Runs that came to their end, each of a method whose settings were others."""

    def test_the_model_loads_and_predicts_as_the_run_did(self, stored: Path, name: str) -> None:
        assert candapt.load(stored / name).classes == ("0", "1", "2", "3")
        run("predict", stored / name, stored / "target.npz", "--out", stored / "again.csv")
        assert_same_predictions(stored / "again.csv", stored / name / "predictions.csv")

    def test_the_configuration_makes_the_run_again(self, stored: Path, name: str, tmp_path: Path) -> None:
        run("adapt", "--config", stored / name / "config.yaml", "--out", tmp_path / "again", "--report", False)
        assert_same_predictions(tmp_path / "again" / "predictions.csv", stored / name / "predictions.csv")


class TestReport:
    def test_the_page_of_a_run_is_made(self, stored: Path) -> None:
        before = snapshot(stored / "finished")
        run("report", stored / "finished")
        after = snapshot(stored / "finished")
        assert b"</html>" in after.pop("report.html")[1]
        assert b"library_name: candapt" in after.pop("README.md")[1]
        assert after == before

    def test_a_complete_run_is_left_alone(self, stored: Path) -> None:
        before = snapshot(stored / "finished")
        run("adapt", "--out", stored / "finished", "--resume", "--force")
        assert snapshot(stored / "finished") == before


@pytest.mark.parametrize("name", INTERRUPTED)
class TestInterrupted:
    """Runs that were stopped in their second round; the second one has to keep the first round, by a score."""

    def test_other_code_is_refused(self, stored: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        before = snapshot(stored / name)
        assert "give --force" in refusal(capsys, "adapt", "--out", stored / name, "--resume")
        assert snapshot(stored / name) == before

    def test_forced_it_goes_on_from_the_checkpoint(self, stored: Path, name: str) -> None:
        before = (stored / name / "metrics.jsonl").read_text().splitlines()
        assert len(before) == 1
        run("adapt", "--out", stored / name, "--resume", "--force")
        after = (stored / name / "metrics.jsonl").read_text().splitlines()
        assert len(after) == 2
        assert after[0] == before[0]  # made again, it would tell another time
        assert_same_predictions(stored / name / "predictions.csv", stored / f"{name}-expected.csv")
        selection = json.loads((stored / name / "summary.json").read_text())["selection"]
        assert selection["round"] == (0 if name == "interrupted-selecting" else 1)


class TestTuning:
    """A search with three of four trials."""

    def words(self, stored: Path) -> list[object]:
        paths = [stored / "source.npz", stored / "target.npz", "--out", stored / "tuning"]
        parts = ["--can.labels", "clusters", "--can.selection", "distance", "--can.confusion", 0]  # as in 0.1
        words = ["tune", *paths, *SMALL, "--network.heads", 1, *parts]
        return [*words, "--score", "information", "--trials", 4, "--resume"]

    def test_other_code_is_refused(self, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = snapshot(stored / "tuning")
        assert "give --force" in refusal(capsys, *self.words(stored))
        assert snapshot(stored / "tuning") == before

    def test_forced_it_goes_on_with_the_trial_that_is_missing(self, stored: Path) -> None:
        before = trials(stored / "tuning" / "trials.json")
        assert len(before) == 3
        run(*self.words(stored), "--force")
        after = trials(stored / "tuning" / "trials.json")
        assert after[:3] == before
        (made,), expected = after[3:], trials(stored / "tuning-expected.json")[3]
        assert made["settings"] == pytest.approx(expected["settings"])
        assert made["scores"] == pytest.approx(expected["scores"], abs=TOLERANCE, rel=0)
        assert made["score"] == pytest.approx(expected["score"], abs=TOLERANCE, rel=0)
        assert (made["state"], made["round"]) == (expected["state"], expected["round"])

    def test_the_configuration_of_the_best_trial_is_read(self, stored: Path, tmp_path: Path) -> None:
        """Adapting with it is that very trial."""
        run("adapt", "--config", stored / "tuning" / "config.yaml", "--out", tmp_path / "run", "--report", False)
        rounds = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        best = max(trials(stored / "tuning" / "trials.json"), key=lambda trial: trial["score"])
        scores = [record["score_information"] for record in rounds]
        assert scores == pytest.approx(best["scores"], abs=TOLERANCE, rel=0)


class TestBenchmark:
    def test_stored_cells_are_not_run_again(self, stored: Path) -> None:
        out, before = stored / "benchmark", snapshot(stored / "benchmark" / "cells")
        assert len(before) == 3
        figures = self.figures(out)
        words = ["--data", stored / "office31.npz", "--methods", "can,can-no-ao,source-only", "--seeds", 0]
        run("benchmark", "office31", *words, "--tasks", "A->W", *SMALL, *FAST, "--out", out)
        assert snapshot(out / "cells") == before
        assert self.figures(out) == figures
        for name in ("results.md", "results.tex", "report.html"):
            assert (out / name).stat().st_size > 0

    def figures(self, out: Path) -> dict[str, Any]:
        """The accuracies after the last round, by row."""
        table = json.loads((out / "results.json").read_text())["rows"]
        return {row["name"]: row["last"] for row in table}


class TestRetired:
    def test_a_score_that_is_gone_is_named_with_its_successor(
        self, stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        message = refusal(capsys, "adapt", "--config", stored / "config-entropy.yaml", "--out", tmp_path / "run")
        assert "entropy" in message
        assert "information" in message.replace("neighbor_information", "")
        assert not (tmp_path / "run").exists()
