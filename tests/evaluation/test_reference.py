"""What untouched features say of the target."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.evaluation.reference import (
    NEIGHBORS,
    Reference,
    fit_classifier,
    nearest,
    some_rows,
    standardized,
)
from candapt.randomness import generator

CLASSES, EACH, WIDTH = 4, 15, 12
LABELS = torch.arange(CLASSES).repeat(EACH)


def features(seed: int, labels: Tensor = LABELS, *, shift: float = 0.0) -> Tensor:
    """Classes around the same centers in every domain, each domain somewhere else."""
    centers = 3 * torch.randn(CLASSES, WIDTH, generator=generator("centers"))
    return centers[labels] + 0.3 * torch.randn(len(labels), WIDTH, generator=generator(seed)) + shift


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference.of(features(0), LABELS, features(1, shift=2.0), CLASSES)


def slow_neighbors(units: Tensor, bank: Tensor, count: int, own: list[int]) -> list[set[int]]:
    """One pair at a time."""
    found = []
    for row, unit in enumerate(units):
        others = [(float(unit @ bank[place]), place) for place in range(len(bank)) if place != own[row]]
        found.append({place for _, place in sorted(others, reverse=True)[:count]})
    return found


def test_neighbors_are_the_most_similar_samples_of_the_bank() -> None:
    units = normalize(torch.randn(30, 5, generator=generator(0)))
    bank, places = units[::2], torch.tensor([row // 2 if row % 2 == 0 else -1 for row in range(30)])
    fast = nearest(units, bank, 4, places)
    slow = slow_neighbors(units, bank, 4, places.tolist())
    assert [set(row) for row in fast.tolist()] == slow
    assert not any(int(own) in row for own, row in zip(places, fast.tolist(), strict=True))


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    units = normalize(torch.randn(30, 5, generator=generator(0)))
    whole = nearest(units, units, 3, torch.arange(30))
    monkeypatch.setattr("candapt.evaluation.reference.CHUNK", 7)
    assert torch.equal(nearest(units, units, 3, torch.arange(30)), whole)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_small_bank_gives_what_it_has(size: int) -> None:
    units = normalize(torch.randn(size, 5, generator=generator(0)))
    assert nearest(units, units, 10).shape == (size, size)
    assert nearest(units, units, 10, torch.arange(size)).shape == (size, max(1, size - 1))


def test_the_classifier_minimizes_a_convex_loss() -> None:
    """Its gradient is zero, and from another start nothing better is found."""
    units = standardized(features(0), *(features(0).mean(0) * 0, torch.ones(WIDTH)))
    weights, bias = fit_classifier(units, LABELS, CLASSES)
    logits = units @ weights * WIDTH**0.5 + bias
    p, truth = logits.softmax(1), torch.eye(CLASSES)[LABELS]
    gradient = (units * WIDTH**0.5).T @ (p - truth) / len(units) + 0.05 * weights
    assert gradient.abs().max() < 1e-3
    assert (p - truth).mean(0).abs().max() < 1e-3
    assert (p.argmax(1) == LABELS).all()


def test_domains_are_compared_after_each_is_standardized(reference: Reference) -> None:
    """A shift and a scale of the whole target change nothing that is said of it."""
    target = normalize(features(1, shift=2.0))
    moved = Reference.of(features(0), LABELS, target, CLASSES)
    view, same = reference.view(features(1, shift=2.0), torch.arange(60)), moved.view(target, torch.arange(60))
    assert torch.allclose(view.classifier, same.classifier, atol=1e-4)
    assert torch.equal(view.clusters, same.clusters)


def test_it_knows_the_classes_of_a_shifted_target(reference: Reference) -> None:
    view = reference.view(features(1, shift=2.0), torch.arange(60))
    assert (view.classifier.argmax(1) == LABELS).all()
    assert (view.clusters == LABELS).all()
    assert (view.source_neighbors == LABELS[:, None]).float().mean() > 0.95
    assert (LABELS[reference.target_rows][view.target_neighbors] == LABELS[:, None]).float().mean() > 0.95
    assert view.target_neighbors.shape == view.source_neighbors.shape == (60, NEIGHBORS)


def test_a_sample_is_no_neighbor_of_itself(reference: Reference) -> None:
    target = features(1, shift=2.0)
    rows = torch.arange(60)
    assert not (reference.target_rows[reference.view(target, rows).target_neighbors] == rows[:, None]).any()
    assert (reference.target_rows[reference.view(target).target_neighbors] == rows[:, None]).any()  # as a new sample


def test_a_reduced_reference_keeps_everything_but_the_size_of_the_banks(reference: Reference) -> None:
    small = reference.reduced(20)
    assert (len(small.source), len(small.target), len(small.target_rows)) == (10, 10, 10)
    view, whole = small.view(features(1, shift=2.0)), reference.view(features(1, shift=2.0))
    assert torch.equal(view.classifier, whole.classifier)
    assert torch.equal(view.clusters, whole.clusters)
    places = [int((reference.target_rows == row).nonzero()) for row in small.target_rows]
    assert torch.equal(small.target, reference.target[places])


def test_rows_are_always_the_same_in_order_and_at_most_as_many() -> None:
    rows = some_rows(100, 10)
    assert torch.equal(rows, some_rows(100, 10))
    assert torch.equal(rows, rows.unique())
    assert len(rows) == 10
    assert torch.equal(some_rows(5, 10), torch.arange(5))
