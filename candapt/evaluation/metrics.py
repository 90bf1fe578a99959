"""How good predictions are, given true labels: pure functions of arrays or tensors."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from candapt.errors import UserError


class CalibrationBins(NamedTuple):
    """The table behind a reliability plot, one row a bin of confidence."""

    edges: Tensor
    """Limits of the bins, shape (bins + 1,); a bin holds its upper limit and not its lower one."""
    counts: Tensor
    """Samples in each bin, shape (bins,)."""
    confidences: Tensor
    """Mean confidence of each bin's samples, shape (bins,); NaN for an empty bin."""
    accuracies: Tensor
    """Share of each bin's samples that are classified correctly, shape (bins,); NaN for an empty bin."""

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
    """Share of each class's samples classified correctly (its recall).

    Args:
        labels: true class of each sample, shape (n,).
        predictions: predicted class of each sample, shape (n,).
        num_classes: number of classes M; by default those up to the largest index in either argument.

    Returns:
        Shape (M,), float64; NaN for a class without a sample.
    """
    matrix = confusion_matrix(labels, predictions, num_classes=num_classes).double()
    return matrix.diagonal() / matrix.sum(dim=1)


def confusion_matrix(labels: Any, predictions: Any, *, num_classes: int | None = None) -> Tensor:
    """Number of samples of each class (rows) predicted as each class (columns).

    Args:
        labels: true class of each sample, shape (n,).
        predictions: predicted class of each sample, shape (n,).
        num_classes: number of classes M; by default those up to the largest index in either argument.

    Returns:
        Shape (M, M), int64.
    """
    true, predicted = _class_indices(labels, predictions)
    largest = int(torch.maximum(true, predicted).max())
    classes = largest + 1 if num_classes is None else num_classes
    if largest >= classes:
        raise UserError(f"Class {largest} does not fit {classes} classes: class indices count from 0.")
    return (true * classes + predicted).bincount(minlength=classes**2).view(classes, classes)


def expected_calibration_error(labels: Any, probabilities: Any, *, bins: int = 15) -> tuple[float, CalibrationBins]:
    """How far confidence is from accuracy, on average over bins of confidence of equal width.

    Args:
        labels: true class of each sample, shape (n,).
        probabilities: predicted probability of each class, shape (n, M).
        bins: number of bins between 0 and 1.

    Returns:
        The mean difference between a bin's confidence and its accuracy, weighted by its samples, and the bins.
    """
    confidences, predictions = torch.as_tensor(probabilities).detach().cpu().double().max(dim=1)
    true, predicted = _class_indices(labels, predictions)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    places = torch.bucketize(confidences, edges[1:-1])  # an edge belongs to the bin below it
    counts = places.bincount(minlength=bins)
    confidence = places.bincount(confidences, minlength=bins) / counts
    correct = places.bincount((true == predicted).double(), minlength=bins) / counts
    error = float((counts * (confidence - correct).abs()).nansum() / len(true))
    return error, CalibrationBins(edges, counts, confidence, correct)


def where_known(truth: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and values of those samples that have a label; the others have a negative one."""
    known = truth >= 0
    return truth[known], values[known]


def measure(truth: Tensor, probabilities: Tensor) -> dict[str, Any]:
    """All figures that need true labels; samples without one, or of an unknown class, are left out and counted."""
    labels, known = where_known(truth, probabilities)
    predicted = known.argmax(1)
    calibration, bins = expected_calibration_error(labels, known)
    return {
        "accuracy": accuracy(labels, predicted),
        "mean_class_accuracy": mean_class_accuracy(labels, predicted),
        "calibration_error": calibration,
        "calibration": bins.describe(),
        "samples": len(labels),
        "left_out": len(truth) - len(labels),
        "confusion": confusion_matrix(labels, predicted, num_classes=probabilities.shape[1]).tolist(),
    }


def _class_indices(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    """Both as int64 on the CPU, of the same shape (n,) with n > 0 and no negative index."""
    pair = tuple(torch.as_tensor(values).detach().cpu() for values in (labels, predictions))
    if pair[0].ndim != 1 or pair[0].shape != pair[1].shape:
        shapes = f"{tuple(pair[0].shape)} and {tuple(pair[1].shape)}"
        raise UserError(f"Labels and predictions of shapes {shapes} do not fit: give one class index per sample each.")
    if not len(pair[0]):
        raise UserError("There are no samples to score: give at least one label and prediction.")
    if any(values.is_floating_point() for values in pair):
        raise UserError("Labels and predictions must be class indices, that is integers.")
    if min(int(values.min()) for values in pair) < 0:
        raise UserError("A label or prediction is negative: leave samples without a class out before scoring.")
    return pair[0].long(), pair[1].long()
