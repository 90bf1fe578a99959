"""What a few known labels give, and whether suggested ones give more: `python -m benchmarks.known_labels pacs`.

Known labels: two of each class, drawn at random by the seed. A run with and one without them are measured on the same
samples, those whose labels are not given. Suggested labels: as many samples as `candapt suggest` lists for the run
without any, beside as many drawn at random; both are measured on the samples that are in neither list.

Everything was chosen on PACS; `python -m benchmarks.known_labels office31` measures the two hard tasks of Office-31.
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cells import DOMAINS, Cell, cell, domain, provenances, unlabeled
from benchmarks.record import record
from candapt.adaptation import adapt
from candapt.assessment import untouched_features
from candapt.data.domains import KnownLabels, Task
from candapt.evaluation.metrics import accuracy
from candapt.evaluation.suggestion import standardized_units, suggest_samples
from candapt.presets import make_settings
from candapt.randomness import generator

PER_CLASS = 2
TASKS = {
    "pacs": tuple(permutations(DOMAINS["pacs"], 2)),
    "office31": (("dslr", "amazon"), ("webcam", "amazon")),
}
SUGGESTED = (("photo", "cartoon"), ("art_painting", "cartoon"), ("cartoon", "sketch"), ("sketch", "cartoon"))
"""Tasks of PACS on which suggestions are compared with random choice."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and record what is complete."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*TASKS, "suggest"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="By default those of the settings.")
    parser.add_argument("--number", type=int, default=14, help="Labels that are suggested or drawn.")
    parser.add_argument("--out", type=Path, default=Path("runs/known-labels"))
    options = parser.parse_args(arguments)
    changes = {} if options.rounds is None else {"rounds": options.rounds}
    folder = options.out / (options.what if options.rounds is None else f"{options.what}-{options.rounds}")
    tasks = SUGGESTED if options.what == "suggest" else TASKS[options.what]
    rows, cells = list[dict[str, Any]](), list[Cell]()
    for source, target in tasks:
        measured = []
        for seed in range(options.seeds):
            if options.what == "suggest":
                figures = suggested(source, target, seed, changes, options.number, folder)
            else:
                figures = known(options.what, source, target, seed, changes, folder)
            cells += figures
            measured.append(
                {name: value for each in figures for name, value in each.items() if name != "measured_with"}
            )
        rows.append({"task": f"{source} → {target}", "runs": measured})
    about = {"seeds": options.seeds, "settings": changes, "per_class": PER_CLASS, "number": options.number}
    kinds = [name for name, value in rows[0]["runs"][0].items() if isinstance(value, float)]
    means = {kind: statistics.fmean(run[kind] for row in rows for run in row["runs"]) for kind in kinds}
    content = {**about, "rows": rows, "means": means, "measured_with": provenances(cells)}
    record(f"known-labels-{options.what}", content)


def known(
    collection: str, source: str, target: str, seed: int, changes: dict[str, Any], folder: Path
) -> tuple[Cell, Cell]:
    """Accuracies of a run without and of one with known labels, on the samples without any."""
    labeled = domain(collection, target)
    rows = some_of_each(labeled.labels, seed)
    others = complement(rows, labeled.size)
    task = Task(domain(collection, source), unlabeled(labeled))
    given = Task(task.source, task.target, KnownLabels(rows, labeled.labels[rows]))

    def measure(name: str, each: Task) -> Cell:
        result = adapt(each, make_settings("can", seed=seed, changes=changes))
        return {name: accuracy(labeled.labels[others], result.predictions.labels[others])}

    name = f"{source}-{target}-{seed}"
    return (
        cell(folder, f"{name}-without", lambda: measure("without", task)),
        cell(folder, f"{name}-with", lambda: measure("with", given)),
    )


def suggested(
    source: str, target: str, seed: int, changes: dict[str, Any], number: int, folder: Path
) -> tuple[Cell, ...]:
    """Accuracies without labels, with suggested and with random ones, on samples that are in neither list."""
    labeled, settings = domain("pacs", target), make_settings("can", seed=seed, changes=changes)
    task = Task(domain("pacs", source), unlabeled(labeled))
    name = f"{source}-{target}-{seed}"

    def first() -> Cell:
        result = adapt(task, settings)
        untouched = untouched_features(result)
        assert untouched is not None
        units = standardized_units(labeled.samples.read(torch.arange(labeled.size)))
        listed = suggest_samples(units, untouched.confidence(result.predictions.probabilities)[0], number)
        return {"suggested_rows": listed.tolist(), "predicted": result.predictions.labels.tolist()}

    before = cell(folder, f"{name}-{number}-first", first)
    lists = {
        "suggested": torch.tensor(before["suggested_rows"]).sort().values,
        "random": torch.randperm(labeled.size, generator=generator(seed, "random labels"))[:number].sort().values,
    }
    others = complement(torch.cat(list(lists.values())), labeled.size)

    def measure(kind: str) -> Cell:
        known_labels = KnownLabels(lists[kind], labeled.labels[lists[kind]])
        result = adapt(Task(task.source, task.target, known_labels), settings)
        return {kind: accuracy(labeled.labels[others], result.predictions.labels[others])}

    without = accuracy(labeled.labels[others], torch.tensor(before["predicted"])[others])
    plain = {"without": without, "measured_with": before["measured_with"]}
    return plain, *(cell(folder, f"{name}-{number}-{kind}", partial(measure, kind)) for kind in lists)


def some_of_each(labels: Tensor, seed: int) -> Tensor:
    """Rows of `PER_CLASS` samples of each class, drawn by the seed, in order."""
    order = torch.randperm(len(labels), generator=generator(seed, "known labels"))
    return torch.cat([order[labels[order] == each][:PER_CLASS] for each in torch.unique(labels)]).sort().values


def complement(rows: Tensor, size: int) -> Tensor:
    """Whether each of `size` samples is not among the rows."""
    return torch.ones(size, dtype=torch.bool).index_fill(0, rows, False)


if __name__ == "__main__":
    main()
