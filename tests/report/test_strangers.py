"""Pages of run folders that someone else has filled."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from candapt.commands.main import main
from candapt.errors import UserError
from candapt.report.run_data import read_run
from candapt.report.thumbnails import Thumbnails
from candapt.storage.safe_reading import MAX_JSON, MAX_TABLE

FILES = ("config.yaml", "summary.json", "model.json", "metrics.jsonl", "predictions.csv", "embedding.npz")

ANSWERS = "review/answers.jsonl"


@pytest.fixture
def run(image_run: Path, tmp_path: Path) -> Path:
    """A run folder that a test may spoil."""
    return Path(shutil.copytree(image_run, tmp_path / "run"))


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_answers_that_are_a_link_or_a_pipe_are_refused(run: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "answers.jsonl").write_text("")
    if kind == "folder":
        (run / "review").symlink_to(tmp_path / "elsewhere")
    else:
        (run / "review").mkdir()
        path = run / "review" / "answers.jsonl"
        path.symlink_to(tmp_path / "elsewhere" / "answers.jsonl") if kind == "link" else os.mkfifo(path)
    with pytest.raises(UserError):
        read_run(run)


@pytest.mark.parametrize(
    "text", ["[" * 10**5, "3\n{}\n", '{"path": "0", "answer": "right", "label": 3}\n', "\0\n" * 99]
)
def test_answers_of_another_kind_are_skipped(run: Path, text: str) -> None:
    (run / "review").mkdir()
    (run / "review" / "answers.jsonl").write_text(text)
    assert read_run(run).answers == ()
    assert main(["report", str(run), "--pictures", "false"]) == 0


def test_every_file_that_is_read_is_there(run: Path) -> None:
    assert all((run / name).is_file() for name in FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_refused(run: Path, tmp_path: Path, name: str, kind: str) -> None:
    (run / name).rename(tmp_path / "elsewhere")
    if kind == "link":
        (run / name).symlink_to("../elsewhere")
    else:
        os.mkfifo(run / name)
    with pytest.raises(UserError):
        read_run(run)


@pytest.mark.parametrize(
    ("name", "size"),
    [("summary.json", MAX_JSON), ("metrics.jsonl", MAX_JSON), ("predictions.csv", MAX_TABLE), (ANSWERS, MAX_TABLE)],
)
def test_files_are_bounded(run: Path, name: str, size: int) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).touch()
    os.truncate(run / name, size + 1)
    with pytest.raises(UserError, match="is larger than"):
        read_run(run)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", "[" * 10**5),
        ("metrics.jsonl", "3"),
        ("config.yaml", "a: &a [1]\nb: *a"),
        ("config.yaml", "a: !!python/object/apply:os.getcwd []"),
        ("summary.json", '{"a":' * 10**5),
        ("predictions.csv", "path,label\n1,a\n"),
        ("model.json", '{"classes": [3], "shape": [1]}'),
    ],
)
def test_damage_is_one_sentence(run: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / name).write_text(text)
    assert main(["report", str(run)]) == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"data": 3}, {"mean_confidence": "x"}, {"versions": None}, {"warnings": 7}])
def test_values_of_another_kind_are_one_sentence(
    run: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | changes))
    code = main(["report", str(run)])
    assert code == 0 or "is damaged" in capsys.readouterr().err


def test_without_pictures_nothing_outside_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration says where the images are, and may name any place."""
    assert main(["report", str(run)]) == 0
    assert "data:image/jpeg" in (run / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(Thumbnails, "one", lambda *_: pytest.fail("a picture was made"))
    monkeypatch.setattr("candapt.report.thumbnails.read_arrays", lambda *_: pytest.fail("a file was read"))
    assert main(["report", str(run), "--pictures", "false"]) == 0
    assert "data:image/jpeg" not in (run / "report.html").read_text(encoding="utf-8")
