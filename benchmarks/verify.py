"""Repeat one random item of each recorded table and compare: `python -m benchmarks.verify [--tables office31,demo]`.

An item is a training: a cell of a suite, or a run of the demonstration. It is repeated with the recorded number of
threads. Where processor, threads, versions and code are those of the record, the accuracy must be the same to the last
bit. Elsewhere it may differ as much as another seed would: by three times the table's spread, which is the root mean
square of the standard deviations over seeds of all its cells, and always by 1.5 points; by 3 points in tables of one
seed, which have no spread. Tables of times, and those computed from the cells of other tables, are not repeated.

Prints one line per table, writes `benchmarks/results/verify.json`, and exits with 1 if a comparison fails.
"""

import argparse
import random
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import baselines, features, pseudo_labels, record, suites
from benchmarks.record import Provenance, load
from benchmarks.shifts import Case, problem
from candapt.adaptation import adapt
from candapt.benchmark.runner import run_cell
from candapt.commands import demo
from candapt.commands.benchmark import read_arguments
from candapt.console import show_log
from candapt.errors import UserError
from candapt.evaluation import metrics
from candapt.presets import make_settings
from candapt.storage.provenance import measured_with
from candapt.storage.runs import versions

LEAST_TOLERANCE = 0.015
ONE_SEED_TOLERANCE = 0.03
SPREADS = 3
SUITE = "suite-"
NOT_REPEATED = {
    **dict.fromkeys(
        ("losses", "startup", "report", "throughput", "export", "lite-command"), "times differ from run to run"
    ),
    **dict.fromkeys(("selection", "calibration-office31"), "computed from the cells of a suite"),
    **dict.fromkeys(
        ("tune", "fuzz", "kills", "embed", "embed-views", "mutation", "view_choice", "view_noise"),
        "there is no single item to repeat",
    ),
    "verify": "written by this program",
}


@dataclass(frozen=True)
class Item:
    """One figure of a table, and how to measure it again."""

    name: str
    recorded: float
    provenance: Provenance
    versions: Sequence[dict[str, str]]  # of the packages that the table was measured with
    spread: float | None  # of the table, over seeds; None for one seed
    seconds: float
    repeat: Callable[[], float]

    @property
    def is_exact(self) -> bool:
        """Whether the repetition must give the same bits; true only while the recorded number of threads is set."""
        now = measured_with()
        same = all(self.provenance.get(name) == now[name] for name in ("code", "processor", "threads"))
        return same and list(self.versions) == [versions()]

    @property
    def tolerance(self) -> float:
        """How far the accuracy may be off if it need not be the same."""
        return ONE_SEED_TOLERANCE if self.spread is None else max(LEAST_TOLERANCE, SPREADS * self.spread)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", help="Names of records, separated by commas; suite- may be left out. Default: all.")
    parser.add_argument("--seed", default=datetime.now(UTC).strftime("%Y%m%d"), help="Chooses the items; today's date.")
    parser.add_argument("--longest", type=float, default=600, help="Seconds that a repeated item may have taken.")
    options = parser.parse_args(arguments)
    show_log()
    wanted = options.tables.split(",") if options.tables else []
    names = sorted(path.stem for path in record.RESULTS.glob("*.json"))
    chosen = [name for name in names if not wanted or {name, name.removeprefix(SUITE)} & set(wanted)]
    if unknown := [each for each in wanted if not {each, SUITE + each} & set(names)]:
        print(f"Not recorded: {', '.join(unknown)}")
        return 1
    tables = []
    for name in chosen:
        tables.append({"table": name, **verify(name, random.Random(f"{options.seed} {name}"), options.longest)})
        print(describe(tables[-1]), flush=True)
    record.record("verify", {"seed": options.seed, "tables": tables})
    return int(any(each.get("passed") is False for each in tables))


def verify(name: str, source: random.Random, longest: float) -> dict[str, Any]:
    """What came of repeating one item of a table."""
    if name in NOT_REPEATED:
        return {"skipped": NOT_REPEATED[name]}
    try:
        items = suite_items(load(name)) if name.startswith(SUITE) else ITEMS[name](load(name))
    except (KeyError, ValueError, UserError) as error:
        return {"error": f"{type(error).__name__}: {error}", "passed": False}
    short = [item for item in items if item.seconds <= longest]
    if not short:
        return {"skipped": f"each item takes more than {longest:g} s; give --longest"}
    return compare(source.choice(short))


