"""The same run without adaptation, to tell whether adaptation helped."""

from dataclasses import dataclass, replace

from candapt.adaptation import Adapted, Watcher, adapt, initial_layers
from candapt.data.domains import Side, part_of
from candapt.evaluation.alarm import Facts, Outcome, Reference, gather_facts
from candapt.evaluation.predict import outputs_of
from candapt.evaluation.selection import LAST
from candapt.methods import METHODS
from candapt.model import Predictions
from candapt.settings import Settings
from candapt.training.loop import Record
from candapt.training.scoring import scored_rows

METHOD = "source-only"


@dataclass(frozen=True, eq=False)
class Baseline:
    """What the source-only network makes of a task."""

    predictions: Predictions
    """Of the target."""
    record: Record
    """What is known of its last round."""
    reference: Reference
    """Features that no adaptation has touched."""


def baseline_of(adapted: Adapted, settings: Settings, watcher: Watcher) -> Baseline:
    """Train source-only with the settings, the seed and the starting network of a run; if it is that, it serves itself.

    Args:
        adapted: what the run left.
        settings: its settings.
        watcher: is told of steps and rounds.
    """
    if settings.method == METHOD:
        return as_baseline(adapted, settings)
    own = replace(settings, method=METHOD, adaptation=None, select=LAST)
    layers = replace(
        initial_layers(adapted.task, own), frozen=None
    )  # the prepared task is through the frozen ones already
    trained = adapt(adapted.prepared, own, layers=layers, watcher=watcher)
    return as_baseline(replace(trained, task=adapted.task), own)


def as_baseline(adapted: Adapted, settings: Settings) -> Baseline:
    """A run of source-only as what others of the same task and settings are compared with."""
    method, prepared = adapted.model.method, adapted.prepared
    if not method.network.starts_at_random:  # classes are seen in the pretrained features as they are
        plain = replace(settings, network=replace(settings.network, bottleneck=None))
        method = METHODS[METHOD](initial_layers(adapted.task, plain).network, METHODS[METHOD].Settings())
    rows = scored_rows(prepared, settings.seed)
    source, target = (
        outputs_of(
            method, part_of(prepared.domain(side), rows[side]), side, batch_size=settings.training.evaluation_batch
        ).features
        for side in Side
    )
    reference = Reference(source, prepared.source.labels[rows[Side.SOURCE]], target, rows[Side.TARGET])
    return Baseline(adapted.predictions, adapted.record, reference)


def compare(adapted: Adapted, baseline: Baseline) -> Facts:
    """What the alarm judges by."""
    own, other = (_outcome(each, baseline.reference) for each in (adapted.predictions, baseline.predictions))
    return gather_facts(own, other, baseline.reference)


def _outcome(predictions: Predictions, reference: Reference) -> Outcome:
    rows = reference.target_rows
    return Outcome(predictions.probabilities[rows], predictions.cluster_labels[rows])
