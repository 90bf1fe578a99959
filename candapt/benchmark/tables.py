"""Results as tables in Markdown, LaTeX and a terminal: in percent, the best in bold, the paper's number beside ours."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from candapt.benchmark.published import AVERAGE
from candapt.benchmark.results import KINDS, Stored
from candapt.report import page, plots
from candapt.storage.safe_reading import printable

Results = Mapping[str, Any]  # the content of `results.json`


@dataclass(frozen=True)
class TableEntry:
    """One number of a table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One line of a table: a row's name and an entry for each column."""

    name: str
    entries: tuple[TableEntry, ...]
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
    """What a reader must know about the tables, in sentences."""
    networks = ", ".join(f"{each['backbone']}, trained: {each['finetune']}" for each in results["networks"])
    spread = f"mean ± {results['spread']}" if len(results["seeds"]) > 1 else "one seed, so no spread is given"
    sentences = [
        results["protocol"],
        f"Percent; {spread}; seeds {', '.join(map(str, results['seeds']))}; network: {networks}.",
        "Bold: the best of ours in a column. Target labels were used for these numbers and for nothing else.",
    ]
    digests = results.get("measured_with", {}).get("code", [])
    if len(digests) > 1:
        sentences.append(f"The cells were made by {len(digests)} versions of the code; results.json lists them.")
    if any(row["paper"] for row in results["rows"]):
        paper = results["paper"]
        sentences.append(
            f"“{paper['label']}”: the numbers of {paper['place']} in Kang et al., CVPR 2019, whose authors trained the "
            f"whole network. {paper['note']}".strip()
        )
    return sentences


def _lines(results: Results, kind: str) -> list[Line]:
    best = {name: max(_percent(row[kind][name]["mean"]) for row in results["rows"]) for name in results["columns"]}
    lines = []
    for row in results["rows"]:
        figures = [(name, row[kind][name]) for name in results["columns"]]
        entries = (TableEntry(_figure(each, 100), _percent(each["mean"]) == best[name]) for name, each in figures)
        lines.append(Line(row["name"], tuple(entries)))
        if paper := row["paper"]:
            texts = (_figure(paper[name]) if name in paper else "" for name in results["columns"])
            lines.append(Line(results["paper"]["label"], tuple(map(TableEntry, texts)), from_paper=True))
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:5.1f}"  # padded, so that the largest text is the largest number


def _figure(figure: Mapping[str, Any], scale: int = 1) -> str:
    """Mean and spread; our figures are shares, those of the paper are in percent."""
    return " ± ".join(f"{scale * value:.1f}" for value in (figure["mean"], figure["std"]) if value is not None)


def to_terminal(results: Results, *, turned: bool = False) -> Table:
    """The first block for a terminal, a line for each row or, turned, for each column."""
    block = blocks(results)[0]
    names = [Text(printable(name)) for name in block.columns]  # a domain's name is no markup
    texts = [[Text(entry.text, "bold" if entry.best else "") for entry in line.entries] for line in block.lines]
    style = {True: "dim", False: ""}  # by whether a line is the paper's
    title = Text(f"{results['title']}: {block.title.lower()}")
    if turned:
        methods = (Column(Text(line.name), style=style[line.from_paper]) for line in block.lines)
        table = Table("", *methods, title=title)
        for name, column in zip(names, zip(*texts, strict=True), strict=True):
            table.add_row(name, *column)
        return table
    table = Table("method", *map(Column, names), title=title)
    for line, entries in zip(block.lines, texts, strict=True):
        table.add_row(Text(line.name), *entries, style=style[line.from_paper])
    return table


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
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", _one_line(text))


