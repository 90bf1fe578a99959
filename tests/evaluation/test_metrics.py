"""Metrics against scikit-learn and against plain loops."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from candapt.evaluation.metrics import (
    accuracy,
    confusion_matrix,
    expected_calibration_error,
    mean_class_accuracy,
    per_class_accuracy,
)

fast = settings(derandomize=True, deadline=None, max_examples=40)
outcomes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=50)


def split(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions."""
    labels, predictions = zip(*pairs, strict=True)
    return np.array(labels), np.array(predictions)


@fast
@given(pairs=outcomes)
def test_accuracies_equal_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = split(pairs)
    assert accuracy(labels, predictions) == pytest.approx(sklearn_metrics.accuracy_score(labels, predictions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of predicted classes that are not in the labels
        expected = sklearn_metrics.balanced_accuracy_score(labels, predictions)
    assert mean_class_accuracy(labels, predictions) == pytest.approx(expected)


@fast
@given(pairs=outcomes)
def test_confusion_matrix_equals_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = split(pairs)
    expected = sklearn_metrics.confusion_matrix(labels, predictions, labels=range(6))
    assert confusion_matrix(labels, predictions, num_classes=6).tolist() == expected.tolist()
    smallest = max(labels.max(), predictions.max()) + 1
    assert confusion_matrix(labels, predictions).tolist() == expected[:smallest, :smallest].tolist()


@fast
@given(pairs=outcomes)
def test_per_class_accuracy_equals_loops(pairs: list[tuple[int, int]]) -> None:
    shares = per_class_accuracy(*split(pairs), num_classes=7).tolist()
    for label, share in enumerate(shares):
        own = [prediction == true for true, prediction in pairs if true == label]
        assert share == pytest.approx(sum(own) / len(own)) if own else math.isnan(share)


def test_rows_are_true_and_columns_predicted() -> None:
    assert confusion_matrix([0, 0, 1], [1, 1, 1]).tolist() == [[0, 2], [0, 1]]


@pytest.mark.filterwarnings("error")
def test_a_single_class_is_no_reason_to_warn() -> None:
    assert confusion_matrix([0, 0], [0, 0]).tolist() == [[2]]
    assert mean_class_accuracy([0, 0], [0, 0]) == 1


def test_lists_arrays_and_tensors_are_the_same() -> None:
    labels, predictions = [0, 1, 2, 1], [0, 2, 2, 1]
    for kind in (np.array, torch.tensor, lambda values: torch.tensor(values, dtype=torch.uint8)):
        assert accuracy(kind(labels), kind(predictions)) == 0.75
        assert torch.equal(confusion_matrix(kind(labels), kind(predictions)), confusion_matrix(labels, predictions))


def random_probabilities(seed: int, samples: int = 200, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Labels and overconfident probabilities, some of them exactly on the edges of bins."""
    random = np.random.default_rng(seed)
    logits = 3 * random.standard_normal((samples, classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for row, top in enumerate((1.0, 0.6, 0.8, 0.4)):
        probabilities[row] = [top, *[(1 - top) / (classes - 1)] * (classes - 1)]
    return random.integers(classes, size=samples), probabilities


def slow_calibration(labels: np.ndarray, probabilities: np.ndarray, bins: int) -> tuple[float, list[int]]:
    """Calibration error one bin at a time."""
    error, counts = 0.0, []
    edges = np.linspace(0, 1, bins + 1)
    for low, high in pairwise(edges):
        inside = [i for i, row in enumerate(probabilities) if low < row.max() <= high]
        counts.append(len(inside))
        if inside:
            confidence = sum(probabilities[i].max() for i in inside) / len(inside)
            correct = sum(probabilities[i].argmax() == labels[i] for i in inside) / len(inside)
            error += len(inside) / len(labels) * abs(confidence - correct)
    return error, counts


@fast
@given(seed=st.integers(0, 999), bins=st.sampled_from([1, 2, 10, 15]))
def test_calibration_equals_loops(seed: int, bins: int) -> None:
    labels, probabilities = random_probabilities(seed)
    error, table = expected_calibration_error(labels, probabilities, bins=bins)
    expected, counts = slow_calibration(labels, probabilities, bins)
    assert error == pytest.approx(expected)
    assert table.counts.tolist() == counts


def test_calibration_table_gives_the_error() -> None:
    labels, probabilities = random_probabilities(0)
    error, table = expected_calibration_error(labels, torch.tensor(probabilities))
    assert len(table.edges) == 16
    filled = table.counts > 0
    gaps = (table.confidences - table.accuracies).abs()[filled]
    assert error == pytest.approx(float((table.counts[filled] * gaps).sum() / len(labels)))
    assert table.confidences[~filled].isnan().all()
    inside = (table.edges[:-1] <= table.confidences) & (table.confidences <= table.edges[1:])
    assert inside[filled].all()


def test_calibration_of_known_cases() -> None:
    certain = torch.eye(3)
    assert expected_calibration_error([0, 1, 2], certain)[0] == 0.0
    assert expected_calibration_error([1, 2, 0], certain)[0] == 1.0
    assert expected_calibration_error([0, 1, 1, 0], torch.full((4, 2), 0.5))[0] == pytest.approx(0.0)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        accuracy(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="do not fit"):
        accuracy([0, 1], [0])
    with pytest.raises(ValueError, match="negative"):
        confusion_matrix([0, -1], [0, 1])
    with pytest.raises(ValueError, match="Class 3 does not fit 3 classes"):
        confusion_matrix([0, 3], [0, 1], num_classes=3)
    with pytest.raises(ValueError, match="integers"):
        accuracy([0.5], [0.5])
