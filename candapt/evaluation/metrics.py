"""Figures that need true labels, and the distance between the domains: pure functions."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from candapt.losses.cdd import contrastive_domain_discrepancy, shared_classes
from candapt.network.network import Outputs
from candapt.randomness import generator


class CalibrationBins(NamedTuple):
    """The table behind a reliability plot, one row per bin of confidence."""

    edges: Tensor  # limits of the bins, shape (bins + 1,); a bin holds its upper limit and not its lower one
    counts: Tensor  # samples in each bin, shape (bins,)
    confidences: Tensor  # mean confidence of each bin's samples, shape (bins,); NaN for an empty bin
    accuracies: Tensor  # share of each bin's samples classified correctly, shape (bins,); NaN for an empty bin

    def describe(self) -> list[dict[str, float]]:
        """The bins that hold samples, as plain values."""
        columns = (each.tolist() for each in (self.counts, self.confidences, self.accuracies))
        names = ("count", "confidence", "accuracy")
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True) if row[0]]


def accuracy(labels: Any, predictions: Any) -> float:
    """Share of samples whose prediction is their label; both of shape (n,).

    >>> accuracy([0, 1, 2, 2], [0, 1, 2, 1])
    0.75
    """
    true, predicted = _class_indices(labels, predictions)
    return float((true == predicted).double().mean())


def mean_class_accuracy(labels: Any, predictions: Any) -> float:
    """Mean over the classes present of the share of their samples classified correctly, as VisDA-2017 is scored.

    >>> mean_class_accuracy([0, 0, 0, 2], [0, 0, 0, 1])
    0.5
    """
    return float(per_class_accuracy(labels, predictions).nanmean())


def per_class_accuracy(labels: Any, predictions: Any, *, num_classes: int | None = None) -> Tensor:
    """Share of each class's samples classified correctly (its recall), shape (classes,), float64; NaN without any."""
    matrix = confusion_matrix(labels, predictions, num_classes=num_classes).double()
    return matrix.diagonal() / matrix.sum(dim=1)


def confusion_matrix(labels: Any, predictions: Any, *, num_classes: int | None = None) -> Tensor:
    """Number of samples of each class (rows) predicted as each class (columns), shape (classes, classes), int64.

    By default the classes are those up to the largest index in either argument, both of shape (n,).
    """
    true, predicted = _class_indices(labels, predictions)
    largest = int(torch.maximum(true, predicted).max())
    classes = largest + 1 if num_classes is None else num_classes
    if largest >= classes:
        raise ValueError(f"Class {largest} does not fit {classes} classes: class indices count from 0.")
    return (true * classes + predicted).bincount(minlength=classes**2).view(classes, classes)


def expected_calibration_error(
    labels: Any, probabilities: Any, confidences: Any = None, *, bins: int = 15
) -> tuple[float, CalibrationBins]:
    """Mean gap of confidence and accuracy over bins of confidence of equal width, weighted by samples; and the bins.

    Labels have shape (n,), probabilities (n, classes), confidences (n,): by default the largest probabilities.
    """
    largest, predictions = torch.as_tensor(probabilities).detach().cpu().double().max(dim=1)
    confidences = largest if confidences is None else torch.as_tensor(confidences).detach().cpu().double()
    true, predicted = _class_indices(labels, predictions)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    places = torch.bucketize(confidences, edges[1:-1])  # an edge belongs to the bin below it
    counts = places.bincount(minlength=bins)
    confidence = places.bincount(confidences, minlength=bins) / counts
    correct = places.bincount((true == predicted).double(), minlength=bins) / counts
    error = float((counts * (confidence - correct).abs()).nansum() / len(true))
    return error, CalibrationBins(edges, counts, confidence, correct)


def brier_score(right: Tensor, confidences: Tensor) -> float:
    """Mean squared difference of confidence and being right, 1 or 0; both of shape (n,)."""
    return float((confidences.double() - right.double()).square().mean())