def to_latex(results: Results) -> str:
    r"""Tables to `\input` into a document that loads booktabs."""
    parts = [r"% \usepackage{booktabs}", *(f"% {_one_line(note)}" for note in notes(results))]
    for block in blocks(results):
        rows = [" & ".join(map(_latex, ["Method", *block.columns])) + r" \\", r"\midrule"]
        for line in block.lines:
            name = rf"\quad\emph{{{_latex(line.name)}}}" if line.from_paper else _latex(line.name)
            entries = (rf"\textbf{{{_latex(e.text)}}}" if e.best else _latex(e.text) for e in line.entries)
            rows.append(" & ".join([name, *entries]) + r" \\")
        caption, layout = _latex(f"{results['title']}. {block.title}."), "l" + "c" * len(block.columns)
        top = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{layout}}}"]
        end = [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        parts.append("\n".join([*top, r"\toprule", *rows, *end]))
    return "\n\n".join(parts) + "\n"


_LATEX = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}"},
    **{"→": r"$\rightarrow$", "↔": r"$\leftrightarrow$", "±": r"$\pm$", "β": r"$\beta$"},
}


def _latex(text: str) -> str:
    """Plain text with LaTeX's signs escaped."""
    return "".join(_LATEX.get(sign, sign) for sign in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


TABLES: dict[str, Callable[[Results], str]] = {"md": to_markdown, "tex": to_latex}  # by ending of the file


def benchmark_page(results: Results, stored: Sequence[Stored]) -> str:
    """The page as text, from the content of `results.json` and of each cell's file."""
    chart = accuracy_chart(results, stored)
    return page.render(
        "benchmark.html",
        title=results["title"],
        kind=": benchmark",
        charts=[chart],
        verdict=verdict(results),
        notes=notes(results),
        tables=[table(block) for block in blocks(results)],
        chart=chart,
        versions=page.Table("Versions", ("package", "version"), _versions(results)),
    )


def verdict(results: Results) -> str:
    """A sentence that names the method with the best average."""
    means = {row["name"]: row["last"][AVERAGE]["mean"] for row in results["rows"]}
    best = max(means, key=means.__getitem__)
    columns = results["columns"][:-1]
    parts = "tasks" if len(results["tasks"]) == len(columns) else "classes"
    where = f"on average over {len(columns)} {parts}" if len(columns) > 1 else f"on {columns[0]}"
    sentence = f"After the last round {best} is best {where}: {means[best]:.1%}"
    if "source-only" in means and best != "source-only":
        sentence += f", {100 * (means[best] - means['source-only']):.1f} points above source-only"
    return f"{sentence}. Target labels measured this and chose nothing."


def table(block: Block) -> page.Table:
    """A block of results."""
    rows = [(line.name, *(entry.text for entry in line.entries)) for line in block.lines]
    places = [(y, x, entry) for y, line in enumerate(block.lines) for x, entry in enumerate(line.entries)]
    best = frozenset((y, x + 1) for y, x, entry in places if entry.best)
    paper = frozenset(y for y, line in enumerate(block.lines) if line.from_paper)
    return page.Table(block.title, ("method", *block.columns), rows, best, paper)


def accuracy_chart(results: Results, stored: Sequence[Stored]) -> plots.Chart:
    """Mean accuracy of each row by round; a training that has settled stays where it was."""
    longest = max(len(cell["oracle_curve"]) for cell in stored)
    lines = []
    for row in results["rows"]:
        curves = [cell["oracle_curve"] for cell in stored if cell["row"] == row["name"]]
        filled = [[*curve, *[curve[-1]] * (longest - len(curve))] for curve in curves if curve]
        means = [fmean(values) for values in zip(*filled, strict=True)]
        lines.append(plots.Curve(row["name"], range(len(means)), means))
    note = "Mean over tasks and seeds, measured with true labels (oracle); no round was chosen by it."
    return plots.Chart("accuracy", "Accuracy by round", note, plots.curves(lines, percent=True), wide=True)


def _versions(results: Results) -> list[tuple[str, str]]:
    """Every version that some cell was made with."""
    versions: dict[str, dict[str, None]] = {}
    for each in results["versions"]:
        for name, version in each.items():
            versions.setdefault(name, {})[version] = None
    return [(name, ", ".join(each)) for name, each in versions.items()]
