"""What is seen of a target before any training: `python -m benchmarks.first_looks`.

Class proportions and unknown objects by pretrained features, on full, partial and thinned targets. Where they do not
`differ` and no unknown object is found, a training is bit for bit the one without these parts.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.cells import cell as stored
from benchmarks.cells import provenances
from benchmarks.real_targets import CASES, DOMAINS, Cell, problem
from benchmarks.record import record
from candapt.data.domains import Domain
from candapt.evaluation.proportions import SAMPLES, estimate_proportions
from candapt.evaluation.reference import moments, some_rows, standardized, standardized_by_source
from candapt.evaluation.unknown import find_unknown


def main(arguments: Sequence[str] | None = None) -> None:
    """Look and record."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", nargs="*", default=list(DOMAINS), choices=list(DOMAINS))
    parser.add_argument("--cases", nargs="*", default=["full", "partial", "thinned"], choices=CASES)
    parser.add_argument("--out", type=Path, default=Path("runs/first-looks"))
    options = parser.parse_args(arguments)
    rows, summary = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for collection in options.collections:
        for case in options.cases:
            cells = [Cell(collection, case, *pair, "can", 0) for pair in permutations(DOMAINS[collection], 2)]
            looks = [stored(options.out, each.name, partial(look, each)) for each in cells]
            rows += looks
            summary[f"{collection} {case}"] = summarize(looks)
            print(collection, case, summary[f"{collection} {case}"], flush=True)
    plain = [{name: value for name, value in row.items() if name != "measured_with"} for row in rows]
    record("first-looks", {"summary": summary, "rows": plain, "measured_with": provenances(rows)})


def summarize(looks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means and counts over the tasks of a case."""
    counts = {name: sum(each[name] for each in looks) for name in ("differ", "lacks_classes", "found_unknown")}
    means = {name: fmean(each[name] for each in looks) for name in ("total_variation", "of_source", "called_unknown")}
    most = max(each["called_unknown"] for each in looks)
    return {"tasks": len(looks), **counts, **means, "most_called_unknown": most}


def look(cell: Cell) -> dict[str, Any]:
    """What a training would see before its first round, as `candapt.training.mixing` does, beside the truth."""
    task, truth, classes = problem(cell)
    rows, some = some_rows(task.source.size, max(SAMPLES, 10 * classes)), some_rows(task.target.size, SAMPLES)
    source, labels, target = features(task.source)[rows], task.source.labels[rows], features(task.target)
    units = standardized(target, *moments(target))
    unknown = find_unknown(standardized_by_source(source), labels, units, classes)
    known = None if unknown.known is None else unknown.known[some]
    estimate = estimate_proportions(source, labels, target[some], classes, known)
    real = truth[truth >= 0]
    shares = torch.from_numpy(np.bincount(real, minlength=classes) / len(real))
    return {
        "collection": cell.collection,
        "case": cell.case,
        "task": f"{cell.source} → {cell.target}",
        "samples": len(truth),
        "differ": estimate.differ,
        "lacks_classes": estimate.lacks_classes,
        "agreement": float(estimate.agreement),
        "total_variation": float((estimate.target - shares).abs().sum() / 2),
        "of_source": float((estimate.source - shares).abs().sum() / 2),
        "found_unknown": unknown.found,
        "called_unknown": unknown.share,
    }


def features(domain: Domain) -> torch.Tensor:
    """All samples of a domain."""
    return domain.samples.read(torch.arange(domain.size))


if __name__ == "__main__":
    main()
