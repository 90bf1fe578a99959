"""The target's class proportions, and what counts how much because of them."""

import pytest
import torch
from torch import Tensor

from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Side, Task
from candapt.evaluation.proportions import (
    ABSENT,
    EVEN,
    FLOOR,
    Mixture,
    Proportions,
    among_neighbors,
    class_weights,
    estimate_proportions,
    hardly_there,
    interval,
    mixture_for,
)
from candapt.randomness import generator

CLASSES, WIDTH = 5, 16


def features(seed: int, labels: Tensor, shift: float = 0.0) -> Tensor:
    """Classes around the same centers in every domain, each domain somewhere else."""
    centers = 2 * torch.randn(CLASSES, WIDTH, generator=generator("centers"))
    return centers[labels] + torch.randn(len(labels), WIDTH, generator=generator(seed)) + shift


def estimated(counts: list[int]) -> Proportions:
    source = torch.arange(CLASSES).repeat(30)
    target = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(counts))
    return estimate_proportions(features(0, source), source, features(1, target, shift=1.0), CLASSES)


@pytest.mark.parametrize("counts", [[30] * 5, [60, 60, 0, 60, 0], [100, 20, 30, 50, 20]])
def test_proportions_of_shifted_classes_are_found(counts: list[int]) -> None:
    estimate = estimated(counts)
    truth = torch.tensor(counts).double() / sum(counts)
    assert float((estimate.target - truth).abs().sum() / 2) < 0.06
    assert float(estimate.target.sum()) == pytest.approx(1)
    assert estimate.absent.tolist() == [count == 0 for count in counts]
    assert (estimate.low <= estimate.target + 1e-9).all()
    assert (estimate.target <= estimate.high + 1e-9).all()


def test_they_differ_only_where_classes_are_missing_or_shares_far_apart() -> None:
    assert not estimated([30] * 5).differ
    assert not estimated([40, 30, 25, 30, 25]).differ
    assert estimated([60, 60, 0, 60, 0]).differ
    even, far = torch.full((4,), 0.25).double(), torch.tensor([0.6, 0.25, 0.08, 0.07]).double()
    assert Proportions(even, far, far, far).differ
    assert Proportions(even, far, far, far, torch.tensor(0.71)).differ
    assert not Proportions(even, far, far, far, torch.tensor(0.69)).differ


@pytest.mark.parametrize("counts", [[40, 24, 12, 7, 4], [4, 7, 40, 12, 24]])
def test_rare_classes_are_not_taken_for_absent(counts: list[int]) -> None:
    """Ten neighbors outvote a class of four samples; its three nearest do not."""
    estimate = estimated(counts)
    truth = torch.tensor(counts).double() / sum(counts)
    assert not estimate.lacks_classes
    assert not estimate.absent.any()
    assert estimate.differ
    assert float((estimate.target - truth).abs().sum() / 2) < 0.06


def test_classes_are_absent_only_where_many_are() -> None:
    even, far = torch.full((4,), 0.25).double(), torch.tensor([0.6, 0.38, 0.01, 0.01]).double()
    rare, missing = (Proportions(even, far, far, far, lacks=torch.tensor(lacks)) for lacks in (False, True))
    assert rare.absent.tolist() == [False] * 4
    assert missing.absent.tolist() == [False, False, True, True]
    assert rare.differ
    assert Proportions(even, even, even, even, lacks=torch.tensor(True)).differ
    halfway = mixture_for(far, even, lacks_classes=False)
    assert halfway.present is None
    assert halfway.classes.tolist() == pytest.approx([1.7, 1.26, 0.52, 0.52])  # type: ignore[union-attr]
    assert mixture_for(far, even).present.tolist() == [True, True, False, False]  # type: ignore[union-attr]


def test_description_names_every_class() -> None:
    content = estimated([60, 60, 0, 60, 0]).describe(tuple("abcde"))
    assert content["differ"]
    assert list(content["classes"]) == list("abcde")
    assert content["classes"]["c"]["source"] == pytest.approx(0.2)
    assert content["classes"]["c"]["target"] < 0.05


def test_weights_give_the_source_the_shares_of_the_target() -> None:
    source, target = torch.tensor([0.5, 0.25, 0.25, 0.0]), torch.tensor([0.25, 0.75, 0.0, 0.0])
    weights = class_weights(target, source)
    assert weights.tolist() == pytest.approx([0.5, 3.0, FLOOR, FLOOR])


def test_a_class_is_absent_below_a_part_of_an_equal_share() -> None:
    source = torch.tensor([0.5, 0.3, 0.2, 0.0])  # the source itself lacks the last class
    limit = ABSENT / 3
    target = torch.tensor([1 - 1.9 * limit, limit, 0.9 * limit, 0.0])
    assert hardly_there(target, source).tolist() == [False, False, True, False]


def test_neighbors_outvote_a_sample() -> None:
    said = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    votes = among_neighbors(said, torch.tensor([[1], [0], [0]]))
    assert votes[2, 0] > 0.5
    assert votes.sum(1).tolist() == pytest.approx([1, 1, 1])


def test_the_interval_narrows_with_the_number_of_samples() -> None:
    votes = torch.rand(50, 3, generator=generator(0)).double()
    widths = [float((high - low).mean()) for low, high in (interval(votes), interval(votes.repeat(20, 1)))]
    assert widths[1] < widths[0] / 3


def test_an_even_mixture_weighs_nothing() -> None:
    labels = torch.tensor([0, 1, 1])
    task = Task(LabeledDomain(ArraySamples(torch.rand(3, 2)), (), labels, ("a", "b")), Domain(torch.rand(4, 2)))
    assert EVEN.is_even
    assert EVEN.present is None
    assert all(EVEN.weights(side, task) is None for side in Side)
    mixture = mixture_for(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
    assert mixture.weights(Side.SOURCE, task).tolist() == pytest.approx([2, FLOOR, FLOOR])  # type: ignore[union-attr]
    assert mixture.weights(Side.TARGET, task) is None
    assert mixture.present.tolist() == [True, False]  # type: ignore[union-attr]
    known = Mixture(known=torch.tensor([1.0, 0.5, 0.0, 1.0]))
    assert known.weights(Side.TARGET, task).tolist() == pytest.approx([1, 0.5, FLOOR, 1])  # type: ignore[union-attr]
    assert set(known.tensors()) == {"known"}


def test_votes_that_contradict_the_clusters_are_not_believed() -> None:
    """Features of a target that have nothing to do with the source's classes give an estimate, but no trust in it."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 6
    source = 4 * torch.eye(6, 30)[labels] + torch.randn(300, 30, generator=random)
    target = torch.randn(400, 30, generator=random)
    estimate = estimate_proportions(source, labels, target, 6)
    assert float(estimate.agreement) < 0.7
    assert not estimate.differ
    same = estimate_proportions(source, labels, source[labels < 3] + 0.1, 6)
    assert float(same.agreement) > 0.9
    assert same.differ
