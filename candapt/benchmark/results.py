"""From stored cells to the figures of the tables, which depend on the cells alone."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Any

from candapt.benchmark.plan import Cell, Plan, Row
from candapt.benchmark.published import AVERAGE

KINDS = ("last", "chosen", "oracle")
"""The accuracies of a cell: of the last round, of the one chosen without labels, of the best one by true labels."""
SPREAD = "sample standard deviation over seeds (divided by n - 1)"
NUMBER = (int, float)

Stored = dict[str, Any]  # the content of a cell's file
Provenance = dict[str, Any]  # commit, code, threads, processor, command and date of a cell


def are_rounds(value: Any) -> bool:
    """Whether the value is a list of measured rounds."""
    return isinstance(value, list) and all(
        _has(measured, round=NUMBER, accuracy=NUMBER, mean_class_accuracy=NUMBER)
        and all(isinstance(each, NUMBER) for name, each in measured.items() if name != "class_accuracies")
        for measured in value
    )


def is_complete(content: Stored) -> bool:
    """Whether a cell's file has everything that the tables need, of the right types."""
    measured: list[Any] = [content.get(kind) for kind in KINDS]
    return (
        _has(content, seconds=NUMBER, rounds=int, threads=int, samples=dict, versions=dict)
        and _has(content.get("network"), backbone=str, finetune=str)
        and _has(content.get("chosen"), rule=str)
        and all(_has(each, accuracy=NUMBER) for each in measured)
        and all(_are_numbers(each["class_accuracies"], dict) for each in measured if "class_accuracies" in each)
        and _has(content.get("provenance", {}))
        and all(isinstance(each, str | int | None) for each in content.get("provenance", {}).values())
        and are_rounds(content.get("each_round"))
        and bool(content["each_round"])
        and _are_numbers(content.get("oracle_curve"), list)
    )


def _has(content: Any, **kinds: Any) -> bool:
    """Whether the content is a dictionary with values of these types."""
    return isinstance(content, dict) and all(isinstance(content.get(name), kind) for name, kind in kinds.items())


def _are_numbers(content: Any, kind: type) -> bool:
    """Whether the content is a list or dictionary, as wanted, of at least one number."""
    values = content.values() if isinstance(content, dict) else content
    return isinstance(content, kind) and bool(content) and all(isinstance(value, NUMBER) for value in values)


def provenance_of_cell(content: Stored) -> Provenance:
    """What a cell was measured with; None for what older versions did not store."""
    unknown = dict.fromkeys(("commit", "code", "threads", "processor", "command", "date"))
    return {**unknown, "threads": content["threads"], **content.get("provenance", {})}


def summarize(plan: Plan, stored: Sequence[Stored]) -> dict[str, Any]:
    """The content of `results.json`, from each cell's file in the order of the plan's cells."""
    suite, paper = plan.suite, plan.suite.paper
    columns = list(stored[0]["last"]["class_accuracies"]) if suite.by_class else [task.name for task in plan.tasks]
    cells = list(zip(plan.cells, stored, strict=True))
    return {
        "suite": plan.suite_name,
        "title": suite.title,
        "protocol": suite.protocol,
        "spread": SPREAD,
        "rule": stored[0]["chosen"]["rule"],
        "tasks": [
            next(content["task"] | {"samples": content["samples"]} for cell, content in cells if cell.task == task)
            for task in plan.tasks
        ],
        "seeds": list(plan.seeds),
        "networks": _distinct([content["network"] for content in stored]),
        "versions": _distinct([content["versions"] for content in stored]),
        "measured_with": {  # threads differ with --jobs and are in timing.json, as everything else of each cell
            name: _distinct([provenance_of_cell(content)[name] for content in stored])
            for name in ("commit", "code", "processor")
        },
        "paper": {"label": paper.label, "place": paper.place, "note": paper.note} if paper else None,
        "columns": [*columns, AVERAGE],
        "rows": [_row(plan, row, [pair for pair in cells if pair[0].row == row], columns) for row in plan.rows],
    }


def timing(stored: Sequence[Stored]) -> dict[str, Any]:
    """The content of `timing.json`: what differs from run to run."""
    rows = {cell["row"]: [other["seconds"] for other in stored if other["row"] == cell["row"]] for cell in stored}
    return {
        "seconds": round(sum(cell["seconds"] for cell in stored), 2),
        "mean_seconds": {row: round(fmean(seconds), 2) for row, seconds in rows.items()},
        "cells": [
            {"task": cell["task"]["name"], "row": cell["row"], "seed": cell["settings"]["seed"]}
            | {name: cell[name] for name in ("seconds", "rounds", "threads")}
            | {"provenance": provenance_of_cell(cell)}
            for cell in stored
        ],
    }


def _row(plan: Plan, row: Row, cells: Sequence[tuple[Cell, Stored]], columns: Sequence[str]) -> dict[str, Any]:
    """Everything about one row."""
    rounds = {task.name: [content["rounds"] for cell, content in cells if cell.task == task] for task in plan.tasks}
    return {
        "name": row.name,
        "method": row.settings.method,
        "settings": {name: value for name, value in cells[0][1]["settings"].items() if name != "seed"},
        "rounds": rounds,
        **{kind: _figures(cells, kind, columns) for kind in KINDS},
        "paper": published_figures(plan, row, columns),
    }


def _figures(cells: Sequence[tuple[Cell, Stored]], kind: str, columns: Sequence[str]) -> dict[str, Any]:
    """Mean, spread and single values of each column, over seeds; the average is taken seed by seed."""
    by_seed: dict[int, dict[str, float]] = {}
    for cell, content in cells:
        accuracies = content[kind].get("class_accuracies") or {cell.task.name: content[kind]["accuracy"]}
        by_seed.setdefault(cell.seed, {}).update(accuracies)
    for values in by_seed.values():
        values[AVERAGE] = fmean(values[name] for name in columns)
    return {name: _spread([values[name] for values in by_seed.values()]) for name in (*columns, AVERAGE)}


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None, "values": values}


def published_figures(plan: Plan, row: Row, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The paper's figures of the row, in percent; its average only appears where all its tasks were run."""
    published = plan.suite.paper
    figures = published.figures.get(row.published_name, {}) if published else {}
    columns = [task.name for task in plan.tasks] if columns is None else columns
    wanted = (*columns, AVERAGE) if plan.tasks == plan.suite.tasks else columns
    return {name: asdict(figures[name]) for name in wanted if name in figures}


def _distinct(items: Sequence[Any]) -> list[Any]:
    return [item for place, item in enumerate(items) if item not in items[:place]]
