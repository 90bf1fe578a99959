"""What is told of a training that came to its end."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from candapt.adaptation import Adapted
from candapt.baseline import Baseline, compare
from candapt.commands.job import Job
from candapt.evaluation.alarm import warnings_from
from candapt.evaluation.metrics import accuracy, measure, where_known
from candapt.runs import versions


def summarize(job: Job, found: dict[str, Any], adapted: Adapted, truth: Tensor | None) -> dict[str, Any]:
    """The content of `summary.json`."""
    predictions, classes = adapted.predictions, adapted.model.classes
    counts = predictions.labels.bincount(minlength=len(classes)).tolist()
    summary: dict[str, Any] = {
        "method": job.settings.method,
        "seed": job.settings.seed,
        "rounds": len(adapted.history),
        "stopped": "settled" if adapted.settled else "last round",
        "selection": adapted.choice.describe(),
        "seconds": round(adapted.seconds, 2),
        "data": found,
        "mean_confidence": float(predictions.confidence.mean()),
        "kept_share": float(predictions.kept.float().mean()),
        "cluster_agreement": float((predictions.labels == predictions.cluster_labels).float().mean()),
        "predicted_counts": dict(zip(classes, counts, strict=True)),
        "versions": versions(),
    }
    if truth is not None:
        summary["oracle"] = measure(truth, predictions.probabilities)
    return summary


def describe_baseline(adapted: Adapted, baseline: Baseline, truth: Tensor | None) -> dict[str, Any]:
    """What the summary tells of the comparison with the source-only network."""
    facts = compare(adapted, baseline)
    told: dict[str, Any] = {
        "warnings": [finding.describe() for finding in warnings_from(facts)],
        "source_only": {
            "mean_confidence": float(baseline.predictions.confidence.mean()),
            "same_predictions": facts.same,
            "scores": {name: value for name, value in baseline.record.items() if name.startswith("score_")},
        },
        "facts": asdict(facts),
    }
    if truth is not None:
        measured = accuracy(*where_known(truth, baseline.predictions.labels))
        told["source_only"]["oracle_accuracy"] = measured
    return told


def conclude(adapted: Adapted, folder: Path) -> str:
    """The last line of a run."""
    agreement = float((adapted.predictions.labels == adapted.predictions.cluster_labels).float().mean())
    choice = adapted.choice
    kept = "" if choice.round == choice.last_round else f" Kept round {choice.round + 1}, the best by {choice.select}."
    return (
        f"Done in {adapted.seconds:.0f} s after {len(adapted.history)} rounds.{kept} Classifier and clusters agree on "
        f"{agreement:.1%} of the target. Predictions: {folder / 'predictions.csv'}"
    )
