"""Fit and measure confidence, estimate and alarm: `python -m benchmarks.calibration`.

They are fitted on PACS features (pretrained networks) and on digits (networks that start at random), never on
Office-31. Every figure is of a target that was left out of the fit: all trainings with the same target are left out
together. The weights of a fit on everything go to `candapt/evaluation/calibration.json`. Trainings are kept below
`--out`; repeat the command to run those that are missing.

`python -m benchmarks.calibration --apply runs/office31` measures the weights as they are on the cells of a benchmark
over feature files, which no fit has seen.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmarks.record import distinct, record
from benchmarks.shifts import Case, Stored, cases, stored
from benchmarks.suites import DATA
from candapt.assessment import BASELINE
from candapt.benchmark.collections import FeatureCollection
from candapt.benchmark.suites import SUITES
from candapt.console import show_log
from candapt.evaluation.alarm import Facts, Outcome, gather_facts, notes_from, warnings_from
from candapt.evaluation.confidence import (
    EVIDENCE,
    FILE,
    STORED,
    Calibration,
    Kind,
    Scope,
    calibration,
    class_means,
    log_odds,
    whole_domain,
)
from candapt.evaluation.metrics import brier_score, expected_calibration_error, risk_coverage_area
from candapt.evaluation.reference import Reference, View
from candapt.randomness import generator
from candapt.storage.files import write_json

REGULARIZATION = 0.03  # C of the logistic regression on standardized evidence, a thousand samples for each training
COVERED = 0.9  # share of trainings whose accuracy lies in the range of the estimate
SMALL = ((15, 40), (15, 100), (40, 15), (40, 100), (100, 15), (100, 40))  # samples per class of target and source
SURE = ("softmax", "neighbors", "classifier", "neighbor_classifier")
USED: dict[tuple[Kind, Scope], tuple[str, ...]] = {
    ("pretrained", "domain"): tuple(name for name in EVIDENCE if name != "class_confidence"),
    ("pretrained", "sample"): tuple(name for name in EVIDENCE if name != "class_confidence"),
    ("pretrained", "class"): ("softmax", "class_confidence"),
    ("scratch", "domain"): SURE,
    ("scratch", "class"): ("softmax", "class_confidence"),
}
"""The evidence of each calibration; three targets of digits are too few for that of whole targets."""

Columns = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Measured:
    """A training's evidence by scope, and whether its predictions are right."""

    case: Case
    per_class: tuple[int, int] | None  # samples of target and source per class if there are only a few
    classes: int
    probabilities: Tensor
    evidence: dict[str, Columns]
    base_evidence: Columns  # of the source-only network's predictions, scope `domain`
    right: Tensor
    base_right: Tensor
    present: int  # classes that the target has
    facts: Facts  # what the alarm judges by, but for the estimated accuracies
    provenance: dict[str, Any]

    @property
    def target(self) -> str:
        """Name of its target."""
        return self.case.target

    @property
    def is_bad(self) -> bool:
        """Whether it deserves the alarm: a point below source-only, half wrong, or a third of the classes missing."""
        accuracy, plain = (float(each.double().mean()) for each in (self.right, self.base_right))
        return accuracy < plain - 0.01 or accuracy < 0.5 or self.present <= 2 / 3 * self.classes


def main() -> None:
    show_log()
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--apply", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.apply:
        apply_to(options.apply)
        return
    trainings = [measured(each) for case in cases() for each in sizes(stored(case, options.out))]
    fitted, rows = {}, []
    for kind in ("pretrained", "scratch"):
        own = [each for each in trainings if each.case.kind == kind]
        weights, figures = fit_kind(kind, own)
        fitted[kind] = weights
        rows += figures
    write_json(FILE, fitted)
    sources = [each.provenance for each in trainings]
    record("calibration", {"measured_with": distinct(sources), "trainings": rows})


