"""What a benchmark runs: the cells of tasks × rows × seeds, and what makes a stored result valid."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from candapt.benchmark.collections import Collection, ImageCollection, Problem, hash_of
from candapt.benchmark.suites import SUITES, Suite, TaskName, tasks_of
from candapt.errors import UserError, known_name
from candapt.evaluation.scores import check_selection
from candapt.methods import METHODS
from candapt.network.activations import ActivationCache
from candapt.network.backbones import PAPER_BACKBONE
from candapt.network.build import PHOTOGRAPH, decide
from candapt.settings import ImageChoice, Settings
from candapt.storage.runs import describe_settings
from candapt.training.precision import decide_precision


@dataclass(frozen=True)
class Row:
    """A row of the tables: a method with its settings."""

    name: str
    folder: str  # folder of its results; letters, digits and hyphens
    settings: Settings
    by_task: Mapping[str, Settings] = field(default_factory=dict, compare=False)
    """Other settings for some tasks, by their names."""
    variant: str = ""  # part of the name, in brackets: the preset

    @property
    def published_name(self) -> str:
        """Its name in the paper's tables, which has no variants."""
        return self.name.replace(f" ({self.variant})", "")


@dataclass(frozen=True)
class Cell:
    """One training."""

    task: TaskName
    row: Row
    seed: int

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.task.name} {self.row.name} seed {self.seed}"

    @property
    def settings(self) -> Settings:
        """Everything that decides it besides the data."""
        return replace(self.row.by_task.get(self.task.name, self.row.settings), seed=self.seed)

    def path(self, out: Path) -> Path:
        """Where its result is stored."""
        return self.saved(out).with_suffix(".json")

    def predictions_path(self, out: Path) -> Path:
        """Where its predictions are stored."""
        return self.saved(out).with_suffix(".npz")

    def saved(self, out: Path) -> Path:
        """Folder for its checkpoints while it is trained."""
        return out / "cells" / f"{self.task.source}-to-{self.task.target}" / self.row.folder / f"seed-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """All of a benchmark."""

    suite_name: str
    collection: Collection
    tasks: tuple[TaskName, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    cache: ActivationCache = field(default_factory=ActivationCache)  # where outputs of frozen layers are stored

    @property
    def suite(self) -> Suite:
        """Its suite."""
        return SUITES[self.suite_name]

    @cached_property
    def cells(self) -> list[Cell]:
        """Seed by seed, so that a first result for everything comes early."""
        return [Cell(task, row, seed) for seed in self.seeds for task in self.tasks for row in self.rows]

    def problem(self, cell: Cell) -> Problem:
        """What a cell trains on, and how it is measured."""
        return self.collection.problem(cell.task.source, cell.task.target, cell.seed)

    def identity(self, cell: Cell) -> dict[str, Any]:
        """What a stored result must have been made with; independent of where the files are."""
        identity = {
            "task": {"name": cell.task.name, "source": cell.task.source, "target": cell.task.target},
            "row": cell.row.name,
            "settings": portable_settings(cell.settings, has_images=self.collection.images is not None),
            "views": self.collection.views,
            "data": {name: self.collection.fingerprint(name) for name in (cell.task.source, cell.task.target)},
        }
        return dict(json.loads(json.dumps(identity)))  # as it will be read again


def make_plan(
    suite_name: str,
    data: Path | None,
    settings: Mapping[str, Settings],
    *,
    seeds: Sequence[int] = (0,),
    tasks: Sequence[str] = (),
    by_task: Mapping[str, Mapping[str, Settings]] | None = None,
    variant: str = "",
    images: ImageChoice | None = None,
    cache: Path | None = None,
    strict: bool = False,
) -> Plan:
    """A plan that runs each method with its settings, on the named tasks or all, once per seed.

    `by_task` has other settings of a method for some tasks. The `variant`, such as the name of a preset, becomes a part
    of the rows' names. `cache` is the folder for outputs of frozen layers, by default the user's. `strict` raises for
    image files that do not decode and for classes without an image, rather than leave them out.
    """
    suite = SUITES[known_name(suite_name, SUITES, "suite")]
    if suite.data and data is None:
        raise UserError(f"--data is missing: give {suite.data}.")
    if not seeds or not settings:
        raise UserError("There is nothing to run: name at least one method and one seed.")
    place = data or Path()
    for each in settings.values():
        check_selection(each.select)
    collection = suite.open(place, next(iter(settings.values())), images or ImageChoice())
    if isinstance(collection, ImageCollection):
        collection = replace(collection, strict=strict)
    if collection.images is not None:
        settings = {method: _with_backbone(each) for method, each in settings.items()}
        by_task = {m: {task: _with_backbone(each) for task, each in own.items()} for m, own in (by_task or {}).items()}
    wanted, rows = tasks_of(suite, place, tasks), make_rows(suite, settings, by_task or {}, variant)
    return Plan(suite_name, collection, wanted, rows, tuple(seeds), ActivationCache(cache))


def _with_backbone(settings: Settings) -> Settings:
    """The settings with the backbone named if it is not the one that `auto` means where its weights can be had."""
    name = decide(settings.network, PHOTOGRAPH).backbone
    is_other = settings.network.backbone == "auto" and name != PAPER_BACKBONE
    return settings.changed({"network.backbone": name}) if is_other else settings


def make_rows(
    suite: Suite,
    settings: Mapping[str, Settings],
    by_task: Mapping[str, Mapping[str, Settings]] | None = None,
    variant: str = "",
) -> tuple[Row, ...]:
    """The rows in the order of `METHODS`; a sweep makes several of each method that has its setting."""
    rows, sweep = list[Row](), suite.sweep
    for method in (name for name in METHODS if name in settings):
        chosen, own = settings[method], (by_task or {}).get(method, {})
        title, folder = (f"{method} ({variant})", f"{method}-{variant}") if variant else (method, method)
        if sweep is None or not chosen.has(f"{method}.{sweep.setting}"):
            rows.append(Row(title, folder, chosen, own, variant))
            continue
        for value in sweep.values:
            change = {f"{method}.{sweep.setting}": value}
            changed = {task: each.changed(change) for task, each in own.items()}
            name, place = f"{title} {sweep.symbol}={value:g}", f"{folder}-{sweep.setting}-{value:g}"
            rows.append(Row(name, place, chosen.changed(change), changed, variant))
    return tuple(rows)


def portable_settings(settings: Settings, *, has_images: bool = False) -> dict[str, Any]:
    """Settings as plain values, without those that change no stored figure or differ from machine to machine.

    What a machine decides is stored as decided, so that figures of two kinds do not end up in one table.
    """
    portable, training, network = describe_settings(settings), settings.training, settings.network
    if has_images:
        network = decide(network, PHOTOGRAPH)
        training = decide_precision(training, network)
    portable["network"]["views"] = 2 if network.views is None else network.views
    portable["training"]["precision"] = "32-true" if training.precision == "auto" else training.precision
    portable["training"].pop("workers")
    portable.pop("select")  # the choice among stored rounds is made when they are read
    if settings.network.weights is not None:
        portable["network"]["weights"] = f"{settings.network.weights.name} ({hash_of(settings.network.weights)})"
    return portable
