from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from candapt import console
from candapt.benchmark.results import KINDS
from candapt.benchmark.tables import blocks, to_latex, to_markdown, to_terminal
from tests.benchmark.made import made_results, spread


@pytest.fixture
def results() -> dict[str, Any]:
    return made_results()


def test_three_blocks_say_what_they_are(results: dict[str, Any]) -> None:
    titles = [block.title for block in blocks(results)]
    assert titles[:2] == ["Last round", "Chosen without labels (rule: last round)"]
    assert titles[2].startswith("Oracle")


def test_the_best_is_bold_as_it_is_printed(results: dict[str, Any]) -> None:
    can, paper, dann = blocks(results)[0].lines
    assert [entry.best for entry in can.entries] == [True, True, True]
    assert [entry.best for entry in dann.entries] == [False, True, False]  # equal to one decimal
    assert paper.from_paper
    assert [entry.text for entry in paper.entries] == ["", "78.0 ± 0.3", "90.6"]


def test_100_percent_beats_99() -> None:
    row: dict[str, Any] = {"paper": {}, "name": "x"}
    rows = [row | {kind: {"Average": spread(value)} for kind in KINDS} for value in (0.999, 1.0, 0.08)]
    lines = blocks({"rule": "", "columns": ["Average"], "rows": rows})[0].lines
    assert [line.entries[0].best for line in lines] == [False, True, False]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_table_that_is_too_wide_is_turned(
    results: dict[str, Any], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column for each class, as in VisDA-2017."""
    classes = [f"class {number}" for number in range(20)]
    for row in results["rows"]:
        row |= {kind: dict.fromkeys(classes, spread(0.5)) for kind in KINDS}
    wide, shown = (
        results | {"columns": classes},
        Console(width=80, force_terminal=terminal, color_system=None, file=StringIO()),
    )
    monkeypatch.setattr(console, "output", shown)
    shown.print(console.fitted(to_terminal(wide), to_terminal(wide, turned=True)), soft_wrap=True)
    assert isinstance(shown.file, StringIO)
    lines = shown.file.getvalue().splitlines()
    assert "…" not in shown.file.getvalue()
    assert (max(map(len, lines)) <= 80) is terminal
    assert (sum("50.0" in line for line in lines) == len(classes)) is terminal


def test_markdown(results: dict[str, Any]) -> None:
    text = to_markdown(results)
    assert "| can | **94.5 ± 1.2** | **50.0 ± 1.2** | **75.0 ± 1.2** |" in text
    assert "| *paper (fine-tuned ResNet-50)* |  | 78.0 ± 0.3 | 90.6 |" in text
    assert r"| art\_1→50% & \<b\> | a\|b | Average |" in text
    assert text.count("\n| can |") == 3


def test_latex_signs_are_escaped(results: dict[str, Any]) -> None:
    text = to_latex(results)
    assert r"Method & art\_1$\rightarrow$50\% \& \textless{}b\textgreater{} & a|b & Average \\" in text
    assert r"\textbf{94.5 $\pm$ 1.2}" in text
    assert r"\caption{Digits \& more. Last round.}" in text
    assert text.count(r"\begin{tabular}{lccc}") == text.count(r"\bottomrule") == 3


def test_one_seed_has_no_spread(results: dict[str, Any]) -> None:
    for row in results["rows"]:
        for kind in KINDS:
            row[kind] = {name: spread(figure["mean"]) for name, figure in row[kind].items()}
    results["seeds"] = [0]
    assert "| can | **94.5** | **50.0** | **75.0** |" in to_markdown(results)
    assert "no spread" in to_markdown(results)


def test_names_that_are_not_unicode_can_be_written(results: dict[str, Any], tmp_path: Path) -> None:
    results["title"] = "odd \udcff"
    for render in (to_markdown, to_latex):
        (tmp_path / "table").write_text(render(results), encoding="utf-8", errors="backslashreplace")
