"""Three domains of PACS as sources for the fourth: `python -m benchmarks.sources`.

Each source with its own batch norm, the same sources pooled as one, and every source alone. Beside them: which sources
a run says do not help, and what it reaches without those.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import DOMAINS, Cell, cell, domain, provenances, unlabeled
from benchmarks.record import record
from candapt.adaptation import adapt
from candapt.assessment import judge_sources
from candapt.data.domains import LabeledDomain, Task
from candapt.data.joining import join_sources
from candapt.evaluation.metrics import accuracy
from candapt.presets import make_settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="By default those of the settings.")
    parser.add_argument("--out", type=Path, default=Path("runs/sources"))
    options = parser.parse_args(arguments)
    changes = {} if options.rounds is None else {"rounds": options.rounds}
    folder = options.out if options.rounds is None else options.out / f"rounds-{options.rounds}"
    rows, cells = list[dict[str, Any]](), list[Cell]()
    for target in DOMAINS["pacs"]:
        measured = []
        for seed in range(options.seeds):
            figures = one_target(target, seed, changes, folder)
            cells += figures.values()
            plain = {n: {k: v for k, v in each.items() if k != "measured_with"} for n, each in figures.items()}
            measured.append(plain)
        rows.append({"target": target, "runs": measured})
    about = {"seeds": options.seeds, "settings": changes}
    record("sources", {**about, "rows": rows, "means": means(rows), "measured_with": provenances(cells)})


def means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean accuracies over targets and seeds; the best single source is that of the highest mean for each target."""
    found = {kind: [run[kind]["accuracy"] for row in rows for run in row["runs"]] for kind in ("joined", "pooled")}
    singles = []
    for row in rows:
        names = [name for name in DOMAINS["pacs"] if name != row["target"]]
        singles.append(max(statistics.fmean(run[name]["accuracy"] for run in row["runs"]) for name in names))
    return {kind: statistics.fmean(values) for kind, values in (*found.items(), ("best single", singles))}


def one_target(target: str, seed: int, changes: dict[str, Any], folder: Path) -> dict[str, Cell]:
    """All trainings for one target."""
    names = [name for name in DOMAINS["pacs"] if name != target]
    joined = join_sources([domain("pacs", name) for name in names], names)
    settings = make_settings("can", seed=seed, changes=changes)
    steps = settings.training.steps or 0

    def measure(source: LabeledDomain, titles: Sequence[str]) -> Cell:
        labeled, pooled = domain("pacs", target), source.size == joined.size and source.origins is None
        # Several sources have as many steps each as a single one; pooled they get as many in all.
        own = settings.changed({"training.steps": len(names) * steps}) if pooled else settings
        result = adapt(Task(source, unlabeled(labeled)), own)
        judged = judge_sources(result, None, titles)
        return {
            "accuracy": accuracy(labeled.labels, result.predictions.labels),
            "sources": [each.describe() for each in judged],
        }

    def stored(kind: str, source: LabeledDomain, titles: Sequence[str] = ()) -> Cell:
        return cell(folder, f"{target}-{seed}-{kind}", lambda: measure(source, titles))

    figures = {"joined": stored("joined", joined, names), "pooled": stored("pooled", replace(joined, origins=None))}
    figures |= {name: stored(name, domain("pacs", name)) for name in names}
    helpful = [each["name"] for each in figures["joined"]["sources"] if each["helps"]]
    if len(helpful) < len(names):
        fewer = join_sources([domain("pacs", name) for name in helpful], helpful)
        figures["without those named"] = stored(f"only-{'+'.join(helpful)}", fewer, helpful)
    return figures


if __name__ == "__main__":
    main()
