"""Names of files and classes that would break out of a table, a page, a terminal or a command line."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import candapt
from candapt.benchmark.tables import to_latex, to_markdown, to_terminal
from candapt.commands.main import main
from candapt.storage.safe_reading import printable
from tests.predictions import without_confidence
from tests.toy import QUICK

CLASSES = ("<script>alert(1)<", '"; DROP TABLE--', "-rf", "\x1b[31mred\x1b]0;x\x07", os.fsdecode(b"caf\xe9"))
"""Folder names; the first is the beginning of a path, since a folder's name has no slash."""
FILES = (
    *(
        "a\nb.png",
        "c\r\nd.png",
        'quote".png',
        "it's.png",
        "a,b;c.png",
        "-dash.png",
        "--out.png",
        "a..b.png",
        "x/a.. .png",
    ),
    *(
        "=1+1.png",
        "🦄.png",
        "[red]x[/blue].png",
        "%s%n.png",
        "${HOME}.png",
        "$(touch x).png",
        "back\\slash.png",
        " .png",
    ),
    *("\x1b[2J.png", os.fsdecode(b"\xff\xfe\x80.png"), "é" * 125 + ".png", "B" * 251 + ".png", "script>/<b>.png"),
)
LABELS = os.fsdecode(b"labels: \xe9\n*.csv")
FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]
SMALL = ["--network.backbone", "small-cnn", "--images.size", "8", "--training.batch_size", "4"]


def draw(path: Path, seed: int) -> None:
    """Light on one side."""
    values = np.random.default_rng(seed).integers(0, 60, (10, 10)).astype(np.uint8)
    values[:, (seed % 2) * 5 : (seed % 2) * 5 + 5] += 190
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, "PNG")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for index, name in enumerate(CLASSES):
        for number in range(2):
            draw(folder / "source" / name / f"{number}.png", index + number)
    for index, name in enumerate(FILES):
        draw(folder / "target" / name, index)
    (folder / "target" / "broken \x1b[1m\n.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def finished(photos: Path) -> Path:
    """A run in a folder that has such a name itself, with true labels for the oracle."""
    out = photos / os.fsdecode(b'run "\n\xe9 <b>')
    with (photos / LABELS).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        csv.writer(file).writerows(
            [("path", "label"), *((name, CLASSES[index % 5]) for index, name in enumerate(FILES))]
        )
    words = ["adapt", str(photos / "source"), str(photos / "target"), "--out", str(out), *FLAGS, *SMALL]
    assert main([*words, "--target-labels", str(photos / LABELS)]) == 0
    return out


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def test_through_every_command(photos: Path, finished: Path, tmp_path: Path) -> None:
    rows = table(finished / "predictions.csv")
    assert sorted(row["path"] for row in rows) == sorted(FILES)
    assert {row["label"] for row in rows} <= set(CLASSES)
    assert candapt.load(finished).classes == tuple(sorted(CLASSES))
    assert "oracle" in json.loads((finished / "summary.json").read_text())
    assert CLASSES[0] not in (finished / "report.html").read_text(encoding="utf-8")

    assert main(["predict", str(finished), str(photos / "target"), "--out", str(tmp_path / "again\n.csv")]) == 0
    assert without_confidence(tmp_path / "again\n.csv") == without_confidence(finished / "predictions.csv")
    assert main(["evaluate", str(finished), str(photos / "source"), "--out", str(tmp_path / "f.json")]) == 0
    assert json.loads((tmp_path / "f.json").read_text())["classes"] == sorted(CLASSES)


def test_a_run_can_be_made_again_from_its_configuration(finished: Path, tmp_path: Path) -> None:
    assert main(["adapt", "--config", str(finished / "config.yaml"), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()


def test_the_log_is_printable(finished: Path) -> None:
    text = (finished / "log.txt").read_text(encoding="utf-8")
    assert text == printable(text)


def test_left_out_files_are_listed_as_they_are(finished: Path) -> None:
    (row,) = table(finished / "left-out.csv")
    assert row["path"].endswith("broken \x1b[1m\n.png")


def test_tables_run_no_script() -> None:
    """A benchmark's columns are named by folders."""
    name = "<script>alert(1)</script>|[/x]\\input{/etc/passwd}"
    figure = {name: {"mean": 0.5, "std": None}}
    row = {"name": name, "paper": {}, "last": figure, "chosen": figure, "oracle": figure}
    texts = {"title": name, "rule": name, "protocol": name, "spread": name, "seeds": [0], "paper": None}
    results = {**texts, "networks": [{"backbone": name, "finetune": name}], "columns": [name], "rows": [row]}
    assert "<script>alert" not in to_markdown(results)
    latex = [line for line in to_latex(results).splitlines() if not line.startswith("%")]
    assert not [line for line in latex if r"\input" in line]
    assert to_terminal(results).columns


def test_a_pipe_that_cannot_hold_a_name_is_no_reason_to_fail(
    photos: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output may be ASCII; what is said is then shown with escapes."""
    words = ["evaluate", str(finished), str(photos / "source"), "--out", str(tmp_path / os.fsdecode(b"\xff.json"))]
    pipes = {"stdout": io.BytesIO(), "stderr": io.BytesIO()}
    for name, pipe in pipes.items():  # as Python opens them with PYTHONIOENCODING=ascii
        errors = "strict" if name == "stdout" else "backslashreplace"
        monkeypatch.setattr(sys, name, io.TextIOWrapper(pipe, "ascii", errors, write_through=True))
    assert main(words) == 0
    assert b"accuracy" in pipes["stdout"].getvalue()
    assert b"Traceback" not in pipes["stderr"].getvalue()
