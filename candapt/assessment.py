"""Evidence without labels: the same run without adaptation beside it, confidence, warnings, and an estimate."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from candapt.adaptation import Result, adapt, initial_parts
from candapt.data.domains import Domain, Side, part_of
from candapt.evaluation.alarm import Facts, Finding, Outcome, gather_facts, notes_from, warnings_from
from candapt.evaluation.confidence import (
    STORED,
    Kind,
    Means,
    SampleConfidence,
    calibration,
    class_means,
    whole_domain,
)
from candapt.evaluation.estimate import Estimate, estimate_accuracy
from candapt.evaluation.metrics import accuracy, where_known
from candapt.evaluation.proportions import Proportions
from candapt.evaluation.reference import BANK, MANY, NEIGHBORS, Indexed, Reference, View, some_rows
from candapt.evaluation.sources import Contribution, contributions
from candapt.evaluation.unknown import LIKELY, SAMPLES, UNSEEN, alike, find_unknown, right_beside_unknown
from candapt.methods import METHODS
from candapt.methods.base import Method
from candapt.model import Predictions
from candapt.settings import LAST, Settings
from candapt.training.callbacks import Callback
from candapt.training.mixing import UNKNOWN, remembered_proportions
from candapt.training.outputs import outputs_of
from candapt.training.state import Record

BASELINE = "source-only"  # the method that a run is compared with


@dataclass(frozen=True, eq=False)
class Untouched:
    """What features that no adaptation has changed say of a task's target."""

    kind: Kind
    reference: Reference
    view: View  # of the whole target

    def confidence(self, probabilities: Tensor) -> tuple[Tensor, Means]:
        """Calibrated confidence of predictions for the whole target, shape (n,), and means of its evidence."""
        evidence, means = whole_domain(self.reference, self.view, probabilities)
        return calibration(self.kind, "domain").confidence(evidence), means


@dataclass(frozen=True, eq=False)
class Baseline:
    """The source-only network's results on a task."""

    predictions: Predictions  # of the target
    record: Record  # of its last round
    untouched: Untouched