def sizes(result: Stored) -> Iterator[Stored]:
    """A training as it is and, of pretrained features without a fault, as if both domains had only a few samples.

    The fewer samples of a class there are, the fewer of the ten nearest ones can be of it.
    """
    yield result
    if result.case.kind == "pretrained" and result.case.fault == "as it is":
        for each in SMALL:
            draw = generator(result.case.name, *each)
            target = torch.randperm(len(result.target), generator=draw)[: each[0] * result.classes]
            source = torch.randperm(len(result.source), generator=draw)[: each[1] * result.classes]
            yield replace(
                result,
                per_class=each,
                **{n: getattr(result, n)[source] for n in ("source", "source_labels")},
                **{n: getattr(result, n)[target] for n in ("target", "truth", "probabilities", "cluster_labels")},
                **{n: getattr(result, n)[target] for n in ("base_probabilities", "base_cluster_labels")},
            )


def measured(result: Stored) -> Measured:
    """Evidence for both networks' predictions, without the features that it comes from."""
    reference = Reference.of(result.source, result.source_labels, result.target, result.classes)
    rows = torch.arange(len(result.target))
    view, small = reference.view(result.target, rows), reference.reduced(STORED)
    domain, _ = whole_domain(reference, view, result.probabilities)
    base, _ = whole_domain(reference, view, result.base_probabilities)
    outcomes = (
        Outcome(result.probabilities, result.cluster_labels, torch.zeros(len(rows))),
        Outcome(result.base_probabilities, result.base_cluster_labels, torch.zeros(len(rows))),
    )
    return Measured(
        result.case,
        result.per_class,
        result.classes,
        result.probabilities,
        {
            "domain": domain,
            "sample": single_evidence(domain, small, small.view(result.target, rows), result.probabilities),
        },
        base,
        result.probabilities.argmax(1) == result.truth,
        result.base_probabilities.argmax(1) == result.truth,
        int((result.truth.bincount(minlength=result.classes) > 0).sum()),
        gather_facts(outcomes[0], outcomes[1], reference, view),
        result.provenance,
    )


def single_evidence(domain: Columns, small: Reference, view: View, probabilities: Tensor) -> Columns:
    """Evidence from a small bank, with the means of the whole domain that a model stores."""
    means = {name: domain[name] for name in domain if name.startswith(("all_", "class_"))}
    return whole_domain(small, view, probabilities)[0] | means


