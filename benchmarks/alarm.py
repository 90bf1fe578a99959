"""The negative-transfer alarm on good runs and on made ones that must fail: `python -m benchmarks.alarm`.

Needs `data/office31-resnet50-features.npz` below `../shared` or the folder that CANDAPT_SHARED names. `--rounds`,
`--seeds`, `--tasks` and `--width` (of a random projection of the features) make it shorter. `--again` trains nothing:
it judges the facts of the recorded runs by the limits that the alarm has now.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import RESULTS, Provenance, record
from candapt.adaptation import adapt
from candapt.assessment import compare, train_baseline
from candapt.console import show_log
from candapt.data.domains import ArraySamples, Domain, Task
from candapt.data.features import labeled_arrays
from candapt.evaluation.alarm import Facts, warnings_from
from candapt.presets import make_settings
from candapt.storage.provenance import measured_with
from candapt.training.callbacks import TrainingBar

TASKS = ("amazon-dslr", "amazon-webcam", "dslr-amazon", "dslr-webcam", "webcam-amazon", "webcam-dslr")
CLASSES = 31

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array, Array, Array]
"""Source features and labels, target features and labels."""


def as_it_is(arrays: Arrays, random: np.random.Generator) -> Arrays:
    """A good run."""
    return arrays


def other_classes(arrays: Arrays, random: np.random.Generator) -> Arrays:
    """Source and target have no class in common, fifteen each."""
    sx, sy, tx, ty = arrays
    order = random.permutation(CLASSES)
    ours, theirs = np.sort(order[:15]), order[15:30]
    source, target = np.isin(sy, ours), np.isin(ty, theirs)
    return sx[source], np.searchsorted(ours, sy[source]), tx[target], np.full(target.sum(), -1)


def half_absent(arrays: Arrays, random: np.random.Generator) -> Arrays:
    """The target has fifteen of the source's classes."""
    sx, sy, tx, ty = arrays
    kept = np.isin(ty, random.permutation(CLASSES)[:15])
    return sx, sy, tx[kept], ty[kept]


def swapped_labels(arrays: Arrays, random: np.random.Generator) -> Arrays:
    """In half of the source the classes' names are swapped around."""
    sx, sy, tx, ty = arrays
    swapped = random.random(len(sy)) < 0.5
    return sx, np.where(swapped, random.permutation(CLASSES)[sy], sy), tx, ty


CASES: dict[str, Callable[[Arrays, np.random.Generator], Arrays]] = {
    "good": as_it_is,
    "other classes": other_classes,
    "half of the classes absent": half_absent,
    "swapped labels": swapped_labels,
}


def main() -> None:
    show_log()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--width", type=int)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    provenance: list[Provenance] = [measured_with()]
    if options.again:
        runs, provenance = recorded()
    else:
        runs = [
            run(case, task, seed, options.rounds, options.width)
            for seed in range(options.seeds)
            for task in options.tasks.split(",")
            for case in CASES
            if case == "good" or seed == 0  # there are three kinds of failure, and all shall weigh about the same
        ]
    right = {case: [run["right"] for run in runs if run["case"] == case] for case in CASES}
    cases = {case: {"right": sum(values), "of": len(values)} for case, values in right.items()}
    content = {"features": "Office-31, ResNet-50", "cases": cases, "runs": runs}
    record("alarm", {**content, "measured_with": provenance})


def run(case: str, task: str, seed: int, rounds: int, width: int | None) -> dict[str, Any]:
    """One run and what the alarm says; it is right to speak in all cases but the good one."""
    random = np.random.default_rng(seed)
    source, target = task.split("-")
    sx, sy, tx, ty = CASES[case](read(source, target, width), random)
    settings = make_settings("can", seed=seed, changes={"rounds": rounds})
    result = adapt(Task(labeled_arrays(sx, sy, where=task), Domain(ArraySamples(tx))), settings)
    with TrainingBar(f"{task}, {case}, source-only", rounds) as bar:
        baseline = train_baseline(result, [bar])
    facts = compare(result, baseline)
    accuracies = [float((each.predictions.labels.numpy() == ty).mean()) for each in (result, baseline)]
    return {
        "case": case,
        "task": task,
        "seed": seed,
        "rounds": len(result.history),
        **judged(case, facts),
        "accuracy": accuracies[0],
        "source_only_accuracy": accuracies[1],
        "facts": asdict(facts),
    }


def judged(case: str, facts: Facts) -> dict[str, Any]:
    """What the alarm says of the facts, and whether it is right to."""
    kinds = [finding.kind for finding in warnings_from(facts)]
    return {"right": bool(kinds) != (case == "good"), "said": kinds}


def recorded() -> tuple[list[dict[str, Any]], list[Provenance]]:
    """The recorded runs, judged by the present limits, and what they were measured with."""
    content = json.loads((RESULTS / "alarm.json").read_text(encoding="utf-8"))
    runs = [run | judged(run["case"], Facts(**run["facts"])) for run in content["runs"]]
    return runs, content.get("measured_with", [])


def read(source: str, target: str, width: int | None) -> Arrays:
    """The features of a task, all of them or a random projection to `width`."""
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    with np.load(shared / "data" / "office31-resnet50-features.npz") as file:
        sx, sy, tx, ty = (file[f"{domain}_{part}"] for domain in (source, target) for part in "xy")
    if width is not None:
        projection = np.random.default_rng(0).normal(size=(sx.shape[1], width)).astype(np.float32) / width**0.5
        sx, tx = (x / np.linalg.norm(x, axis=1, keepdims=True) @ projection for x in (sx, tx))
    return sx, sy, tx, ty


if __name__ == "__main__":
    main()
