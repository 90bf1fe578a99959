"""Targets as people have them, with classes missing, thinned out or unknown: `python -m benchmarks.real_targets`.

Every cell, one training on one target, is stored below `--out` as soon as it is there; repeat the command to train
those that are missing. The parts that are measured were chosen on PACS and digits. Office-31 is only measured.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.record import distinct, record
from benchmarks.suites import FEATURES, PACS
from candapt.adaptation import Result, adapt
from candapt.assessment import BASELINE, Evidence, assess, train_baseline
from candapt.commands.auto import TRIED, choose
from candapt.data.domains import ArraySamples, Domain, Task
from candapt.data.features import labeled_arrays
from candapt.evaluation.unknown import LIKELY
from candapt.presets import make_settings
from candapt.storage.files import write_json
from candapt.storage.provenance import measured_with

Array = np.ndarray[Any, Any]

DOMAINS = {"office31": ("amazon", "dslr", "webcam"), "pacs": ("art_painting", "cartoon", "photo", "sketch")}
FILES = {"office31": FEATURES, "pacs": PACS}
SHARED = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)  # the ten classes that Office-31 has in common with Caltech
OTHERS = (
    "pen",
    "phone",
    "printer",
    "punchers",
    "ring_binder",
    "ruler",
    "scissors",
    "speaker",
    "stapler",
    "tape_dispenser",
    "trash_can",
)  # unknown objects of the open tasks
CASES = ("full", "partial", "open", "thinned")
METHODS = {"full": TRIED, "partial": TRIED}  # of `auto`
RATIO = 10  # of the share that a thinned target keeps of one class to that of another
KEPT = 4  # classes of PACS that a target keeps, or that a source has


@dataclass(frozen=True)
class Cell:
    """One training."""

    collection: str
    case: str
    source: str
    target: str
    method: str
    seed: int
    right_classes: bool = False  # whether the source has only the classes that the target has

    @property
    def name(self) -> str:
        """Name of its file."""
        parts = (self.collection, self.case, self.source, self.target, self.method, str(self.seed))
        return ".".join(parts) + ".right" * self.right_classes


def cells(collections: Sequence[str], seeds: Sequence[int], cases: Sequence[str], auto: bool) -> Iterator[Cell]:
    """All trainings; the methods that `auto` compares only where they are asked for."""
    for seed in seeds:
        for collection in collections:
            for case in cases:
                for source, target in permutations(DOMAINS[collection], 2):
                    methods = METHODS.get(case, ("can",)) if auto else ("can",)
                    yield from (Cell(collection, case, source, target, method, seed) for method in methods)
                    if collection == "pacs" and case == "partial":
                        yield Cell(collection, case, source, target, "can", seed, right_classes=True)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", nargs="*", default=list(DOMAINS), choices=list(DOMAINS))
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--auto", action="store_true", help="Train the methods that `auto` compares too.")
    parser.add_argument("--out", type=Path, default=Path("runs/real-targets"))
    parser.add_argument("--finished", action="store_true", help="Train nothing; record what is finished.")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for cell in cells(options.collections, options.seeds, options.cases, options.auto):
        path = options.out / f"{cell.name}.json"
        if not path.exists() and not options.finished:
            write_json(path, {**asdict(cell), **measured(cell), "measured_with": measured_with()})
            print(f"{cell.name} {json.loads(path.read_text())['accuracy']:.1%}", flush=True)
        if path.exists():
            results.append(json.loads(path.read_text(encoding="utf-8")))
    made = distinct([result.pop("measured_with") for result in results])
    content = {"summary": summarize(results), "auto": auto(results), "cells": results}
    record("real-targets", {"measured_with": made, **content})


@cache
def domain(collection: str, name: str) -> tuple[Array, Array, tuple[str, ...]]:
    """Features, labels and class names."""
    with np.load(FILES[collection]) as file:
        classes = tuple(str(each) for each in file["classes"])
        return file[f"{name}_x"].astype(np.float32), file[f"{name}_y"].astype(np.int64), classes


def problem(cell: Cell) -> tuple[Task, Array, int]:
    """The task of a cell, the true labels of its target, -1 for unknown objects, and the number of classes."""
    sx, sy, classes = domain(cell.collection, cell.source)
    tx, ty, _ = domain(cell.collection, cell.target)
    chosen, others = _classes(cell, classes)
    if cell.case == "partial":
        rows = np.isin(ty, chosen)
        tx, ty = tx[rows], ty[rows]
    if cell.case == "open":
        rows = np.isin(ty, [*chosen, *others])
        tx, ty = tx[rows], ty[rows]
    if cell.case == "open" or cell.right_classes:
        rows = np.isin(sy, chosen)
        sx, sy = sx[rows], sy[rows]
    if cell.case == "thinned":
        rows = _thinned_rows(cell)
        tx, ty = tx[rows], ty[rows]
    names = np.unique(sy)
    truth = np.where(np.isin(ty, names), np.searchsorted(names, ty).clip(0, len(names) - 1), -1)
    source = labeled_arrays(sx, np.searchsorted(names, sy), where=cell.source)
    return Task(source, Domain(ArraySamples(tx))), truth, len(names)


def _classes(cell: Cell, classes: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """The classes that the target of a partial task has, or the source of an open one, and the unknown ones."""
    if cell.collection == "office31":
        return [classes.index(name) for name in SHARED], [classes.index(name) for name in OTHERS]
    places = [DOMAINS["pacs"].index(name) for name in (cell.source, cell.target)]
    order = np.random.default_rng([3, *places]).permutation(len(classes)).tolist()
    return order[:KEPT], order[KEPT:]


def _thinned_rows(cell: Cell) -> Array:
    return thinned(domain(cell.collection, cell.target)[1], np.random.default_rng([7, *map(ord, cell.target)]))


def thinned(labels: Array, random: np.random.Generator) -> Array:
    """Rows of a target of which one class keeps all samples, another a tenth, at least 3, the rest shares between."""
    classes = np.unique(labels)
    shares = random.permutation(np.geomspace(1 / RATIO, 1, len(classes)))
    rows = [random.permutation(np.flatnonzero(labels == each)) for each in classes]
    kept = [each[: max(3, round(share * len(each)))] for each, share in zip(rows, shares, strict=True)]
    return np.sort(np.concatenate(kept))


def measured(cell: Cell) -> dict[str, Any]:
    """Train a cell and measure it."""
    _, truth, classes = problem(cell)
    result = trained(cell)
    if cell.method != "can":  # these are only compared with each other, which needs no baseline
        return figures(result, assess(result), truth, classes)
    baseline = train_baseline(result)
    plain = {"source_only": float((baseline.predictions.labels.numpy() == truth).mean())}
    if cell.case == "thinned":  # what the whole target would have given for the same samples
        labels = trained(replace(cell, case="full")).predictions.labels.numpy()
        plain["whole_target"] = float((labels[_thinned_rows(cell)] == truth).mean())
    return {**plain, **figures(result, assess(result, baseline), truth, classes)}


@lru_cache(maxsize=16)
def trained(cell: Cell) -> Result:
    """The training of a cell; a full one serves the thinned target too."""
    return adapt(problem(cell)[0], make_settings(cell.method, seed=cell.seed))


def figures(result: Result, evidence: Evidence, truth: Array, classes: int) -> dict[str, Any]:
    """What is measured of a training; a prediction for an unknown object is wrong."""
    labels, known = result.predictions.labels.numpy(), truth >= 0
    assert evidence.estimate is not None
    content = {
        "samples": len(truth),
        "accuracy": float((labels == truth).mean()),
        "known_accuracy": float((labels == truth)[known].mean()),
        "estimate": evidence.estimate.value,
        "warnings": [finding.kind for finding in evidence.findings],
    }
    if evidence.proportions is not None:
        shares = np.bincount(truth[known], minlength=classes) / known.sum()
        content["total_variation"] = float(np.abs(evidence.proportions.target.numpy() - shares).sum() / 2)
        content["differ"] = evidence.proportions.differ
    if evidence.unknown is not None:
        called = evidence.unknown.numpy() > LIKELY
        right = float(((labels == truth) & ~called)[known].mean())
        content |= {"called_unknown": float(called.mean()), "known_right": right}
        if not known.all():
            caught = float(called[~known].mean())
            content["auc"] = float(roc_auc_score(~known, evidence.unknown.numpy()))
            content["unknown_right"] = caught
            content["h_score"] = 2 * right * caught / (right + caught) if right + caught else 0.0
    return content


def summarize(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means by collection, case and method."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in results:
        name = f"{each['collection']} {each['case']} {each['method']}{' right classes' * each['right_classes']}"
        groups.setdefault(name, []).append(each)
    return {name: _means(group) for name, group in groups.items()}


def _means(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean of every figure of a group, how many trainings had a warning, and the error of the estimate."""
    names = (
        "accuracy",
        "known_accuracy",
        "source_only",
        "whole_target",
        "total_variation",
        "called_unknown",
        "auc",
        "h_score",
    )
    means: dict[str, Any] = {"trainings": len(group)}
    for name in names:
        values = [each[name] for each in group if name in each]
        means |= {name: fmean(values)} if values else {}
    means["estimate_error"] = fmean(abs(each["estimate"] - each["accuracy"]) for each in group)
    means["warned"] = fmean(bool(each["warnings"]) for each in group)
    return means


