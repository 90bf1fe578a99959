"""Results as tables in Markdown, LaTeX and a terminal: in percent, the best in bold, the paper's number beside ours."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from candapt.benchmark.results import KINDS
from candapt.untrusted import printable

Results = Mapping[str, Any]
"""The content of `results.json`."""


@dataclass(frozen=True)
class Entry:
    """One number of a table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One line of a table: a row's name and an entry for each column."""

    name: str
    entries: tuple[Entry, ...]
    from_paper: bool = False


@dataclass(frozen=True)
class Block:
    """One table."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def blocks(results: Results) -> list[Block]:
    """The three tables: last round, label-free choice, oracle."""
    titles = {
        "last": "Last round",
        "chosen": f"Chosen without labels (rule: {results['rule']})",
        "oracle": "Oracle: the best round by the target's true labels, which no one has in practice",
    }
    return [Block(titles[kind], tuple(results["columns"]), tuple(_lines(results, kind))) for kind in KINDS]


def notes(results: Results) -> list[str]:
    """What a reader must know to read the tables, in sentences."""
    networks = ", ".join(f"{each['backbone']}, trained: {each['finetune']}" for each in results["networks"])
    spread = f"mean ± {results['spread']}" if len(results["seeds"]) > 1 else "one seed, so no spread is given"
    told = [
        results["protocol"],
        f"Percent; {spread}; seeds {', '.join(map(str, results['seeds']))}; network: {networks}.",
        "Bold: the best of ours in a column. Target labels were used for these numbers and for nothing else.",
    ]
    if any(row["paper"] for row in results["rows"]):
        paper = results["paper"]
        told.append(
            f"“{paper['label']}”: the numbers of {paper['place']} in Kang et al., CVPR 2019, whose authors trained the "
            f"whole network. {paper['note']}".strip()
        )
    return told


def _lines(results: Results, kind: str) -> list[Line]:
    best = {name: max(_percent(row[kind][name]["mean"]) for row in results["rows"]) for name in results["columns"]}
    lines = []
    for row in results["rows"]:
        figures = [(name, row[kind][name]) for name in results["columns"]]
        entries = (Entry(_ours(figure), _percent(figure["mean"]) == best[name]) for name, figure in figures)
        lines.append(Line(row["name"], tuple(entries)))
        if row["paper"]:
            paper = tuple(Entry(_theirs(row["paper"].get(name))) for name in results["columns"])
            lines.append(Line(results["paper"]["label"], paper, from_paper=True))
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:5.1f}"  # padded, so that the largest text is the largest number


def _ours(figure: Mapping[str, Any]) -> str:
    spread = "" if figure["std"] is None else f" ± {100 * figure['std']:.1f}"
    return f"{_percent(figure['mean']).strip()}{spread}"


def _theirs(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return ""
    return f"{figure['mean']:.1f}" + ("" if figure["std"] is None else f" ± {figure['std']:.1f}")


def to_terminal(results: Results, *, turned: bool = False) -> Table:
    """The first block for a terminal, a line for each row or, turned, for each column."""
    block = blocks(results)[0]
    names = [Text(printable(name)) for name in block.columns]  # a domain's name is no markup
    texts = [[Text(entry.text, "bold" if entry.best else "") for entry in line.entries] for line in block.lines]
    title = Text(f"{results['title']}: {block.title.lower()}")
    if turned:
        table = Table("", *(Column(Text(line.name), style=_style(line)) for line in block.lines), title=title)
        for name, column in zip(names, zip(*texts, strict=True), strict=True):
            table.add_row(name, *column)
        return table
    table = Table("method", *map(Column, names), title=title)
    for line, entries in zip(block.lines, texts, strict=True):
        table.add_row(Text(line.name), *entries, style=_style(line))
    return table


def _style(line: Line) -> str:
    return "dim" if line.from_paper else ""


def to_markdown(results: Results) -> str:
    """Tables for GitHub and documentation."""
    parts = [f"# {_markdown(results['title'])}", *(_markdown(note) for note in notes(results))]
    for block in blocks(results):
        rows = [["method", *map(_markdown, block.columns)], ["---", *("---:" for _ in block.columns)]]
        for line in block.lines:
            name = f"*{_markdown(line.name)}*" if line.from_paper else _markdown(line.name)
            rows.append([name, *(f"**{e.text}**" if e.best else e.text for e in line.entries)])
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"## {_markdown(block.title)}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _markdown(text: str) -> str:
    """Plain text with Markdown's signs escaped."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", " ".join(text.split()))


def to_latex(results: Results) -> str:
    r"""Tables to `\input` into a document that loads booktabs."""
    parts = [r"% \usepackage{booktabs}", *(f"% {_one_line(note)}" for note in notes(results))]
    for block in blocks(results):
        rows = [_latex_row(["Method", *block.columns])]
        rows.append(r"\midrule")
        for line in block.lines:
            name = rf"\quad\emph{{{_latex(line.name)}}}" if line.from_paper else _latex(line.name)
            entries = (rf"\textbf{{{_latex(e.text)}}}" if e.best else _latex(e.text) for e in line.entries)
            rows.append(" & ".join([name, *entries]) + r" \\")
        caption = f"{results['title']}. {block.title}."
        parts.append(_latex_table(caption, "l" + "c" * len(block.columns), rows))
    return "\n\n".join(parts) + "\n"


def _latex_table(caption: str, layout: str, rows: list[str]) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(caption)}}}",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_row(texts: list[str]) -> str:
    return " & ".join(map(_latex, texts)) + r" \\"


_LATEX = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "→": r"$\rightarrow$",
    "↔": r"$\leftrightarrow$",
    "±": r"$\pm$",
    "β": r"$\beta$",
}


def _latex(text: str) -> str:
    """Plain text with LaTeX's signs escaped."""
    return "".join(_LATEX.get(sign, sign) for sign in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


TABLES: dict[str, Callable[[Results], str]] = {"md": to_markdown, "tex": to_latex}
"""Renderers by the ending of the file that they make."""
