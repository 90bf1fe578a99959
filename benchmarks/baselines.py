"""Each baseline with its published settings and with others, on PACS features: `python -m benchmarks.baselines`.

The defaults of the baselines were chosen by these runs, with the labels of PACS in view; no target label of Office-31
was used. Needs `data/pacs-resnet50-features.npz` below `../shared` or the folder that CANDAPT_SHARED names.

Finished runs are stored below `--out`, so repeat the command to resume; delete the folder after a change of the code.
`--only METHOD…` trains some of the methods and records nothing.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
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

VARIANTS: dict[str, tuple[Changes, ...]] = {
    "source-only": ({},),
    "dann": ({},),
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
        {"mada.constant_weights": False, "training.steps": 150},  # 300 steps in all, since the next ones are slow
        {"mada.constant_weights": False, "training.steps": 150, "mada.width": 1024},
    ),
    "self-ensembling": (
        {},
        {"self-ensembling.noise": 0.1},
        {"self-ensembling.feature_noise": 0.1},
        {"self-ensembling.feature_noise": 1.0},
        {"self-ensembling.dropout": 0.0},
        {"self-ensembling.threshold": 0.8, "self-ensembling.weight": 3.0},
        {"self-ensembling.double_softmax": True, "self-ensembling.balance_loss": "bug"},
    ),
    "adr": ({},),
    "mcd": ({}, {"mcd.weight": 2.3}),
    "mcc": ({},),
    "can": ({}, {"can.start_share": 1.0, "can.warmup": 0}),
}
"""Settings of each method beside those that all share."""

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
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"method": method, "changes": dict(changes), "runs": runs(method, changes, options.seeds, options.out)}
        for method in options.only
        for changes in VARIANTS[method]
    ]
    if len(options.only) == len(VARIANTS):
        tasks = [f"{source} → {target}" for source, target in TASKS]
        content = {"features": "PACS, ResNet-50", "tasks": tasks, "seeds": options.seeds, "rows": rows}
        record("baselines", {**content, "class_shares": class_shares(options.out)})


def runs(method: str, changes: Changes, seeds: int, out: Path) -> list[dict[str, Any]]:
    """One method with some settings on every task and seed."""
    shared = {} if method == "can" else ONE_PASS
    finished = []
    for seed in range(seeds):
        settings = make_settings(method, seed=seed, changes={**shared, **changes})
        finished += [stored_run(source, target, settings, out) for source, target in TASKS]
    mean = np.mean([run["accuracy"] for run in finished])
    print(
        f"{method:16} {mean:.2%}  {dict(changes)}  {[round(100 * run['accuracy'], 1) for run in finished]}", flush=True
    )
    return finished


def class_shares(out: Path) -> list[dict[str, Any]]:
    """JAN beside source-only on the easiest task: the domains as they are, or with equally many samples per class."""
    rows = []
    for balanced in (False, True):
        for batch_size in BATCHES:
            shared = {**ONE_PASS, "training.batch_size": batch_size}
            plain = make_settings("source-only", changes=shared)
            aligned = make_settings("jan", changes={**shared, "jan.weight": 1.0})
            accuracies = {
                each.method: stored_run("art_painting", "photo", each, out, balanced=balanced)["accuracy"]
                for each in (plain, aligned)
            }
            rows.append({"balanced": balanced, "batch_size": batch_size, "accuracies": accuracies})
    return rows


def stored_run(source: str, target: str, settings: Settings, out: Path, *, balanced: bool = False) -> dict[str, Any]:
    """One run, read from its file if it was finished before with the same settings."""
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True, default=str).encode()).hexdigest()[:12]
    path = out / f"{settings.method}-{source}-{target}{'-balanced' * balanced}-{settings.seed}-{digest}.json"
    if not path.exists():
        write_json(path, one_run(source, target, settings, balanced=balanced))
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def one_run(source: str, target: str, settings: Settings, *, balanced: bool) -> dict[str, Any]:
    """Accuracy on the target after the last round, and processor time."""
    (sx, sy), (tx, ty) = (read(domain, balanced=balanced) for domain in (source, target))
    started = time.process_time()
    result = adapt(Task(labeled_arrays(sx, sy, where=source), Domain(ArraySamples(tx))), settings)
    return {
        "task": f"{source} → {target}",
        "seed": settings.seed,
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
