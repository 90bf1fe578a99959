"""`--known-labels` from the command line: the files of a run, its figures, resuming, and `candapt evaluate`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from candapt.commands.main import main
from tests.faults.test_resume import FLAGS, interrupt
from tests.toy import Toy


@pytest.fixture
def known(toy: Toy, files: Path) -> Path:
    """The labels of the first eight target samples."""
    rows = "".join(f"{row},{label}\n" for row, label in enumerate(toy.target_y[:8]))
    (files / "known.csv").write_text(f"path,label\n{rows}")
    return files / "known.csv"


def words(files: Path, out: Path, known: Path) -> list[str]:
    data = [str(files / "source.npz"), str(files / "target.npz"), "--target-labels", str(files / "labels.csv")]
    return ["adapt", *data, *FLAGS, "--out", str(out), "--known-labels", str(known)]


class TestRun:
    def test_they_are_listed_and_not_counted(self, files: Path, known: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        assert main(words(files, out, known)) == 0
        summary = json.loads((out / "summary.json").read_text())
        assert len(summary["data"]["known_labels"]) == 8
        assert summary["oracle"]["samples"] == 120 - 8
        assert len((out / "known_labels.csv").read_text().splitlines()) == 9
        assert "no accuracy of this run counts" in (out / "log.txt").read_text()
        page = (out / "report.html").read_text()
        assert "8 target samples have labels that the user gave" in page

    def test_evaluate_leaves_them_out(
        self, files: Path, known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "run"
        assert main([*words(files, out, known), "--report", "false", "--baseline", "false"]) == 0
        capsys.readouterr()
        assert main(["evaluate", str(out), str(files / "labeled.npz"), "--out", str(tmp_path / "figures.json")]) == 0
        assert "8 whose labels were given" in capsys.readouterr().out
        assert json.loads((tmp_path / "figures.json").read_text())["samples"] == 112

    def test_nothing_left_to_measure_is_one_sentence(
        self, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(words(files, tmp_path / "run", files / "labels.csv")) == 2
        assert "none is left to measure on" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_no_accuracy_is_estimated_where_all_are_known(
        self, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = [str(files / "source.npz"), str(files / "target.npz"), "--known-labels", str(files / "labels.csv")]
        assert main(["adapt", *data, *FLAGS, "--out", str(tmp_path / "run")]) == 0
        summary = (tmp_path / "run" / "summary.json").read_text()
        assert json.loads(summary)["estimated_accuracy"] is None
        assert "NaN" not in summary
        assert "nan%" not in capsys.readouterr().err
        assert "nan" not in (tmp_path / "run" / "README.md").read_text()
        assert main(["suggest", str(tmp_path / "run")]) == 2
        assert "there is none to suggest" in capsys.readouterr().err
        assert main(["adapt", *data, *FLAGS, "--method", "auto", "--out", str(tmp_path / "auto")]) == 2
        assert "--known-labels has all" in capsys.readouterr().err


def test_resuming_with_other_known_labels_is_refused(
    files: Path, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    interrupt(files, out, monkeypatch, "--known-labels", str(known))
    known.write_text("\n".join(known.read_text().splitlines()[:-1]) + "\n")
    assert main(["adapt", "--out", str(out), "--resume"]) == 2
    assert "the known labels changed" in capsys.readouterr().err


class TestSuggest:
    def test_a_list_to_fill_in_leads_to_the_next_run(
        self, files: Path, known: Path, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        quick = ["--report", "false", "--baseline", "false"]
        assert main([*words(files, tmp_path / "run", known), *quick]) == 0
        listed = tmp_path / "suggested.csv"
        assert main(["suggest", str(tmp_path / "run"), "--number", "6", "--out", str(listed)]) == 0
        head, *lines = listed.read_text().splitlines()
        assert head == "path,label,prediction,confidence"
        rows = [int(line.split(",")[0]) for line in lines]
        assert len(set(rows)) == 6
        assert not set(rows) & set(range(8))  # their labels are known already
        capsys.readouterr()
        assert main(["suggest", str(tmp_path / "run"), "--number", "6"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == lines
        listed.write_text("\n".join([head, *(f"{row},{toy.target_y[row]},," for row in rows)]))
        assert main([*words(files, tmp_path / "next", listed), *quick]) == 0

    def test_what_looks_unknown_is_not_listed(self, files: Path, known: Path, tmp_path: Path) -> None:
        out, listed = tmp_path / "run", tmp_path / "suggested.csv"
        assert main([*words(files, out, known), "--report", "false", "--baseline", "false"]) == 0
        with (out / "predictions.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        strange = [row["path"] for row in rows[20:80]]
        with (out / "predictions.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows({**row, "unknown": 0.9 if row["path"] in strange else 0.1} for row in rows)
        assert main(["suggest", str(out), "--number", "200", "--out", str(listed)]) == 0
        names = [line.split(",")[0] for line in listed.read_text().splitlines()[1:]]
        assert sorted(names, key=int) == [row["path"] for row in rows[8:] if row["path"] not in strange]

    @pytest.mark.parametrize("problem", ["number", "run", "target"])
    def test_what_does_not_fit_is_one_sentence(
        self, files: Path, known: Path, tmp_path: Path, problem: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "run"
        if problem != "run":
            assert main([*words(files, out, known), "--report", "false", "--baseline", "false"]) == 0
        more = {"number": ["--number", "0"], "run": [], "target": ["--target", str(tmp_path / "few.npz")]}[problem]
        np.savez(tmp_path / "few.npz", x=np.zeros((5, 24), dtype=np.float32))
        capsys.readouterr()
        assert main(["suggest", str(out), *more]) == 2
        expected = {"number": "at least 1", "run": "holds no finished run", "target": "no longer has '5' and 114 more"}
        printed = capsys.readouterr().err
        assert expected[problem] in printed
        assert printed.count("\n") == 1