def compare(item: Item) -> dict[str, Any]:
    """Measure an item again, with the recorded number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(item.provenance.get("threads") or before)
    try:
        exact, again = item.is_exact, item.repeat()
    except UserError as error:
        return {"item": item.name, "error": str(error), "passed": False}
    finally:
        torch.set_num_threads(before)
    passed = again == item.recorded if exact else abs(again - item.recorded) <= item.tolerance
    outcome = {"item": item.name, "recorded": item.recorded, "repeated": again, "exact": exact}
    return outcome | {"tolerance": 0.0 if exact else item.tolerance, "passed": passed}


def describe(outcome: dict[str, Any]) -> str:
    """One line for a terminal."""
    if "skipped" in outcome:
        return f"{outcome['table']}: not repeated ({outcome['skipped']})"
    verdict = "ok" if outcome["passed"] else "FAILED"
    if "error" in outcome:
        return f"{verdict} {outcome['table']}: {outcome.get('item', 'no item')}: {outcome['error']}"
    allowed = "must be the same" if outcome["exact"] else f"may differ by {100 * outcome['tolerance']:.1f} points"
    figures = f"recorded {100 * outcome['recorded']:.2f} %, repeated {100 * outcome['repeated']:.2f} %"
    return f"{verdict} {outcome['table']}: {outcome['item']}: {figures}, {allowed}"


def suite_items(result: dict[str, Any]) -> list[Item]:
    """The cells of a suite; everything about their training follows from the recorded command."""
    options, settings = suites.read_arguments(shlex.split(result["command"])[3:])
    words = suites.benchmark_words(result["suite"], options, settings)
    plan = read_arguments([*words[1:], "--out", "unused"])[1]
    items = []
    for cell in plan.cells:
        row = next(row for row in result["rows"] if row["name"] == cell.row.name)
        place, task = result["seeds"].index(cell.seed), cell.task.name
        column = task if task in row["last"] else "Average"  # a suite may have classes for columns
        made = result["measured_with"][row["measured_with"][task][place]] if "measured_with" in result else {}

        def repeat(cell: Any = cell) -> float:
            last = run_cell(plan, cell)[0]["last"]
            classes = last.get("class_accuracies")
            return statistics.fmean(classes.values()) if classes else float(last["accuracy"])

        item = Item(
            cell.name,
            row["last"][column][place],
            made,
            result.get("cell_versions", []),
            spread_of([values for row in result["rows"] for values in row["last"].values()]),
            row["seconds"][task][place],
            repeat,
        )
        items.append(item)
    return items


def spread_of(groups: Sequence[Sequence[float]]) -> float | None:
    """Root mean square of the standard deviations over seeds; None for single seeds."""
    deviations = [statistics.stdev(values) for values in groups if len(values) > 1]
    return statistics.fmean(each**2 for each in deviations) ** 0.5 if deviations else None


def demo_items(result: dict[str, Any]) -> list[Item]:
    """Each method and seed of the demonstration, which trains both."""
    methods = list(result["runs"][0])
    spread = spread_of([[run[method]["accuracy"] for run in result["runs"]] for method in methods])
    items = []
    for seed, run in zip(result["seeds"], result["runs"], strict=True):
        seconds = sum(run[method]["seconds"] for method in methods)
        for method in methods:

            def repeat(method: str = method, seed: int = seed) -> float:
                with tempfile.TemporaryDirectory() as folder:
                    return demo.run(demo.DemoOptions(Path(folder, "demo"), seed, report=False))[method]["accuracy"]

            name = f"{method} seed {seed}"
            items.append(Item(name, run[method]["accuracy"], result, [result["versions"]], spread, seconds, repeat))
    return items


def feature_items(result: dict[str, Any]) -> list[Item]:
    """Each run over feature files."""
    runs: dict[str, list[float]] = {}
    for run in result["runs"]:
        runs.setdefault(run["method"], []).append(run["accuracy"])
    spread, items = spread_of(list(runs.values())), []
    for run in result["runs"]:

        def repeat(method: str = run["method"], seed: int = run["seed"]) -> float:
            return float(features.run(method, seed)["accuracy"])

        name = f"{run['method']} seed {run['seed']}"
        items.append(Item(name, run["accuracy"], result, [result["versions"]], spread, run["seconds"], repeat))
    return items


def clustering_items(result: dict[str, Any]) -> list[Item]:
    """The first clustering of each task and seed."""
    plan = pseudo_labels.plan_for(result["seeds"])
    spread = spread_of([task["first_clustering"] for task in result["tasks"].values()])
    items = []
    for cell in plan.cells:
        accuracy = result["tasks"][cell.task.name]["first_clustering"][result["seeds"].index(cell.seed)]

        def repeat(cell: Any = cell) -> float:
            return pseudo_labels.first_clustering(plan, cell)

        name = f"first clustering, {cell.task.name} seed {cell.seed}"
        items.append(Item(name, accuracy, result, [result["versions"]], spread, 0.0, repeat))
    return items


def calibration_items(result: dict[str, Any]) -> list[Item]:
    """The trainings that confidence and alarm are fitted on, each with its own seed."""
    fields = Case.__dataclass_fields__
    (made,) = result["measured_with"][:1]
    items = []
    for training in (each for each in result["trainings"] if not each["per_class"]):
        case = Case(**{name: training[name] for name in fields})

        def repeat(case: Case = case) -> float:
            task, truth, changes = problem(case)
            trained = adapt(task, make_settings(case.method, seed=case.seed, changes=changes))
            return metrics.accuracy(torch.as_tensor(truth), trained.predictions.labels)

        items.append(Item(case.name, training["accuracy"], made, [result["versions"]], None, 60.0, repeat))
    return items


def baseline_items(result: dict[str, Any]) -> list[Item]:
    """Each baseline with each of its settings, on each task."""
    items = []
    for row in result["rows"]:
        for run in row["runs"]:
            same = baselines.runs(row["method"], row["changes"], run["seed"])
            (again,) = (each for each in same if f"{each.source} → {each.target}" == run["task"])

            def repeat(again: baselines.Run = again) -> float:
                return float(baselines.trained(again)["accuracy"])

            name = f"{row['method']} {row['changes'] or ''} {run['task']} seed {run['seed']}"
            items.append(Item(name, run["accuracy"], result, [result["versions"]], None, run["seconds"], repeat))
    return items


ITEMS: dict[str, Callable[[dict[str, Any]], list[Item]]] = {
    "baselines": baseline_items,
    "calibration": calibration_items,
    "demo": demo_items,
    "features": feature_items,
    "pseudo_labels": clustering_items,
}

if __name__ == "__main__":
    sys.exit(main())
