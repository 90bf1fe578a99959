"""`candapt review`: the whole command, with and without its page."""

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from candapt.commands.main import main
from candapt.report import write_report
from candapt.review.answers import read_csv


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def labels(run: Path, path: Path, rows: range) -> int:
    """Write true labels of some rows; returns how many predictions are right."""
    with (run / "predictions.csv").open(newline="") as file:
        predicted = [row["label"] for row in csv.DictReader(file)]
    true = [str(label) for label in (predicted[row] if row % 4 else "0" for row in rows)]
    path.write_text("path,label\n" + "".join(f"{row},{label}\n" for row, label in zip(rows, true, strict=True)))
    return sum(predicted[row] == label for row, label in zip(rows, true, strict=True))


def post(address: str, path: str, **values: Any) -> Any:
    body = json.dumps({"reviewer": "me", **values}).encode()
    request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class TestEstimate:
    def test_a_table_of_labels(self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        right = labels(run, tmp_path / "a.csv", range(60))
        before = sorted(path.name for path in run.iterdir())
        assert main(["review", str(run), "--estimate", str(tmp_path / "a.csv")]) == 0
        printed = capsys.readouterr().out
        assert f"{right / 60:.0%} right, between" in printed
        assert "by 60 answers." in printed
        assert "predicted class" in printed
        assert sorted(path.name for path in run.iterdir()) == before  # nothing is written

    def test_labels_that_steered_count_in_no_accuracy(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        labels(run, tmp_path / "a.csv", range(40))
        labels(run, run / "known_labels.csv", range(30))
        assert main(["review", str(run), "--estimate", str(tmp_path / "a.csv")]) == 0
        printed = capsys.readouterr().out
        assert "by 10 answers." in printed
        assert "30 answers left out: these labels steered the training." in printed
        labels(run, run / "known_labels.csv", range(40))
        assert main(["review", str(run), "--estimate", str(tmp_path / "a.csv")]) == 2
        assert "measures no accuracy of this run. 40 answers left out" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (["--number", "0"], "must be at least 1"),
            (["--seed", "-1"], "must be at least 0"),
            (["--stratify", "size"], "must be none or confidence or class"),
            (["--estimate", "none.csv"], "cannot be read"),
            (["--port", "99999"], "give another one by --port"),
            (["--port", "-1"], "give another one by --port"),
        ],
    )
    def test_refusals_are_one_sentence(
        self, run: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["review", str(run), *words]) == 2
        printed = capsys.readouterr().err
        assert reason in printed
        assert printed.count("\n") == 1

    def test_no_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["review", str(tmp_path)]) == 2
        assert "holds no finished run" in capsys.readouterr().err

    def test_all_labels_steered(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        labels(run, run / "known_labels.csv", range(120))
        assert main(["review", str(run)]) == 2
        assert "none is left to measure with" in capsys.readouterr().err


def test_serve_answer_and_end(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers survive the end of the command, and stand in the report and in a table that gives the same again."""
    words = [sys.executable, "-m", "candapt", "review", str(run), "--number", "12"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.fullmatch(r"Open (http://\S+)\n", process.stdout.readline())
        assert address is not None
        state = post(address[1], "show")
        for count in range(12):
            verdict = ("right", "right", "right", "wrong", "unsure")[count % 5]
            state = post(address[1], "answer", row=state["sample"]["row"], answer=verdict)
        process.send_signal(signal.SIGTERM)
        printed, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    assert state["measured"]["sentence"] in printed
    assert "2 answers “cannot say”" in printed
    assert "measured by review" in (run / "report.html").read_text(encoding="utf-8").lower()
    assert len(read_csv(run / "review" / "answers.csv")) == 12
    capsys.readouterr()
    assert main(["review", str(run), "--estimate", str(run / "review" / "answers.csv")]) == 0
    assert state["measured"]["sentence"] in capsys.readouterr().out


def test_a_report_of_a_run_whose_known_labels_are_gone(run: Path) -> None:
    """It shows no accuracy rather than one that counts what steered."""
    (run / "review").mkdir()
    line = {"path": "0", "answer": "right", "label": "1", "prediction": "1"}
    (run / "review" / "answers.jsonl").write_text(json.dumps(line) + "\n")
    assert "Measured by review" in write_report(run).read_text(encoding="utf-8")
    with (run / "config.yaml").open("a") as file:
        file.write("known_labels: /nowhere.csv\n")
    text = write_report(run).read_text(encoding="utf-8")
    assert "Measured by review" not in text
    assert "Known labels steered the run" in text
