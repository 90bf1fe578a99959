"""A method, a score and a kind of input that are added from outside the package work in every command."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from candapt.commands.main import main
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.features import labeled_arrays
from candapt.data.inputs import READERS, Reader, Reading
from candapt.evaluation.scores import SCORES, Evidence, score
from candapt.methods import METHODS, Method
from candapt.methods.base import Batch, Losses, Phase
from candapt.settings import Range, setting
from tests.predictions import without_confidence
from tests.toy import QUICK, Toy, make_toy

FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True)
class MySettings:
    """Settings of the method from outside."""

    weight: float = setting(1.0, low=0, search=Range(0.1, 10, log=True))
    """Weight of the distance between the domains' mean features."""


class MyMethod(Method):
    """Pull the mean features of both domains together."""

    title = "Mean Matching"
    reference = "Nobody, 2024"
    Settings = MySettings
    settings: MySettings

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, plus the squared distance of the means."""
        source, target = self.both(batch)
        distance = (source.features.mean(0) - target.features.mean(0)).square().sum()
        return {
            "classification": F.cross_entropy(source.logits, batch["source"].labels),
            "distance": self.settings.weight * distance,
        }


@pytest.fixture
def my_method(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a method from outside."""
    monkeypatch.setitem(METHODS, "my-method", MyMethod)
    return "my-method"


@pytest.fixture
def my_score() -> Iterator[str]:
    """The name of a score from outside."""

    @score("my_score", "My own score", "share of the most predicted class", higher_is_better=False, is_share=True)
    def largest_share(evidence: Evidence) -> float:
        return float(evidence.predicted.bincount(minlength=evidence.classes).max() / len(evidence.predicted))

    yield "my_score"
    del SCORES["my_score"]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _features(rows: list[dict[str, str]]) -> torch.Tensor:
    return torch.tensor([[float(value) for name, value in row.items() if name != "label"] for row in rows])


def _read_table(path: Path, reading: Reading) -> tuple[Domain, None]:
    return Domain(_features(_rows(path)).numpy()), None


def _read_labeled_table(path: Path, reading: Reading) -> tuple[LabeledDomain, None]:
    rows = _rows(path)
    labels = np.array([int(row["label"]) for row in rows])
    return labeled_arrays(_features(rows).numpy(), labels, where=str(path)), None


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, toy: Toy, tmp_path: Path) -> Path:
    """A folder with the toy task as CSV files, a kind of input from outside."""
    reader = Reader(
        ".csv table of numbers",
        ".csv table of numbers with a column label",
        lambda path: path.suffix == ".csv",
        _read_table,
        _read_labeled_table,
    )
    monkeypatch.setitem(READERS, "table", reader)
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, x, y in (("source", toy.source_x, toy.source_y), ("target", toy.target_x, None)):
        columns = [f"x{column}" for column in range(x.shape[1])]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(columns if y is None else [*columns, "label"])
            rows.writerows([*map(repr, map(float, row))] + ([] if y is None else [y[at]]) for at, row in enumerate(x))
    return folder


def candapt(*words: object) -> None:
    """Run a command that must work."""
    assert main([str(word) for word in words]) == 0


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The help of a command on one line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return " ".join(re.sub(r"-\n\s*", "-", capsys.readouterr().out).split())


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rounds of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def trials(out: Path) -> list[dict[str, Any]]:
    """The trials of a search."""
    return list(json.loads((out / "trials.json").read_text())["trials"])