def risk_coverage_area(right: Tensor, confidences: Tensor) -> float:
    """Error among the surest samples, averaged over how many of them one takes: low if mistakes are the least sure.

    Equally sure samples count by the mean of their errors, in whatever order they come.

    >>> risk_coverage_area(torch.tensor([1, 1, 0, 0]), torch.tensor([0.9, 0.8, 0.3, 0.2]))
    0.20833333333333331
    """
    levels, places = torch.unique(confidences.double(), return_inverse=True)
    errors = 1 - right.double()
    mean_errors = places.bincount(errors, minlength=len(levels)) / places.bincount(minlength=len(levels))
    surest_first = confidences.double().argsort(descending=True, stable=True)
    cumulative = mean_errors[places][surest_first].cumsum(0)
    return float((cumulative / torch.arange(1, len(errors) + 1)).mean())


def where_known(truth: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and values of those samples that have a label; the others have a negative one."""
    known = truth >= 0
    return truth[known], values[known]


def measure(truth: Tensor, probabilities: Tensor, confidences: Tensor | None = None) -> dict[str, Any]:
    """All figures that need true labels; samples without one, or of an unknown class, are counted and left out.

    The calibration is that of the confidences, shape (n,), by default the largest probabilities.
    """
    labels, known = where_known(truth, probabilities)
    predicted = known.argmax(1)
    own = where_known(truth, probabilities.amax(1) if confidences is None else confidences)[1]
    calibration, bins = expected_calibration_error(labels, known, own)
    return {
        "accuracy": accuracy(labels, predicted),
        "mean_class_accuracy": mean_class_accuracy(labels, predicted),
        "calibration_error": calibration,
        "calibration": bins.describe(),
        "softmax_calibration_error": expected_calibration_error(labels, known)[0],
        "brier_score": brier_score(labels == predicted, own),
        "risk_coverage_area": risk_coverage_area(labels == predicted, own),
        "samples": len(labels),
        "left_out": len(truth) - len(labels),
        "confusion": confusion_matrix(labels, predicted, num_classes=probabilities.shape[1]).tolist(),
    }


def _class_indices(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    """Both as int64 on the CPU, of the same shape (n,) with n > 0 and no negative index."""
    true, predicted = (torch.as_tensor(values).detach().cpu() for values in (labels, predictions))
    if true.ndim != 1 or true.shape != predicted.shape:
        shapes = f"{tuple(true.shape)} and {tuple(predicted.shape)}"
        raise ValueError(f"Labels and predictions of shapes {shapes} do not fit: give one class index per sample each.")
    if not len(true):
        raise ValueError("There are no samples to score: give at least one label and prediction.")
    if true.is_floating_point() or predicted.is_floating_point():
        raise ValueError("Labels and predictions must be class indices, that is integers.")
    if min(int(true.min()), int(predicted.min())) < 0:
        raise ValueError("A label or prediction is negative: leave samples without a class out before scoring.")
    return true.long(), predicted.long()


CLASSES = 40  # maximum number of classes that take part: the discrepancy compares every pair of them
SAMPLES = 10  # maximum number of samples of each class and domain that take part


def domain_discrepancy(
    source: Outputs, target: Outputs, source_labels: Tensor, target_labels: Tensor, *, seed: int = 0
) -> float | None:
    """The discrepancy of CAN between two domains, over features and probabilities; None without two shared classes.

    A target sample with a negative label takes no part; labels may be true or pseudo. The same seed draws samples in
    the same order, so that the rounds of a training can be compared.
    """
    classes = shared_classes(source_labels, target_labels[target_labels >= 0])
    if len(classes) < 2:
        return None
    classes = classes[torch.randperm(len(classes), generator=generator(seed, "classes"))[:CLASSES]]
    source_layers, source_labels = _some_of_each(source, source_labels, classes, generator(seed, "source"))
    target_layers, target_labels = _some_of_each(target, target_labels, classes, generator(seed, "target"))
    return float(contrastive_domain_discrepancy(source_layers, target_layers, source_labels, target_labels))


def _some_of_each(
    outputs: Outputs, labels: Tensor, classes: Tensor, random: torch.Generator
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Features and probabilities, and labels, of at most `SAMPLES` samples of each class."""
    order = torch.randperm(len(labels), generator=random)
    rows = torch.cat([order[labels[order] == each][:SAMPLES] for each in classes])
    return (outputs.features[rows], outputs.probabilities[rows]), labels[rows]
