"""The page of a benchmark: its tables, and how accuracy went from round to round."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from candapt.benchmark.published import AVERAGE
from candapt.benchmark.tables import Block, Results, blocks, notes
from candapt.report import plots
from candapt.report.page import Table, render
from candapt.report.plots import Chart, Curve


def benchmark_page(results: Results, stored: Sequence[Mapping[str, Any]]) -> str:
    """The page as text.

    Args:
        results: the content of `results.json`.
        stored: the content of each cell's file.
    """
    chart = accuracy_chart(results, stored)
    return render(
        "benchmark.html",
        title=results["title"],
        kind=": benchmark",
        charts=[chart],
        verdict=verdict(results),
        notes=notes(results),
        tables=[table(block) for block in blocks(results)],
        chart=chart,
        versions=Table("Versions", ("package", "version"), _versions(results)),
    )


def verdict(results: Results) -> str:
    """Which method is best on average, in a sentence."""
    means = {row["name"]: row["last"][AVERAGE]["mean"] for row in results["rows"]}
    best = max(means, key=means.__getitem__)
    columns = results["columns"][:-1]
    parts = "tasks" if len(results["tasks"]) == len(columns) else "classes"
    where = f"on average over {len(columns)} {parts}" if len(columns) > 1 else f"on {columns[0]}"
    told = f"After the last round {best} is best {where}: {means[best]:.1%}"
    if "source-only" in means and best != "source-only":
        told += f", {100 * (means[best] - means['source-only']):.1f} points above source-only"
    return f"{told}. Target labels measured this and chose nothing."


def table(block: Block) -> Table:
    """A block of results."""
    return Table(
        block.title,
        ("method", *block.columns),
        [(line.name, *(entry.text for entry in line.entries)) for line in block.lines],
        frozenset(
            (row, column + 1)
            for row, line in enumerate(block.lines)
            for column, entry in enumerate(line.entries)
            if entry.best
        ),
        frozenset(row for row, line in enumerate(block.lines) if line.from_paper),
    )


def accuracy_chart(results: Results, stored: Sequence[Mapping[str, Any]]) -> Chart:
    """Mean accuracy of each row by round; a training that has settled stays where it was."""
    longest = max(len(cell["oracle_curve"]) for cell in stored)
    lines = []
    for row in results["rows"]:
        found = [cell["oracle_curve"] for cell in stored if cell["row"] == row["name"]]
        filled = [[*curve, *[curve[-1]] * (longest - len(curve))] for curve in found if curve]
        means = [fmean(values) for values in zip(*filled, strict=True)]
        lines.append(Curve(row["name"], range(len(means)), means))
    note = "Mean over tasks and seeds, measured with true labels (oracle); no round was chosen by it."
    return Chart("accuracy", "Accuracy by round", note, plots.curves(lines, percent=True), wide=True)


def _versions(results: Results) -> list[tuple[str, str]]:
    """Every version that some cell was made with."""
    found: dict[str, dict[str, None]] = {}
    for each in results["versions"]:
        for name, version in each.items():
            found.setdefault(name, {})[version] = None
    return [(name, ", ".join(versions)) for name, versions in found.items()]