class TestMethod:
    def test_help(self, my_method: str, capsys: pytest.CaptureFixture[str]) -> None:
        shown = help_of(capsys, "adapt", "--method", my_method)
        assert (
            "--my-method.weight NUMBER Weight of the distance between the domains' mean features. (default: 1.0)"
            in (shown)
        )
        assert "mcc, my-method, or auto" in shown
        assert "--can.weight" not in shown
        assert "my-method.weight" not in help_of(capsys, "adapt")

    def test_adapt_predict_and_report(self, my_method: str, files: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        paths = (files / "source.npz", files / "target.npz")
        candapt("adapt", *paths, "--method", my_method, "--my-method.weight", 0.5, "--out", run, *FLAGS)
        assert [record["round"] for record in metrics(run)] == [0, 1]
        assert all(record["distance"] >= 0 for record in metrics(run))
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert (config["method"], config["my-method"]) == ("my-method", {"weight": 0.5})
        page = (run / "report.html").read_text(encoding="utf-8")
        assert "Mean Matching assigned each of 120 target samples to one of 4 classes." in page
        candapt("predict", run, files / "target.npz", "--out", tmp_path / "again.csv")
        assert without_confidence(tmp_path / "again.csv") == without_confidence(run / "predictions.csv")
        candapt("adapt", "--config", run / "config.yaml", "--out", tmp_path / "repeated", "--report", "false")
        assert (tmp_path / "repeated/predictions.csv").read_bytes() == (run / "predictions.csv").read_bytes()

    def test_its_limits_are_checked(
        self, my_method: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [str(files / "source.npz"), str(files / "target.npz"), "--out", str(tmp_path / "run")]
        assert main(["adapt", *paths, "--method", my_method, "--my-method.weight", "-1"]) == 2
        assert capsys.readouterr().err == "candapt: my-method.weight is -1.0, but must be at least 0.\n"
        assert main(["adapt", *paths, "--my-method.weight", "1"]) == 2
        assert "--my-method.weight is a setting of my-method, but the method is can" in capsys.readouterr().err

    def test_benchmark(self, my_method: str, tmp_path: Path) -> None:
        toy = make_toy(samples=10)
        np.savez(
            tmp_path / "features.npz",
            amazon_x=toy.source_x,
            amazon_y=toy.source_y,
            webcam_x=toy.target_x,
            webcam_y=toy.target_y,
            classes=np.array(["bike", "lamp", "mug", "pen"]),
        )
        words = ("--data", tmp_path / "features.npz", "--tasks", "A->W", "--seeds", 0, "--out", tmp_path / "out")
        candapt(
            "benchmark", "office31", *words, "--methods", f"{my_method},source-only", "--my-method.weight", 2, *FLAGS
        )
        results = json.loads((tmp_path / "out/results.json").read_text())
        assert [row["name"] for row in results["rows"]] == ["source-only", "my-method"]
        assert results["rows"][1]["settings"]["my-method"] == {"weight": 2.0}
        assert "| my-method |" in (tmp_path / "out/results.md").read_text(encoding="utf-8")

    def test_tune(self, my_method: str, files: Path, tmp_path: Path) -> None:
        paths = (files / "source.npz", files / "target.npz")
        candapt("tune", *paths, "--method", my_method, "--trials", 2, "--out", tmp_path / "out", *FLAGS)
        first, second = trials(tmp_path / "out")
        assert list(first["settings"]) == ["my-method.weight", "training.learning_rate"]
        assert first["settings"]["my-method.weight"] == 1.0
        assert 0.1 <= second["settings"]["my-method.weight"] <= 10
        best = max((first, second), key=lambda trial: trial["score"])
        config = yaml.safe_load((tmp_path / "out/config.yaml").read_text())
        assert config["my-method"]["weight"] == best["settings"]["my-method.weight"]


class TestScore:
    def test_help(self, my_score: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert re.search(r"--select TEXT Round to keep: [^.]*\bmy_score\b", help_of(capsys, "adapt"))
        assert re.search(r"--score TEXT [^.]*\bmy_score\b", help_of(capsys, "tune"))
        assert re.search(r"--select TEXT Round to keep: [^.]*\bmy_score\b", help_of(capsys, "benchmark"))

    def test_it_is_recorded_chosen_by_and_shown(self, my_score: str, files: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        paths = (files / "source.npz", files / "target.npz")
        candapt("adapt", *paths, "--select", my_score, "--out", run, *FLAGS, "--rounds", 4, "--training.settled", 0)
        values = [record["score_my_score"] for record in metrics(run) if not record["warmup"]]
        assert values
        selection = json.loads((run / "summary.json").read_text())["selection"]
        assert (selection["score"], selection["value"]) == ("my_score", min(values))
        assert metrics(run)[selection["round"]]["score_my_score"] == min(values)
        page = (run / "report.html").read_text(encoding="utf-8")
        assert "My own score" in page
        assert "Share of the most predicted class; lower is better." in page
        assert "the best one by the label-free score my score" in page

    def test_tune(self, my_score: str, files: Path, tmp_path: Path) -> None:
        paths = (files / "source.npz", files / "target.npz")
        candapt("tune", *paths, "--score", my_score, "--trials", 2, "--out", tmp_path / "out", *FLAGS)
        best = min(trials(tmp_path / "out"), key=lambda trial: trial["score"])
        comment = (tmp_path / "out/config.yaml").read_text().splitlines()[0]
        assert f"Trial {best['number']}, the best of 2 by my_score." in comment


class TestInput:
    def test_help(self, tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("adapt", "tune"):
            shown = help_of(capsys, command)
            assert re.search(r"SOURCE Labeled source: [^:]*\.csv table of numbers with a column label", shown)
            assert re.search(r"TARGET Unlabeled target: [^:]*\.csv table of numbers[ ,]", shown)

    def test_adapt(self, tables: Path, files: Path, tmp_path: Path) -> None:
        candapt("adapt", tables / "source.csv", tables / "target.csv", "--out", tmp_path / "run", *FLAGS)
        candapt("adapt", files / "source.npz", files / "target.npz", "--out", tmp_path / "same", *FLAGS)
        assert (tmp_path / "run/report.html").exists()
        written = [(tmp_path / name / "predictions.csv").read_bytes() for name in ("run", "same")]
        assert written[0] == written[1]

    def test_a_changed_table_is_noticed(self, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = [
            "tune",
            *map(str, (tables / "source.csv", tables / "target.csv")),
            "--out",
            str(tmp_path / "out"),
            *FLAGS,
        ]
        assert main([*words, "--trials", "1"]) == 0
        (tables / "target.csv").write_text((tables / "target.csv").read_text().rsplit("\n", 2)[0] + "\n")
        assert main([*words, "--trials", "2", "--resume"]) == 2
        assert "the data of the target changed" in capsys.readouterr().err

    def test_tune(self, tables: Path, files: Path, tmp_path: Path) -> None:
        words = ("--trials", 2, *FLAGS)
        candapt("tune", tables / "source.csv", tables / "target.csv", "--out", tmp_path / "out", *words)
        candapt("tune", files / "source.npz", files / "target.npz", "--out", tmp_path / "same", *words)
        scores = [[trial["score"] for trial in trials(tmp_path / name)] for name in ("out", "same")]
        assert scores[0] == scores[1]
