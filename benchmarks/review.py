"""How often the interval of a review holds the true accuracy, and how wide it is: `python -m benchmarks.review`.

Needs `pacs-resnet50-features.npz` and `office31-resnet50-features.npz` in `data` below `../shared` or the folder that
CANDAPT_SHARED names. Short trainings on PACS, Office-31 and the demonstration are kept below `--out`; repeat the
command to train those that are missing. Labels of the targets stand in for the person who reviews, and choose nothing:
the number of strata and the joining of small ones were settled on PACS. Each review has a seed of its own and is drawn
and read by the code of `candapt review`.
"""

import argparse
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.record import record
from benchmarks.suites import SHARED
from candapt.commands.main import main as candapt
from candapt.data.digits import handwritten_digits
from candapt.data.features import read_arrays
from candapt.report.run_data import read_run
from candapt.review.interval import Interval, Stratum, accuracy_interval
from candapt.review.measurement import strata_of
from candapt.review.sampling import STRATIFY, Population, Stratify, drawing_order

REVIEWS = 2000
NUMBERS = (50, 200)  # answers of a review
BAR = 0.93  # least share of intervals that hold the true accuracy
TASKS = {
    "PACS photo → sketch": ("pacs", "photo", "sketch"),
    "PACS photo → cartoon": ("pacs", "photo", "cartoon"),
    "PACS art → cartoon": ("pacs", "art_painting", "cartoon"),
    "PACS art → photo": ("pacs", "art_painting", "photo"),
    "Office-31 amazon → webcam": ("office31", "amazon", "webcam"),
    "Office-31 webcam → dslr": ("office31", "webcam", "dslr"),
}
FLAGS = ("--rounds", "10", "--report", "false")

cached_interval = functools.cache(lambda *strata: accuracy_interval(strata))


def trained(name: str, out: Path) -> tuple[Path, list[str]]:
    """A finished run of CAN from features, and the true class of each of its target samples."""
    collection, source, target = TASKS[name]
    arrays = (f"{domain}_{kind}" for domain in (source, target) for kind in "xy")
    data = read_arrays(SHARED / f"{collection}-resnet50-features.npz", "classes", *arrays)
    run = out / f"{collection}-{source}-{target}"
    paths = {domain: out / "data" / f"{collection}-{domain}.npz" for domain in (source, target)}
    for domain, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=data[f"{domain}_x"].astype(np.float32), y=data[f"{domain}_y"], classes=data["classes"])
    if not (run / "summary.json").exists():
        words = ["adapt", str(paths[source]), str(paths[target]), "--out", str(run), *FLAGS]
        if code := candapt([*words, "--resume"] if run.exists() else words):
            sys.exit(code)
    return run, [str(data["classes"][label]) for label in data[f"{target}_y"]]


def demonstration(out: Path) -> dict[str, tuple[Path, list[str]]]:
    """Both runs of the demonstration with the true classes."""
    if not (out / "demo" / "summary.json").exists() and (code := candapt(["demo", "--out", str(out / "demo")])):
        sys.exit(code)
    truth = [str(label) for label in handwritten_digits()[1].tolist()]
    return {f"demonstration, {method}": (out / "demo" / method, truth) for method in ("source-only", "can")}


def simulate(population: Population, right: Sequence[bool], stratify: Stratify) -> dict[int, list[Interval]]:
    """The intervals of all reviews by their number of answers."""
    intervals: dict[int, list[Interval]] = {number: [] for number in NUMBERS}
    for seed in range(REVIEWS):
        order = list(islice(drawing_order(population, stratify, seed), max(NUMBERS)))
        for number in NUMBERS:
            strata: list[Stratum] = strata_of(population, stratify, {row: right[row] for row in order[:number]})
            intervals[number].append(cached_interval(*strata))
    return intervals


def figures(intervals: Sequence[Interval], accuracy: float) -> dict[str, float]:
    """Coverage, mean width and mean error of some reviews."""
    slack = 1e-9  # of rounding
    return {
        "coverage": fmean(low - slack <= accuracy <= high + slack for _, low, high in intervals),
        "below": fmean(accuracy < low - slack for _, low, _ in intervals),
        "above": fmean(accuracy > high + slack for _, _, high in intervals),
        "width": fmean(high - low for _, low, high in intervals),
        "bias": fmean(value for value, _, _ in intervals) - accuracy,
    }


def measure(name: str, run: Path, truth: Sequence[str]) -> dict[str, Any]:
    """Simulated reviews of one run."""
    content = read_run(run)
    right = [sample.prediction == label for sample, label in zip(content.population.samples, truth, strict=True)]
    accuracy = fmean(right)
    plans: dict[str, Mapping[int, dict[str, float]]] = {}
    for stratify in STRATIFY:
        intervals = simulate(content.population, right, stratify)
        plans[stratify] = {number: figures(some, accuracy) for number, some in intervals.items()}
        print(name, stratify, json.dumps(plans[stratify]), flush=True)
    narrower = {number: 1 - plans["confidence"][number]["width"] / plans["none"][number]["width"] for number in NUMBERS}
    counts = {"predictions": len(right), "accuracy": accuracy, "estimate": content.section("estimated_accuracy")}
    return {"run": name, **counts, "plans": plans, "narrower_by_confidence": narrower}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/review"))
    out = parser.parse_args().out
    runs = {name: trained(name, out) for name in TASKS} | demonstration(out)
    rows = [measure(name, *place) for name, place in runs.items()]
    least = min(each["coverage"] for row in rows for plan in row["plans"].values() for each in plan.values())
    content = {"reviews": REVIEWS, "numbers": NUMBERS, "bar": BAR, "least_coverage": least, "runs": rows}
    record("review", content)
    print(f"Least coverage {least:.1%}")
    sys.exit(least < BAR)


if __name__ == "__main__":
    main()
