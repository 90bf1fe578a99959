"""The first page keeps its word: its code runs, and its commands are ones that exist."""

import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from candapt.benchmark.suites import SUITES
from candapt.commands import demo
from candapt.commands.main import main
from candapt.data import digits
from candapt.presets import DEFAULT, PRESETS

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
MISSING = ("does not exist", "There is no file", "There is no run", "holds no finished run")
"""What errors say of data that only the reader has."""


@pytest.fixture
def quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, few digits, and defaults that train for a moment."""
    x, y = digits.handwritten_digits()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(digits, "RENDERED", 80)
    monkeypatch.setitem(SUITES, "demo", replace(SUITES["demo"], changes={"rounds": 1, "training.steps": 2}))
    for module in (demo, digits):
        monkeypatch.setattr(module, "handwritten_digits", lambda: (x[:60], y[:60]))
    monkeypatch.setitem(PRESETS, DEFAULT, PRESETS[DEFAULT] | {"rounds": 2, "training.steps": 5})


@pytest.mark.usefixtures("quickly")
def test_every_block_runs_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """What one block makes, the next may use."""
    namespace: dict[str, Any] = {"__name__": "readme"}
    run = 0
    for language, text in BLOCKS:
        if language in ("sh", "bash", "shell", "console"):
            for words in commands(text):
                check_command(words, capsys)
                run += 1
        elif language in ("python", "py"):
            exec(compile(text, str(README), "exec"), namespace)
            run += 1
    assert run > 0


def commands(text: str) -> list[list[str]]:
    """The calls of candapt in a block of shell; other programs are not ours to run."""
    lines = text.replace("\\\n", " ").splitlines()
    split = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [words[1:] for words in split if words and Path(words[0]).name == "candapt"]


def check_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It works, or it is in order but for data that are not here."""
    capsys.readouterr()
    code = main(words)
    message = capsys.readouterr().err
    logging.getLogger("candapt").handlers.clear()
    assert code == 0 or any(reason in message for reason in MISSING), f"candapt {shlex.join(words)}: {message}"


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README.read_text(encoding="utf-8"))
    assert [link for link in links if not (README.parent / link).exists()] == []