def auto(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `--method auto` would have kept, by the estimates of the methods trained on a task."""
    tasks: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for each in results:
        if not each["right_classes"]:
            place = (each["collection"], each["case"], each["source"], each["target"], each["seed"])
            tasks.setdefault(place, {})[each["method"]] = each
    groups: dict[str, list[dict[str, dict[str, Any]]]] = {}
    for place, methods in tasks.items():
        if len(methods) == len(TRIED):
            groups.setdefault(f"{place[0]} {place[1]}", []).append(methods)
    return {name: auto_figures(group) for name, group in groups.items()}


def auto_figures(group: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Mean accuracies of every method and of what is kept, which is how often what, and how far below source-only."""
    tried = [name for name in TRIED if all(name in each for each in group)]
    kept = [choose({name: each[name]["estimate"] for name in tried}) for each in group]
    accuracy = [each[name]["accuracy"] for each, name in zip(group, kept, strict=True)]
    harm = [each[BASELINE]["accuracy"] - own for each, own in zip(group, accuracy, strict=True)]
    means = {name: fmean(each[name]["accuracy"] for each in group) for name in tried}
    counts = {name: kept.count(name) for name in tried}
    return {"tasks": len(group), "auto": fmean(accuracy), "methods": means, "kept": counts, "most_below": max(harm)}


if __name__ == "__main__":
    main()
