"""The commands of docs/review.md work as they stand there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from candapt.commands import review
from candapt.commands.main import main
from candapt.storage.interruption import Interrupted

PAGE = Path(__file__).parents[2] / "docs" / "review.md"
COMMANDS = re.findall(r"^candapt (review .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_command(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is closed as soon as it is there: `test_page.py` answers on one."""
    shutil.copytree(trained, tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.csv").write_text("path,label\n3,1\n4,2\n")

    def end(*_: object) -> None:
        raise Interrupted(2)

    monkeypatch.setattr(review, "wait_for_signal", end)
    assert len(COMMANDS) == 2
    for words in COMMANDS:
        assert main(shlex.split(words)) == 0
    printed = capsys.readouterr().out
    assert "Open http://127.0.0.1:" in printed
    assert "No prediction has been judged yet." in printed
    assert "by 2 answers." in printed
