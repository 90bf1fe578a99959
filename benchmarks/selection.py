"""How well each label-free score chooses, over a benchmark's cells: `python -m benchmarks.selection OUT [OUT…]`.

OUT is the folder of a `candapt benchmark` whose methods include source-only. Labels are used to judge, never to choose.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import spearmanr

from benchmarks.record import distinct, record
from candapt.benchmark.results import provenance_of_cell
from candapt.evaluation.scores import SCORES, choose_round, merit
from candapt.settings import LAST

BASELINE = "source-only"

Cell = dict[str, Any]


def main() -> None:
    cells = [cell for folder in sys.argv[1:] for cell in read_cells(Path(folder))]
    rules = {name: judge(known, name) for name in (LAST, *SCORES) if (known := scored(cells, name))}
    content = {
        "cells": len(cells),
        "methods": sorted({cell["row"] for cell in cells}),
        "tasks": sorted({cell["task"]["name"] for cell in cells}),
        "seeds": sorted({cell["settings"]["seed"] for cell in cells}),
        "oracle": mean(max(accuracies(cell)) for cell in cells),
        "source_only": mean(accuracies(cell)[-1] for cell in cells if cell["row"] == BASELINE),
        "rules": rules,
        "measured_with": distinct([provenance_of_cell(cell) for cell in cells]),
    }
    print(json.dumps(content, indent=2))
    record("selection", content)


def read_cells(folder: Path) -> list[Cell]:
    """The stored cells of a benchmark."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("cells/*/*/seed-*.json"))]


def scored(cells: Sequence[Cell], rule: str) -> list[Cell]:
    """Cells of the tasks and seeds that have the score: one that is new is not in stored cells.

    A score that a method cannot have, as source-only has no filter, does not leave its cells out.
    """
    plain = [cell for cell in cells if cell["row"] == BASELINE]
    if any(_has(cell, rule) for cell in plain):
        having = {place(cell) for cell in plain if _has(cell, rule)}
        return [cell for cell in cells if place(cell) in having]
    return list(cells) if any(_has(cell, rule) for cell in cells) else []


def _has(cell: Cell, rule: str) -> bool:
    return merit(cell["each_round"][-1], rule) is not None


def place(cell: Cell) -> tuple[str, int]:
    """Task and seed of a cell."""
    return cell["task"]["name"], cell["settings"]["seed"]


def accuracies(cell: Cell) -> list[float]:
    """True accuracy after each round that could be chosen."""
    return [measured["accuracy"] for measured in cell["each_round"] if not measured["warmup"]]


def judge(cells: Sequence[Cell], rule: str) -> dict[str, float | None]:
    """What a rule chooses, and how it ranks rounds of one run and runs of one task.

    Returns:
        cells: how many it was judged by.
        accuracy: of the rounds that it chooses, on average.
        loss: what the oracle's rounds have more.
        worst_task: the least that all methods together gain over source-only on a task.
        worst_row: the least that one method gains over source-only on a task, seeds averaged.
        rounds: rank correlation with true accuracy over the rounds of a run, mean of the runs.
        runs: the same over the last rounds of all methods and seeds on a task, mean of the tasks.
    """
    chosen = [cell["each_round"][choose_round(cell["each_round"], rule)]["accuracy"] for cell in cells]
    plain = by_task([cell for cell in cells if cell["row"] == BASELINE], lambda cell: accuracies(cell)[-1])
    gains = defaultdict(list)
    for cell, accuracy in zip(cells, chosen, strict=True):
        if cell["row"] != BASELINE:
            gains[cell["task"]["name"], cell["row"]].append(accuracy - mean(plain[cell["task"]["name"]]))
    tasks = {task for task, _ in gains}
    last_rounds = by_task(cells, lambda cell: cell["each_round"][-1])
    return {
        "cells": len(cells),
        "accuracy": mean(chosen),
        "loss": mean(max(accuracies(cell)) for cell in cells) - mean(chosen),
        "worst_task": min(mean(g for (t, _), each in gains.items() if t == task for g in each) for task in tasks),
        "worst_row": min(mean(each) for each in gains.values()),
        "rounds": _mean([correlation(cell["each_round"], rule) for cell in cells]),
        "runs": None if rule == LAST else _mean([correlation(rounds, rule) for rounds in last_rounds.values()]),
    }


def by_task(cells: Sequence[Cell], value: Any) -> dict[str, list[Any]]:
    """A value of each cell, by the name of its task."""
    values: dict[str, list[Any]] = defaultdict(list)
    for cell in cells:
        values[cell["task"]["name"]].append(value(cell))
    return values


def correlation(rounds: Sequence[Mapping[str, Any]], rule: str) -> float | None:
    """Spearman's rank correlation of merit and true accuracy; None where either is the same throughout."""
    pairs = [(value, each["accuracy"]) for each in rounds if (value := merit(each, rule)) is not None]
    if any(len(set(column)) < 2 for column in zip(*pairs, strict=True)) or len(pairs) < 3:
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


if __name__ == "__main__":
    main()
