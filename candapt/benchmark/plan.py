"""What a benchmark is to run: the cells of tasks × rows × seeds, and what makes a stored one valid."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from candapt.adaptation import check_settings
from candapt.benchmark.collections import Collection, ImageCollection, hash_of
from candapt.benchmark.suites import SUITES, Suite, TaskName, tasks_of
from candapt.cache import ActivationCache
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.runs import describe_settings
from candapt.settings import ImageChoice, Settings


@dataclass(frozen=True)
class Row:
    """A row of the tables: a method with its settings."""

    name: str
    folder: str
    """Where its results lie; letters, digits and hyphens."""
    settings: Settings


@dataclass(frozen=True)
class Cell:
    """One training."""

    task: TaskName
    row: Row
    seed: int

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.task.name} {self.row.name} seed {self.seed}"

    @property
    def settings(self) -> Settings:
        """Everything that decides it besides the data."""
        return replace(self.row.settings, seed=self.seed)

    def path(self, out: Path) -> Path:
        """Where its result is stored."""
        return self.saved(out).with_suffix(".json")

    def saved(self, out: Path) -> Path:
        """Folder for its checkpoints while it is trained."""
        return out / "cells" / self.task.folder / self.row.folder / f"seed-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """All of a benchmark."""

    suite_name: str
    collection: Collection
    tasks: tuple[TaskName, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    cache: ActivationCache = field(default_factory=ActivationCache)
    """Where the results of frozen layers are kept."""

    @property
    def suite(self) -> Suite:
        """What is known of it beforehand."""
        return SUITES[self.suite_name]

    @cached_property
    def cells(self) -> list[Cell]:
        """Seed by seed, so that a first look at everything comes early."""
        return [Cell(task, row, seed) for seed in self.seeds for task in self.tasks for row in self.rows]

    def identity(self, cell: Cell) -> dict[str, Any]:
        """What a stored result must have been made with; independent of where the files lie."""
        told = {
            "task": {"name": cell.task.name, "source": cell.task.source, "target": cell.task.target},
            "row": cell.row.name,
            "settings": portable_settings(cell.settings),
            "views": self.collection.views,
            "data": {name: self.collection.fingerprint(name) for name in (cell.task.source, cell.task.target)},
        }
        return dict(json.loads(json.dumps(told)))  # as it will be read again


def make_plan(
    suite_name: str,
    data: Path | None,
    settings: Mapping[str, Settings],
    *,
    seeds: Sequence[int] = (0,),
    tasks: Sequence[str] = (),
    images: ImageChoice | None = None,
    cache: Path | None = None,
    strict: bool = False,
) -> Plan:
    """Lay out a benchmark.

    Args:
        suite_name: a name in `SUITES`.
        data: where the suite's data is; the demonstration needs none.
        settings: the settings of each method to run, by its name.
        seeds: one run of everything for each.
        tasks: names of the tasks to run; all by default.
        images: what was chosen about image files.
        cache: folder of the activation cache; None for the user's.
        strict: refuse image files that do not decode and classes without one; otherwise they are left out.
    """
    if suite_name not in SUITES:
        raise UserError(f"There is no suite {suite_name!r}: choose one of {', '.join(SUITES)}.")
    suite = SUITES[suite_name]
    if suite.data and data is None:
        raise UserError(f"--data is missing: give {suite.data}.")
    if not seeds or not settings:
        raise UserError("There is nothing to run: name at least one method and one seed.")
    place = data or Path()
    for of_method in settings.values():
        check_settings(of_method)
    collection = suite.open(place, next(iter(settings.values())), images or ImageChoice())
    if isinstance(collection, ImageCollection):
        collection = replace(collection, strict=strict)
    wanted, rows = tasks_of(suite, place, tasks), make_rows(suite, settings)
    return Plan(suite_name, collection, wanted, rows, tuple(seeds), ActivationCache(cache))


def make_rows(suite: Suite, settings: Mapping[str, Settings]) -> tuple[Row, ...]:
    """The rows in the order of `METHODS`; a sweep makes several of each method that has its setting."""
    rows: list[Row] = []
    for method in (name for name in METHODS if name in settings):
        chosen, sweep = settings[method], suite.sweep
        if sweep is None or sweep.setting not in {f.name for f in fields(METHODS[method].Settings)}:
            rows.append(Row(method, method, chosen))
            continue
        for value in sweep.values:
            changed = replace(chosen, adaptation=replace(chosen.adaptation, **{sweep.setting: value}))
            name = f"{method} {sweep.symbol}={value:g}"
            rows.append(Row(name, f"{method}-{sweep.setting}-{value:g}", changed))
    return tuple(rows)


def portable_settings(settings: Settings) -> dict[str, Any]:
    """Settings as plain values, without what changes no stored figure or differs from machine to machine."""
    told = describe_settings(settings)
    told["training"].pop("workers")
    told.pop("select")  # the choice among stored rounds is made when they are read
    if settings.network.weights is not None:
        told["network"]["weights"] = f"{settings.network.weights.name} ({hash_of(settings.network.weights)})"
    return told