@dataclass(frozen=True, eq=False)
class Evidence:
    """How far a result can be trusted, judged without target labels."""

    confidence: Tensor | None = None  # calibrated, of each target sample; None without untouched features
    calibrator: SampleConfidence | None = None  # the same for new samples
    estimate: Estimate | None = None
    baseline: Baseline | None = None
    facts: Facts | None = None
    findings: Sequence[Finding] = ()  # what speaks against trusting it
    notes: Sequence[Finding] = ()  # what else a user should know
    proportions: Proportions | None = None  # of the classes; None if they were not estimated
    unknown: Tensor | None = None  # how likely each target sample is none of the classes; None if nothing tells it
    groups: Sequence[Sequence[int]] = ()  # unknown target samples that resemble each other

    def describe(
        self, truth: Tensor | None, classes: tuple[str, ...] = (), names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The entries in `summary.json`; with true labels the baseline's accuracy, marked oracle, is among them."""
        entries: dict[str, Any] = {}
        if self.proportions is not None and classes:
            entries["proportions"] = self.proportions.describe(classes)
        if self.unknown is not None and len(names):
            groups = [[names[row] for row in group] for group in self.groups]
            entries["unknown"] = {"share": float((self.unknown > LIKELY).double().mean()), "groups": groups}
        if self.baseline is not None and self.facts is not None:
            predictions, record = self.baseline.predictions, self.baseline.record
            source_only = {
                "mean_confidence": self.facts.expected[1],
                "mean_softmax": float(predictions.softmax.mean()),
                "same_predictions": self.facts.same,
                "scores": {name: value for name, value in record.items() if name.startswith("score_")},
            }
            if truth is not None:
                source_only["oracle_accuracy"] = accuracy(*where_known(truth, predictions.labels))
            entries |= {
                "warnings": [finding.describe() for finding in self.findings],
                "notes": [note.describe() for note in self.notes],
                "source_only": source_only,
                "facts": asdict(self.facts),
            }
        return entries | {"estimated_accuracy": self.estimate.describe() if self.estimate else None}


def assess(result: Result, baseline: Baseline | None = None) -> Evidence:
    """Calibrate a result's confidence, compare it with the baseline, if there is one, and estimate its accuracy.

    A network that starts at random needs the baseline: before training, its features mean nothing.
    """
    untouched = baseline.untouched if baseline is not None else untouched_features(result)
    if untouched is None:
        return Evidence()
    by_class, means = untouched.confidence(result.predictions.probabilities)
    unknown, proportions = unknown_in(result, untouched), remembered_proportions(result.state.score_memory)
    confidence = right_beside_unknown(by_class, unknown, named=names_unknown(result))
    facts = None if baseline is None else compare(result, baseline, confidence, unknown)
    findings, notes = ([], []) if facts is None else (warnings_from(facts), notes_from(facts))
    others = result.prepared.target_labels < 0  # samples whose labels were given count in no accuracy
    estimate = None  # with no sample to speak of
    if others.any():
        estimate = estimate_accuracy(confidence[others], untouched.kind, doubtful=bool(findings or notes))
    of_classes = right_beside_unknown(by_class, unknown, named=False)
    calibrator = calibrator_for(result, untouched, of_classes, means, unknown)
    rows, bank = untouched.reference.target_rows, untouched.reference.target
    groups = [] if unknown is None else [rows[group].tolist() for group in alike(bank, unknown[rows])]
    return Evidence(confidence, calibrator, estimate, baseline, facts, findings, notes, proportions, unknown, groups)


def names_unknown(result: Result) -> bool:
    """Whether samples that are likely none of the classes are called `unknown`."""
    return result.settings.training.unknown == "label"


def unknown_in(result: Result, untouched: Untouched) -> Tensor | None:
    """How likely each target sample is none of the classes, as seen before the training or by the untouched features.

    None if the settings say that nobody shall look.
    """
    if result.settings.training.unknown == "off":
        return None
    remembered = result.state.score_memory.get(UNKNOWN)
    if remembered is not None:
        return remembered
    reference, rows = untouched.reference, some_rows(len(untouched.reference.source), SAMPLES)
    own, labels = reference.source[rows], reference.source_labels[rows]
    found = find_unknown(own, labels, reference.target, len(result.model.classes))
    # To a network that has seen nothing but the source, a whole target can look strange: then the values only order it.
    only_orders = untouched.kind == "scratch" and found.found
    bank = UNSEEN * found.probability if only_orders else found.probability
    whole = bank[untouched.view.target_neighbors].mean(1)  # for samples that are not in the bank
    whole[reference.target_rows] = bank
    return whole


def judge_sources(result: Result, baseline: Baseline | None, names: Sequence[str]) -> list[Contribution]:
    """Which of several sources help; empty for a single one, and where no untouched features can tell."""
    task = result.prepared
    if task.source.origins is None:
        return []
    untouched = baseline.untouched if baseline is not None else untouched_features(result)
    if untouched is None:
        return []
    rows = some_rows(task.source.size, max(BANK, NEIGHBORS * task.num_classes))  # the bank of the reference
    return contributions(untouched.reference, task.source.origins[rows], result.predictions.labels, names)


def with_confidence(result: Result, evidence: Evidence) -> Result:
    """The result with calibrated confidence, where there is any, in its predictions and its model."""
    return replace(
        result,
        predictions=replace(result.predictions, calibrated=evidence.confidence, unknown=evidence.unknown),
        model=replace(
            result.model,
            calibrator=evidence.calibrator,
            names_unknown=names_unknown(result),
        ),
    )


def calibrator_for(
    result: Result, untouched: Untouched, confidence: Tensor, means: Means, unknown: Tensor | None = None
) -> SampleConfidence:
    """What a model stores to tell the confidence of new samples.

    Where the network changes its own features, untouched ones cannot be had later: class and softmax must do.
    """
    labels, kind = result.predictions.labels, untouched.kind
    by_class = class_means(confidence, labels, len(result.model.classes))
    if kind == "scratch" or result.model.parts.settings.finetune != "head":
        return SampleConfidence(kind, by_class)
    bank = untouched.reference.reduced(STORED)
    others = None if unknown is None else unknown[bank.target_rows]
    return SampleConfidence(kind, by_class, bank, labels[bank.target_rows], means, others)


def train_baseline(result: Result, callbacks: Sequence[Callback] = ()) -> Baseline:
    """Train source-only with the settings, the seed and the starting network of a run; a source-only run is its own."""
    settings = result.settings
    if settings.method == BASELINE:
        return as_baseline(result)
    training = replace(settings.training, score_every=settings.rounds)  # only its last round is compared
    method = METHODS[BASELINE].Settings()
    own = replace(settings, method=BASELINE, method_settings=method, select=LAST, training=training)
    # The prepared task has passed through the frozen layers already.
    parts = replace(initial_parts(result.task, own), frozen=None)
    trained = adapt(result.prepared, own, parts=parts, callbacks=callbacks)
    return as_baseline(replace(trained, task=result.task))


def as_baseline(result: Result) -> Baseline:
    """A source-only run as what others of the same task and settings are compared with."""
    untouched = untouched_features(result) or seen_by(result.model.method, result, "scratch")
    features = result.predictions.features[:0]  # nobody compares them
    return Baseline(replace(result.predictions, features=features.clone()), result.record, untouched)


def untouched_features(result: Result) -> Untouched | None:
    """Pretrained features as they were before training; None if the network started at random."""
    if result.model.method.network.starts_at_random:
        return None
    plain: Settings = replace(result.settings, network=replace(result.settings.network, head="linear"))
    method = METHODS[BASELINE](initial_parts(result.task, plain).network, METHODS[BASELINE].Settings())
    return seen_by(method, result, "pretrained")


@torch.no_grad()
def seen_by(method: Method, result: Result, kind: Kind) -> Untouched:
    """A result's task as a method's features show it."""
    task, batch_size = result.prepared, result.settings.training.evaluation_batch
    rows = some_rows(task.source.size, max(BANK, NEIGHBORS * task.num_classes))
    chosen = part_of(task.source, rows)
    source = outputs_of(method, chosen, Side.SOURCE, batch_size=batch_size).features
    target: Indexed = _Seen(method, task.target, batch_size)
    if task.target.size <= MANY:
        target = outputs_of(method, task.target, Side.TARGET, batch_size=batch_size).features
    reference = Reference.of_target(source, chosen.labels, target, task.num_classes, origins=chosen.origins)
    return Untouched(kind, reference, reference.view_of_rows(target))


@dataclass(frozen=True, eq=False)
class _Seen:
    """A method's features of a target too large to hold them all, computed when some rows are asked for."""

    method: Method
    domain: Domain
    batch_size: int

    def __len__(self) -> int:
        return self.domain.size

    def __getitem__(self, rows: Tensor) -> Tensor:
        part = part_of(self.domain, rows)
        return outputs_of(self.method, part, Side.TARGET, batch_size=self.batch_size).features


def compare(
    result: Result, baseline: Baseline, confidence: Tensor | None = None, unknown: Tensor | None = None
) -> Facts:
    """What the warnings are based on."""
    untouched, plain = baseline.untouched, baseline.predictions
    if confidence is None:
        confidence = untouched.confidence(result.predictions.probabilities)[0]
    by_plain = untouched.confidence(plain.probabilities)[0]
    by_plain = right_beside_unknown(by_plain, unknown, named=names_unknown(result))
    share = 0.0 if unknown is None else float((unknown > LIKELY).double().mean())
    others = result.prepared.target_labels < 0  # samples whose labels were given count in no accuracy
    counted = others if others.any() else torch.ones_like(others)
    adapted = Outcome(result.predictions.probabilities, result.predictions.cluster_labels, confidence[counted])
    other = Outcome(plain.probabilities, plain.cluster_labels, by_plain[counted])
    proportions = remembered_proportions(result.state.score_memory)
    return gather_facts(adapted, other, untouched.reference, untouched.view, proportions, share)
