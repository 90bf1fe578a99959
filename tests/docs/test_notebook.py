"""The notebook runs from top to bottom."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
SHORTER = {
    "rendered_digits(1000,": "rendered_digits(60,",
    "handwritten[:600]": "handwritten[:60]",
    "handwritten[600:800]": "handwritten[600:620]",
    "rounds=8, training__steps=40": "rounds=2, training__steps=2",
}
"""What takes half a minute, and what takes its place where that is too long."""

every = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


@every
def test_its_cells_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """With fewer digits and next to no training, here and not in a kernel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(long in "".join(cells) for long in SHORTER)
    names: dict[str, Any] = {}
    shown = [shown_by(shortened(cell), names) for cell in cells]
    assert any(isinstance(value, Image.Image) for value in shown)
    assert capsys.readouterr().err == ""


def shortened(cell: str) -> str:
    for long, short in SHORTER.items():
        cell = cell.replace(long, short)
    return cell


def shown_by(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell; returns what a notebook shows below it, the value of its last line, after asking for its text."""
    *lines, last = ast.parse(cell).body
    if not isinstance(last, ast.Expr):
        exec(cell, names)
        return None
    exec(compile(ast.Module(lines, []), "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    assert repr(value)
    return value


@pytest.mark.slow  # the test above runs its cells
@every
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)


@every
def test_no_output_is_stored(path: Path) -> None:
    """Stored figures would be measurements that no record supports."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


def test_there_is_one() -> None:
    assert NOTEBOOKS