def fit_kind(kind: Kind, trainings: Sequence[Measured]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Weights for a kind of features, and figures of each training with its target left out."""
    rows = list[dict[str, Any]]()
    for target in dict.fromkeys(each.target for each in trainings):
        rest = good([each for each in trainings if each.target != target])
        weights = {scope: fit(kind, scope, rest) for scope in ("domain", "sample") if (kind, scope) in USED}
        weights["class"] = fit(kind, "class", [with_class_evidence(each, weights["domain"]) for each in rest])
        for each in (each for each in trainings if each.target == target):
            own = with_class_evidence(each, weights["domain"])
            values = {scope: weights[scope].confidence(own.evidence[scope]) for scope in weights}
            rows.append(figures(own, values, weights["domain"].confidence(each.base_evidence)))
    everything = {scope: fit(kind, scope, good(trainings)) for scope in ("domain", "sample") if (kind, scope) in USED}
    by_class = [with_class_evidence(each, everything["domain"]) for each in good(trainings)]
    everything["class"] = fit(kind, "class", by_class)
    return {**{scope: asdict(each) for scope, each in everything.items()}, "margins": margins(rows)}, rows


def good(trainings: Sequence[Measured]) -> list[Measured]:
    """Those to fit on: targets as they are. What the faults do to an accuracy, this evidence cannot see."""
    return [each for each in trainings if each.case.fault == "as it is"]


def with_class_evidence(each: Measured, weights: Calibration) -> Measured:
    """The same with evidence of scope `class`, from the confidence over the samples predicted as each class."""
    labels, domain = each.probabilities.argmax(1), each.evidence["domain"]
    by_class = log_odds(class_means(weights.confidence(domain), labels, each.classes))[labels]
    evidence = {**each.evidence, "class": {"softmax": domain["softmax"], "class_confidence": by_class}}
    return Measured(**{**vars(each), "evidence": evidence})


def fit(kind: Kind, scope: Scope, trainings: Sequence[Measured]) -> Calibration:
    """Weights by logistic regression, in which every training counts the same."""
    names = USED[kind, scope]
    x = np.concatenate([np.stack([each.evidence[scope][n].numpy() for n in names], 1) for each in trainings])
    y = np.concatenate([each.right.numpy() for each in trainings])
    counts = np.concatenate([np.full(len(each.right), 1000 / len(each.right)) for each in trainings])
    mean, scale = x.mean(0), x.std(0) + 1e-9
    model = LogisticRegression(C=REGULARIZATION, max_iter=1000).fit((x - mean) / scale, y, counts)
    weights = model.coef_[0] / scale
    ranges = {name: (float(low), float(high)) for name, low, high in zip(names, x.min(0), x.max(0), strict=True)}
    bias = float(model.intercept_[0] - weights @ mean)
    return Calibration(bias, dict(zip(names, map(float, weights), strict=True)), ranges)


def figures(each: Measured, values: Mapping[str, Tensor], base: Tensor) -> dict[str, Any]:
    """What is recorded of a training."""
    facts = replace(each.facts, expected=(float(values["domain"].mean()), float(base.mean())))
    return {
        **asdict(each.case),
        "per_class": each.per_class,
        **quality(each.right, each.probabilities, values),
        "source_only_accuracy": float(each.base_right.double().mean()),
        **alarm_figures(each.is_bad, facts),
    }


def quality(right: Tensor, probabilities: Tensor, values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Calibration error, Brier score, area under the risk-coverage curve and mean of each confidence."""
    softmax, half = probabilities.amax(1), len(right) // 2
    surest = values["domain"].argsort(descending=True, stable=True)[:half]
    return {
        "accuracy": float(right.double().mean()),
        "surest_half": float(right[surest].double().mean()),
        "surest_half_softmax": float(right[softmax.argsort(descending=True, stable=True)[:half]].double().mean()),
        **{
            scope: {
                "ece": calibration_error(right, each),
                "brier": brier_score(right, each),
                "aurc": risk_coverage_area(right, each),
                "mean": float(each.mean()),
            }
            for scope, each in {**values, "softmax": softmax}.items()
        },
    }


def calibration_error(right: Tensor, confidence: Tensor) -> float:
    """ECE with 15 bins."""
    pairs = torch.stack([1 - right.double(), right.double()], 1)  # class 1 is predicted where it is right
    return expected_calibration_error(torch.ones(len(right), dtype=torch.int64), pairs, confidence)[0]


def alarm_figures(bad: bool, facts: Facts) -> dict[str, Any]:
    """What the alarm says, and whether it should."""
    kinds, notes = ([finding.kind for finding in each(facts)] for each in (warnings_from, notes_from))
    return {"bad": bad, "warnings": kinds, "notes": notes, "facts": asdict(facts)}


def margins(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How far nine of ten estimates are off at most, for runs without and with a warning or a note."""
    errors: dict[str, list[float]] = {"good": [], "doubtful": []}
    for row in rows:
        errors["doubtful" if row["warnings"] or row["notes"] else "good"].append(
            abs(row["domain"]["mean"] - row["accuracy"])
        )
    return {name: round(float(np.quantile(each, COVERED)), 3) for name, each in errors.items()}


def apply_to(folder: Path) -> None:
    """Measure the weights as they are on the cells of a benchmark over feature files, and record it."""
    suite = json.loads((folder / "results.json").read_text(encoding="utf-8"))["suite"]
    data = DATA[suite]
    assert data is not None
    collection, rows, sources = FeatureCollection(data), [], []
    looked: dict[tuple[str, str], tuple[Reference, View, Reference, View, Tensor]] = {}
    for path in sorted(folder.glob("cells/*/*/seed-*.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        pair = cell["task"]["source"], cell["task"]["target"]
        if pair not in looked:
            looked[pair] = references(collection, *pair)
        with np.load(path.with_suffix(".npz")) as arrays:
            probabilities = torch.as_tensor(arrays["probabilities"])
            clusters = torch.as_tensor(arrays["cluster_labels"]).long()
        rows.append(cell_figures(cell, probabilities, clusters, *looked[pair]))
        sources.append(cell.get("provenance"))
    add_alarms(rows, looked)
    for row in rows:
        row.pop("outcome")
    print(json.dumps(averages(rows), indent=2))
    content = {"title": SUITES[suite].title, "averages": averages(rows), "runs": rows}
    record(f"calibration-{suite}", {"measured_with": distinct(sources), **content})


def references(
    collection: FeatureCollection, source: str, target: str
) -> tuple[Reference, View, Reference, View, Tensor]:
    """What untouched features say of a task."""
    problem = collection.problem(source, target, 0)
    features = [domain.samples.read(torch.arange(domain.size)) for domain in (problem.task.source, problem.task.target)]
    reference = Reference.of(features[0], problem.task.source.labels, features[1], problem.task.num_classes)
    rows, small = torch.arange(len(features[1])), reference.reduced(STORED)
    return reference, reference.view(features[1], rows), small, small.view(features[1], rows), problem.truth


def cell_figures(
    cell: Mapping[str, Any],
    probabilities: Tensor,
    clusters: Tensor,
    reference: Reference,
    view: View,
    small: Reference,
    small_view: View,
    truth: Tensor,
) -> dict[str, Any]:
    """Figures of one cell, and the outcome that the alarm needs."""
    domain, _ = whole_domain(reference, view, probabilities)
    single = single_evidence(domain, small, small_view, probabilities)
    confidence = calibration("pretrained", "domain").confidence(domain)
    labels = probabilities.argmax(1)
    by_class = log_odds(class_means(confidence, labels, probabilities.shape[1]))[labels]
    values = {
        "domain": confidence,
        "sample": calibration("pretrained", "sample").confidence(single),
        "class": calibration("pretrained", "class").confidence(
            {"softmax": domain["softmax"], "class_confidence": by_class}
        ),
    }
    known = truth >= 0
    return {
        "task": cell["task"]["name"],
        "pair": [cell["task"]["source"], cell["task"]["target"]],
        "method": cell["row"],
        "seed": cell["settings"]["seed"],
        **quality((labels == truth)[known], probabilities[known], {name: each[known] for name, each in values.items()}),
        "outcome": Outcome(probabilities, clusters, confidence),
    }


def add_alarms(rows: list[dict[str, Any]], looked: Mapping[tuple[str, str], tuple[Any, ...]]) -> None:
    """What the alarm says of each run beside source-only with the same seed; no class is missing here."""
    plain = {(row["task"], row["seed"]): row for row in rows if row["method"] == BASELINE}
    for row in rows:
        base = plain.get((row["task"], row["seed"]))
        if base is not None:
            reference, view, *_ = looked[row["pair"][0], row["pair"][1]]
            bad = row["accuracy"] < base["accuracy"] - 0.01 or row["accuracy"] < 0.5
            row |= alarm_figures(bad, gather_facts(row["outcome"], base["outcome"], reference, view))


def averages(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the runs of each method and over all."""
    groups: dict[str, list[Mapping[str, Any]]] = {**{row["method"]: [] for row in rows}, "all": []}
    for row in rows:
        groups[row["method"]].append(row)
        groups["all"].append(row)
    return {name: dict(_means(group)) for name, group in groups.items()}


def _means(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    yield "runs", len(rows)
    for scope in ("domain", "sample", "class", "softmax"):
        yield scope, {key: fmean(row[scope][key] for row in rows) for key in ("ece", "brier", "aurc")}
    yield "estimate_error", fmean(abs(row["domain"]["mean"] - row["accuracy"]) for row in rows)
    worse = [row for row in rows if any(row["domain"][key] > row["softmax"][key] for key in ("brier", "aurc"))]
    yield "worse_than_softmax", len(worse)


if __name__ == "__main__":
    main()
