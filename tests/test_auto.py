"""Several methods are tried, and evidence without labels chooses."""

import json
from pathlib import Path

import pytest

from candapt.commands import auto
from candapt.commands.main import main
from candapt.storage.files import write_json
from tests.predictions import rows

QUICK = ["--rounds", "2", "--training.steps", "5", "--network.bottleneck", "16", "--training.accelerator", "cpu"]


def arguments(files: Path, out: Path) -> list[str]:
    data = [str(files / "source.npz"), str(files / "target.npz")]
    return ["adapt", *data, "--method", "auto", "--out", str(out), "--report", "false", *QUICK]


def test_the_best_by_evidence_is_kept(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main([*arguments(files, out), "--mcc.weight", "0.5"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    compared = summary["auto"]["methods"]
    assert tuple(compared) == auto.TRIED
    kept = summary["auto"]["kept"]
    assert kept == auto.choose({name: each["estimated_accuracy"] for name, each in compared.items()})
    assert summary["method"] == kept
    assert rows(out / "predictions.csv") == rows(out / "candidates" / kept / "predictions.csv")
    assert "0.5" in (out / "candidates/mcc/config.yaml").read_text()
    assert main(["predict", str(out), str(files / "target.npz"), "--out", str(tmp_path / "again.csv")]) == 0


def test_it_resumes_where_it_was(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, trained = tmp_path / "run", list[str]()
    run = auto.adapt.run

    def interrupted(options: auto.AdaptOptions, *others: object) -> object:
        if options.settings.method == "dan" and "dan" not in trained:
            trained.append("dan")
            raise KeyboardInterrupt
        trained.append(options.settings.method)
        return run(options, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(auto.adapt, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        auto.main(auto.Given(_values(files, out)))
    assert trained == ["source-only", "mcc", "dan"]
    before = (out / "candidates/mcc/model.safetensors").read_bytes()
    assert main(["adapt", "--out", str(out), "--resume"]) == 0
    assert (out / "candidates/mcc/model.safetensors").read_bytes() == before
    assert (out / "candidates/can/summary.json").is_file()
    assert (out / "summary.json").is_file()
    assert main(["adapt", "--out", str(out), "--resume"]) == 0


def test_bad_input_leaves_nothing_behind(files: Path, tmp_path: Path) -> None:
    """The corrected command can be given again with the same folder."""
    (files / "known.csv").write_text("path,label\n0,no such class\n")
    out = tmp_path / "run"
    assert main([*arguments(files, out), "--known-labels", str(files / "known.csv")]) == 2
    assert not out.exists()
    out.mkdir()
    assert main([*arguments(files, out), "--known-labels", str(files / "known.csv")]) == 2
    assert not list(out.iterdir())


def test_settings_of_a_method_that_is_not_tried_are_refused(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(files, tmp_path / "run"), "--dann.weight", "1"]) == 2
    assert "--dann.weight is a setting of dann" in capsys.readouterr().err


def test_help_has_the_settings_of_all_that_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["adapt", "--method", "auto", "--help"])
    text = capsys.readouterr().out
    assert "--mcc.weight" in text
    assert "--can.samples" in text
    assert "--dann.weight" not in text


def test_a_stop_says_how_to_resume_the_whole(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resuming the folder of the method that was stopped would leave the others untrained."""

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(auto.adapt, "train", stopped)
    out = tmp_path / "run"
    assert main(arguments(files, out)) == 130
    assert f"candapt adapt --out {out} --resume" in capsys.readouterr().err


def _values(files: Path, out: Path) -> dict[str, object]:
    settings = {"rounds": 2, "training.steps": 5, "network.bottleneck": 16, "report": False}
    return {"source": files / "source.npz", "target": files / "target.npz", "out": out, "method": "auto", **settings}


@pytest.mark.parametrize(
    ("mcc", "dan", "kept"), [(0.75, 0.7, "can"), (0.74, 0.76, "dan"), (0.9, 0.8, "mcc"), (0.2, 0.1, "can")]
)
def test_another_method_is_kept_only_if_it_is_clearly_better(mcc: float, dan: float, kept: str) -> None:
    assert auto.choose({"source-only": 0.5, "mcc": mcc, "dan": dan, "can": 0.7}) == kept


def test_equal_evidence_keeps_the_last(tmp_path: Path) -> None:
    for method in auto.TRIED:
        folder = tmp_path / "candidates" / method
        folder.mkdir(parents=True)
        (folder / "predictions.csv").write_text(method)
        write_json(folder / "summary.json", {"estimated_accuracy": {"value": 0.5}, "seconds": 1.0, "method": method})
    auto.keep_best(tmp_path, with_report=False)
    assert (tmp_path / "predictions.csv").read_text() == auto.TRIED[-1] == "can"


def test_without_evidence_there_is_no_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in auto.TRIED:
        folder = tmp_path / "candidates" / method
        folder.mkdir(parents=True)
        write_json(folder / "summary.json", {"estimated_accuracy": None, "seconds": 1.0})
    with pytest.raises(Exception, match="starts at random"):
        auto.keep_best(tmp_path, with_report=False)


def test_a_folder_with_files_is_refused(files: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").write_text("mine")
    assert main(arguments(files, tmp_path / "run")) == 2
    assert not (tmp_path / "run/candidates").exists()
