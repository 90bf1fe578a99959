"""How far pseudo-fixed gets from the labels it is given: `python -m benchmarks.pseudo_labels`.

The paper reports that a network trained on fixed pseudo labels ends about where the first clustering was. Here the
accuracy of that clustering, which needs no training, stands beside what the recorded suite `office31` says of
pseudo-fixed, task by task and seed by seed. Needs `data/office31-resnet50-features.npz` below `../shared` or the folder
that CANDAPT_SHARED names.
"""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.record import RESULTS, distinct, record
from benchmarks.suites import FEATURES
from candapt.adaptation import build_method, initial_parts
from candapt.benchmark.plan import Cell, Plan, make_plan
from candapt.evaluation.metrics import accuracy
from candapt.presets import make_settings
from candapt.storage.provenance import measured_with
from candapt.training.batches import make_fabric
from candapt.training.loop import Training

METHOD = "pseudo-fixed"


def main() -> None:
    suite = json.loads((RESULTS / "suite-office31.json").read_text(encoding="utf-8"))
    (row,) = (row for row in suite["rows"] if row["name"] == METHOD)
    plan = plan_for(suite["seeds"])
    first: dict[str, list[float]] = {task.name: [] for task in plan.tasks}
    for cell in plan.cells:
        first[cell.task.name].append(first_clustering(plan, cell))
    tasks: dict[str, dict[str, Any]] = {
        name: {"first_clustering": values, METHOD: row["last"][name]} for name, values in first.items()
    }
    means = {kind: statistics.mean(statistics.mean(task[kind]) for task in tasks.values()) for kind in tasks["A→W"]}
    trained = [suite["measured_with"][place] for made in row["measured_with"].values() for place in made]
    provenances = distinct([*trained, measured_with()])
    record("pseudo_labels", {"seeds": suite["seeds"], "tasks": tasks, "means": means, "measured_with": provenances})


def plan_for(seeds: Sequence[int]) -> Plan:
    """The trainings whose first clustering is measured."""
    return make_plan("office31", FEATURES, {METHOD: make_settings(METHOD)}, seeds=seeds)


def first_clustering(plan: Plan, cell: Cell) -> float:
    """Accuracy of the labels that the method is given, by the clustering of the network before any training."""
    problem = plan.collection.problem(cell.task.source, cell.task.target, cell.seed)
    method = build_method(initial_parts(problem.task, cell.settings), cell.settings)
    training = Training(make_fabric(cell.settings.training), method, problem.task, cell.settings)
    clusters = method.cluster(training.describe_round())
    assert clusters is not None
    return accuracy(problem.truth, clusters.labels)


if __name__ == "__main__":
    main()
