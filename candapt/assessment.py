"""Evidence without labels: the same run without adaptation beside it, warnings, and an estimate of the accuracy."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from candapt.adaptation import Result, adapt, initial_parts
from candapt.data.domains import Side, part_of
from candapt.evaluation.alarm import Facts, Finding, Outcome, Reference, gather_facts, warnings_from
from candapt.evaluation.estimate import Estimate, estimate_accuracy
from candapt.evaluation.metrics import accuracy, where_known
from candapt.methods import METHODS
from candapt.model import Predictions
from candapt.settings import LAST, Settings
from candapt.training.callbacks import Callback
from candapt.training.outputs import outputs_of
from candapt.training.scoring import scored_rows
from candapt.training.state import Record

BASELINE = "source-only"  # the method that a run is compared with


@dataclass(frozen=True, eq=False)
class Baseline:
    """The source-only network's results on a task."""

    predictions: Predictions  # of the target
    record: Record  # of its last round
    reference: Reference  # features that no adaptation has touched


@dataclass(frozen=True, eq=False)
class Evidence:
    """How far a result can be trusted, judged without target labels."""

    estimate: Estimate | None
    baseline: Baseline | None = None
    facts: Facts | None = None
    findings: Sequence[Finding] = ()  # what speaks against trusting it

    def describe(self, truth: Tensor | None) -> dict[str, Any]:
        """The entries in `summary.json`; with true labels the baseline's accuracy, marked oracle, is among them."""
        entries: dict[str, Any] = {}
        if self.baseline is not None and self.facts is not None:
            predictions, record = self.baseline.predictions, self.baseline.record
            source_only = {
                "mean_confidence": float(predictions.confidence.mean()),
                "same_predictions": self.facts.same,
                "scores": {name: value for name, value in record.items() if name.startswith("score_")},
            }
            if truth is not None:
                source_only["oracle_accuracy"] = accuracy(*where_known(truth, predictions.labels))
            entries = {
                "warnings": [finding.describe() for finding in self.findings],
                "source_only": source_only,
                "facts": asdict(self.facts),
            }
        return entries | {"estimated_accuracy": self.estimate.describe() if self.estimate else None}


def assess(result: Result, baseline: Baseline | None = None) -> Evidence:
    """Compare a result with the baseline, if there is one, and estimate its accuracy."""
    facts = compare(result, baseline) if baseline is not None else None
    findings = warnings_from(facts) if facts is not None else []
    estimate = estimate_accuracy(
        result.record,
        starts_at_random=result.model.method.network.starts_at_random,
        doubtful=bool(findings),
    )
    return Evidence(estimate, baseline, facts, findings)


def train_baseline(result: Result, callbacks: Sequence[Callback] = ()) -> Baseline:
    """Train source-only with the settings, the seed and the starting network of a run; a source-only run is its own."""
    settings = result.settings
    if settings.method == BASELINE:
        return as_baseline(result)
    own = replace(settings, method=BASELINE, method_settings=METHODS[BASELINE].Settings(), select=LAST)
    # The prepared task has passed through the frozen layers already.
    parts = replace(initial_parts(result.task, own), frozen=None)
    trained = adapt(result.prepared, own, parts=parts, callbacks=callbacks)
    return as_baseline(replace(trained, task=result.task))


def as_baseline(result: Result) -> Baseline:
    """A source-only run as what others of the same task and settings are compared with."""
    method, prepared, settings = result.model.method, result.prepared, result.settings
    if not method.network.starts_at_random:  # classes are compared in the pretrained features as they are
        plain: Settings = replace(settings, network=replace(settings.network, bottleneck=None))
        method = METHODS[BASELINE](initial_parts(result.task, plain).network, METHODS[BASELINE].Settings())
    rows, batch_size = scored_rows(prepared, settings.seed), settings.training.evaluation_batch
    source, target = (
        outputs_of(method, part_of(prepared.domain(side), rows[side]), side, batch_size=batch_size).features
        for side in Side
    )
    reference = Reference(source, prepared.source.labels[rows[Side.SOURCE]], target, rows[Side.TARGET])
    return Baseline(result.predictions, result.record, reference)


def compare(result: Result, baseline: Baseline) -> Facts:
    """What the warnings are based on."""
    own, other = (_outcome(each, baseline.reference) for each in (result.predictions, baseline.predictions))
    return gather_facts(own, other, baseline.reference)


def _outcome(predictions: Predictions, reference: Reference) -> Outcome:
    rows = reference.target_rows
    return Outcome(predictions.probabilities[rows], predictions.cluster_labels[rows])
