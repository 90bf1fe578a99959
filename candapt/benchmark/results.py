"""From stored cells to the figures of the tables. What is here depends on the cells alone, not on how they were run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Any

from candapt.benchmark.plan import Cell, Plan, Row
from candapt.benchmark.published import AVERAGE

KINDS = ("last", "chosen", "oracle")
"""The accuracies of a cell: of the last round, of the one chosen without labels, of the best one by true labels."""
SPREAD = "sample standard deviation over seeds (divided by n - 1)"

Stored = Mapping[str, Any]
Values = dict[str, float]
"""By column."""


def are_rounds(value: Any) -> bool:
    """Whether that is what the examiner tells of rounds."""
    return isinstance(value, list) and all(
        isinstance(told, dict)
        and all(isinstance(told.get(name), int | float) for name in ("round", "accuracy", "mean_class_accuracy"))
        and all(isinstance(each, int | float) for name, each in told.items() if name != "class_accuracies")
        for told in value
    )


def is_complete(content: Stored) -> bool:
    """Whether a cell's file has all that the tables are made of, of the right kinds."""
    number = (int, float)
    kinds: dict[str, Any] = {"seconds": number, "rounds": int, "threads": int, "samples": dict, "versions": dict}
    measured = [content.get(kind) for kind in KINDS]
    network, chosen = content.get("network"), content.get("chosen")
    return (
        all(isinstance(content.get(name), kind) for name, kind in kinds.items())
        and isinstance(network, dict)
        and all(isinstance(network.get(name), str) for name in ("backbone", "finetune"))
        and all(isinstance(told, dict) and isinstance(told.get("accuracy"), number) for told in measured)
        and all(
            isinstance(each, dict) and each and all(isinstance(value, number) for value in each.values())
            for each in (told["class_accuracies"] for told in measured if told and "class_accuracies" in told)
        )
        and isinstance(chosen, dict)
        and isinstance(chosen.get("rule"), str)
        and are_rounds(content.get("each_round"))
        and bool(content["each_round"])
        and isinstance(content.get("oracle_curve"), list)
        and bool(content["oracle_curve"])
        and all(isinstance(value, number) for value in content["oracle_curve"])
    )


def summarize(plan: Plan, stored: Sequence[Stored]) -> dict[str, Any]:
    """The content of `results.json`.

    Args:
        plan: what was run.
        stored: the content of each cell's file, in the order of the plan's cells.
    """
    suite, paper = plan.suite, plan.suite.paper
    columns = list(stored[0]["last"]["class_accuracies"]) if suite.by_class else [task.name for task in plan.tasks]
    found = list(zip(plan.cells, stored, strict=True))
    return {
        "suite": plan.suite_name,
        "title": suite.title,
        "protocol": suite.protocol,
        "spread": SPREAD,
        "rule": stored[0]["chosen"]["rule"],
        "tasks": [
            next(told["task"] | {"samples": told["samples"]} for cell, told in found if cell.task == task)
            for task in plan.tasks
        ],
        "seeds": list(plan.seeds),
        "networks": _distinct(cell["network"] for cell in stored),
        "versions": _distinct(cell["versions"] for cell in stored),
        "paper": {"label": paper.label, "place": paper.place, "note": paper.note} if paper else None,
        "columns": [*columns, AVERAGE],
        "rows": [_row(plan, row, [pair for pair in found if pair[0].row == row], columns) for row in plan.rows],
    }


def timing(stored: Sequence[Stored]) -> dict[str, Any]:
    """The content of `timing.json`: what differs from run to run."""
    rows = {cell["row"]: [other["seconds"] for other in stored if other["row"] == cell["row"]] for cell in stored}
    return {
        "seconds": round(sum(cell["seconds"] for cell in stored), 2),
        "mean_seconds": {row: round(fmean(seconds), 2) for row, seconds in rows.items()},
        "cells": [
            {
                "task": cell["task"]["name"],
                "row": cell["row"],
                "seed": cell["settings"]["seed"],
                **{name: cell[name] for name in ("seconds", "rounds", "threads")},
            }
            for cell in stored
        ],
    }


def _row(plan: Plan, row: Row, found: Sequence[tuple[Cell, Stored]], columns: Sequence[str]) -> dict[str, Any]:
    """All that is known of one row."""
    settings = {name: value for name, value in found[0][1]["settings"].items() if name != "seed"}
    return {
        "name": row.name,
        "method": row.settings.method,
        "settings": settings,
        "rounds": {task.name: [told["rounds"] for cell, told in found if cell.task == task] for task in plan.tasks},
        **{kind: _figures(found, kind, columns) for kind in KINDS},
        "paper": _paper(plan, row, columns),
    }


def _figures(found: Sequence[tuple[Cell, Stored]], kind: str, columns: Sequence[str]) -> dict[str, Any]:
    """Mean, spread and single values of each column, over seeds; the average is taken seed by seed."""
    by_seed: dict[int, Values] = {}
    for cell, told in found:
        measured = told[kind]
        values = measured.get("class_accuracies") or {cell.task.name: measured["accuracy"]}
        by_seed.setdefault(cell.seed, {}).update(values)
    for values in by_seed.values():
        values[AVERAGE] = fmean(values[name] for name in columns)
    return {name: _spread([values[name] for values in by_seed.values()]) for name in (*columns, AVERAGE)}


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None, "values": values}


def _paper(plan: Plan, row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """The paper's figures of the row, in percent; its average only stands where all its tasks were run."""
    published = plan.suite.paper
    figures = published.figures.get(row.name, {}) if published else {}
    wanted = (*columns, AVERAGE) if plan.tasks == plan.suite.tasks else columns
    return {name: asdict(figures[name]) for name in wanted if name in figures}


def _distinct(items: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept
