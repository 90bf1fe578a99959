"""Each baseline with its published settings and with others, on PACS features: `python -m benchmarks.baselines`.

The defaults of the baselines were chosen by these runs, with the labels of PACS in view; no target label of Office-31
was used. Needs `data/pacs-resnet50-features.npz` below `../shared` or the folder that CANDAPT_SHARED names.

Finished runs are stored below `--out`, so repeat the command to resume; delete the folder after a change of the code.
`--only METHOD…` trains some of the methods and records nothing. `--finished` trains nothing and records what is stored;
the tables then have gaps.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import record
from candapt.adaptation import adapt
from candapt.data.domains import ArraySamples, Domain, Task
from candapt.data.features import labeled_arrays
from candapt.presets import make_settings
from candapt.settings import Settings
from candapt.storage.files import write_json

Array = np.ndarray[Any, Any]
Changes = Mapping[str, Any]

TASKS = (
    ("photo", "art_painting"),
    ("art_painting", "photo"),
    ("art_painting", "cartoon"),
    ("cartoon", "sketch"),
    ("sketch", "cartoon"),
    ("sketch", "photo"),
)
"""Six of the twelve, with every domain on both sides."""

SHORT = {"training.steps": 150}
"""300 steps in all instead of 1000, for trainings that take long: a row is comparable with those that have it too."""

VARIANTS: dict[str, tuple[Changes, ...]] = {
    "source-only": ({},),
    "dann": ({}, {"training.optimizer": "sgd"}),
    "dan": ({}, {"dan.estimator": "linear"}),
    "jan": (
        {},
        {"jan.ramp": 10.0},
        {"jan.weight": 1.0},
        {"jan.weight": 1.0, "jan.ramp": 10.0},
        {"jan.weight": 1.0, "jan.estimator": "linear"},
        {"jan.weight": 1.0, "jan.estimator": "linear", "jan.ramp": 10.0},
    ),
    "mada": (
        {},
        {"mada.constant_weights": False},
        {"mada.constant_weights": False, **SHORT},
        {"mada.constant_weights": False, **SHORT, "mada.width": 1024},
    ),
    "self-ensembling": (
        {},
        {"self-ensembling.feature_noise": 0.1},
        {"self-ensembling.feature_noise": 1.0},
        {"self-ensembling.dropout": 0.0},
        {"self-ensembling.threshold": 0.8, "self-ensembling.weight": 3.0},
        {"self-ensembling.double_softmax": True, "self-ensembling.balance_loss": "bug"},
    ),
    "mcd": (SHORT, {**SHORT, "mcd.weight": 2.3}),
    "can": ({}, {"can.start_share": 1.0, "can.warmup": 0}),
}
"""Settings of each method beside those that all share. ADR and MCC have no other published ones to compare."""

BATCHES = (30, 120)
"""Batch sizes with which JAN is compared to source-only where both are good, to see what it loses there and why."""

ONE_PASS = {"rounds": 2, "training.steps": 500}
"""As many steps as by default in fewer rounds: without clusters, a round is merely the time between evaluations."""


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--finished", action="store_true", help="Train nothing; record what is finished.")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for method in options.only:
        for changes in VARIANTS[method]:
            planned = [run for seed in range(options.seeds) for run in runs(method, changes, seed)]
            results = [result for run in planned if (result := run.result(options.out, options.finished))]
            accuracies = [round(100 * result["accuracy"], 1) for result in results]
            print(f"{method:16} {dict(changes)} {accuracies}", flush=True)
            rows.append({"method": method, "changes": dict(changes), "runs": results})
    if len(options.only) == len(VARIANTS):
        tasks = [f"{source} → {target}" for source, target in TASKS]
        content = {"features": "PACS, ResNet-50", "tasks": tasks, "seeds": options.seeds, "rows": rows}
        record("baselines", {**content, "class_shares": class_shares(options.out, options.finished)})


@dataclass(frozen=True)
class Run:
    """One training."""

    source: str
    target: str
    settings: Settings
    balanced: bool = False  # with equally many samples of each class

    def path(self, out: Path) -> Path:
        """Where its result is stored; another setting has another name."""
        settings = json.dumps(asdict(self.settings), sort_keys=True, default=str)
        domains = f"{self.source}-{self.target}{'-balanced' * self.balanced}"
        digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
        return out / f"{self.settings.method}-{domains}-{self.settings.seed}-{digest}.json"

    def result(self, out: Path, only_finished: bool) -> dict[str, Any] | None:
        """Accuracy and processor time, stored or by training; None if it is not stored and must not be trained."""
        if not self.path(out).exists():
            if only_finished:
                return None
            write_json(self.path(out), trained(self))
        result: dict[str, Any] = json.loads(self.path(out).read_text(encoding="utf-8"))
        return result


def runs(method: str, changes: Changes, seed: int) -> list[Run]:
    """One method with some settings on every task."""
    shared = {} if method == "can" else ONE_PASS
    settings = make_settings(method, seed=seed, changes={**shared, **changes})
    return [Run(source, target, settings) for source, target in TASKS]


def class_shares(out: Path, only_finished: bool) -> list[dict[str, Any]]:
    """JAN beside source-only on the easiest task: the domains as they are, or with equally many samples per class."""
    rows = []
    for balanced in (False, True):
        for batch_size in BATCHES:
            accuracies = {}
            for method, changes in (("source-only", {}), ("jan", {"jan.weight": 1.0})):
                settings = make_settings(method, changes={**ONE_PASS, "training.batch_size": batch_size, **changes})
                result = Run("art_painting", "photo", settings, balanced).result(out, only_finished)
                accuracies[method] = result and result["accuracy"]
            rows.append({"balanced": balanced, "batch_size": batch_size, "accuracies": accuracies})
    return rows


def trained(run: Run) -> dict[str, Any]:
    """Accuracy on the target after the last round, and processor time."""
    (sx, sy), (tx, ty) = (read(domain, balanced=run.balanced) for domain in (run.source, run.target))
    started = time.process_time()
    result = adapt(Task(labeled_arrays(sx, sy, where=run.source), Domain(ArraySamples(tx))), run.settings)
    return {
        "task": f"{run.source} → {run.target}",
        "seed": run.settings.seed,
        "accuracy": float((result.predictions.labels.numpy() == ty).mean()),
        "seconds": round(time.process_time() - started, 1),
    }


def read(domain: str, *, balanced: bool) -> tuple[Array, Array]:
    """Features and labels of a domain; balanced: of each class as many random samples as the smallest one has."""
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    with np.load(shared / "data" / "pacs-resnet50-features.npz") as file:
        x, y = file[f"{domain}_x"].astype(np.float32), file[f"{domain}_y"].astype(np.int64)
    if balanced:
        order, counts = np.random.default_rng(0).permutation(len(y)), np.bincount(y)
        kept = np.sort(np.concatenate([order[y[order] == number][: counts.min()] for number in range(len(counts))]))
        x, y = x[kept], y[kept]
    return x, y


if __name__ == "__main__":
    main()
