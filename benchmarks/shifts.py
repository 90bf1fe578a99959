"""Trainings on PACS and digits, as they are and with made faults, whose target labels may be looked at.

Calibration, estimate and alarm are fitted and measured on them. Each training is stored as soon as it is there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.suites import PACS, SHARED
from candapt.adaptation import Result, adapt
from candapt.assessment import BASELINE, as_baseline, train_baseline
from candapt.benchmark.collections import DemoCollection, DigitCollection
from candapt.benchmark.suites import SHORT
from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Side, Task, part_of
from candapt.data.features import labeled_arrays
from candapt.evaluation.confidence import Kind
from candapt.methods.base import Method
from candapt.presets import make_settings
from candapt.storage.provenance import measured_with
from candapt.training.callbacks import Callback
from candapt.training.loop import Training
from candapt.training.outputs import outputs_of

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
DIGITS = (("digits", "mnist", "usps"), ("digits", "usps", "mnist"), ("demo", "rendered", "handwritten"))
FAULTS = ("as it is", "classes missing", "label noise")
METHODS = {"as it is": (BASELINE, "can", "mcc"), "classes missing": ("can",), "label noise": ("can",)}
NOISE = 0.4  # share of the source's labels that label noise replaces at random

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One training."""

    collection: str  # pacs, digits or demo
    source: str
    target: str
    method: str
    fault: str
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of its file."""
        parts = (self.collection, self.source, self.target, self.method, self.fault.replace(" ", "-"), str(self.seed))
        return ".".join(parts)

    @property
    def kind(self) -> Kind:
        """PACS are pretrained features; networks for digits start at random."""
        return "pretrained" if self.collection == "pacs" else "scratch"


@dataclass(frozen=True, eq=False)
class Stored:
    """What a training gave."""

    case: Case
    classes: int
    truth: Tensor  # true class of each target sample
    probabilities: Tensor
    cluster_labels: Tensor
    base_probabilities: Tensor  # of the source-only network
    base_cluster_labels: Tensor
    source: Tensor  # untouched features
    source_labels: Tensor
    target: Tensor  # untouched features
    provenance: dict[str, Any]
    per_class: tuple[int, int] | None = None  # samples of target and source per class if there are only a few


def cases() -> Iterator[Case]:
    """All trainings."""
    tasks = [*DIGITS, *(("pacs", a, b) for a, b in permutations(DOMAINS, 2))]
    for fault, methods in METHODS.items():
        yield from (Case(*task, method, fault) for method in methods for task in tasks)


def stored(case: Case, folder: Path) -> Stored:
    """A training's results; it runs if the folder does not have them."""
    path = folder / f"{case.name}.npz"
    if not path.exists():
        run(case, path)
    with np.load(path) as arrays:
        tensors = {name: torch.as_tensor(arrays[name]) for name in arrays.files if name != "provenance"}
        provenance = json.loads(str(arrays["provenance"]))
    if case.kind == "pretrained":
        sx, sy, tx, _ = with_fault(case, *pacs(case.source), *pacs(case.target))
        tensors |= {"source": torch.as_tensor(sx), "source_labels": torch.as_tensor(sy), "target": torch.as_tensor(tx)}
    long = {name: tensors[name].long() for name in ("truth", "cluster_labels", "base_cluster_labels", "source_labels")}
    tensors |= long | {name: tensors[name].float() for name in ("source", "target")}
    content: dict[str, Any] = {**tensors, "provenance": provenance}
    return Stored(case, tensors["probabilities"].shape[1], **content)


def run(case: Case, path: Path) -> None:
    """Train the method and source-only, and store both."""
    task, truth, changes = problem(case)
    result = adapt(task, make_settings(case.method, seed=case.seed, changes=changes))
    kept: list[Method] = []
    baseline = as_baseline(result) if case.method == BASELINE else train_baseline(result, [_Keep(kept)])
    extra: dict[str, Any] = (
        {} if case.kind == "pretrained" else _features(result, kept[0] if kept else result.model.method)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        truth=truth,
        probabilities=result.predictions.probabilities.numpy(),
        cluster_labels=result.predictions.cluster_labels.numpy(),
        base_probabilities=baseline.predictions.probabilities.numpy(),
        base_cluster_labels=baseline.predictions.cluster_labels.numpy(),
        provenance=json.dumps(measured_with()),
        **extra,
    )


class _Keep(Callback):
    """Keeps the network of a training."""

    def __init__(self, kept: list[Method]) -> None:
        self.kept = kept

    def on_start(self, training: Training) -> None:
        self.kept.append(training.method)


def _features(result: Result, method: Method) -> dict[str, Array]:
    """Features of the source-only network, which take the place of pretrained ones."""
    task = result.prepared
    source, target = (outputs_of(method, task.domain(s), s, batch_size=256).features.half().numpy() for s in Side)
    return {"source": source, "source_labels": task.source.labels.numpy(), "target": target}


def problem(case: Case) -> tuple[Task, Array, dict[str, Any]]:
    """The task of a case, the true labels of its target, and the settings of its suite."""
    if case.collection == "pacs":
        sx, sy, tx, ty = with_fault(case, *pacs(case.source), *pacs(case.target))
        return Task(labeled_arrays(sx, sy, where=case.source), Domain(ArraySamples(tx))), ty, {}
    collection: Any = DemoCollection() if case.collection == "demo" else DigitCollection(SHARED / "digits")
    given = collection.problem(case.source, case.target, case.seed)
    truth = given.truth if case.collection == "demo" else collection.drawn(case.target, case.seed).labels
    source, random = given.task.source, np.random.default_rng([case.seed, 7])
    rows, labels = np.arange(len(truth)), source.labels.numpy()
    if case.fault == "classes missing":
        rows = np.flatnonzero(np.isin(truth.numpy(), random.permutation(10)[:6]))
    if case.fault == "label noise":
        labels = noisy(labels, 10, random)
    source = LabeledDomain(source.samples, source.names, torch.as_tensor(labels), source.classes)
    chosen = torch.as_tensor(rows)
    return Task(source, part_of(given.task.target, chosen)), truth[chosen].numpy(), dict(SHORT)


def with_fault(case: Case, sx: Array, sy: Array, tx: Array, ty: Array) -> tuple[Array, Array, Array, Array]:
    """Features and labels of a PACS task with the fault of a case."""
    random = np.random.default_rng([case.seed, DOMAINS.index(case.source), DOMAINS.index(case.target)])
    if case.fault == "classes missing":
        kept = np.isin(ty, random.permutation(7)[:4])
        return sx, sy, tx[kept], ty[kept]
    return sx, noisy(sy, 7, random) if case.fault == "label noise" else sy, tx, ty


def noisy(labels: Array, classes: int, random: np.random.Generator) -> Array:
    """Labels of which some are replaced at random."""
    chosen, changed = random.random(len(labels)) < NOISE, labels.copy()
    changed[chosen] = random.integers(0, classes, chosen.sum())
    return changed


@cache
def pacs(domain: str) -> tuple[Array, Array]:
    """Features and labels of a domain."""
    with np.load(PACS) as file:
        return file[f"{domain}_x"].astype(np.float32), file[f"{domain}_y"].astype(np.int64)
