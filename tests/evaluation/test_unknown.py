"""Objects of none of the classes."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.evaluation.unknown import (
    LIKELY,
    Unknown,
    alike,
    among_neighbors,
    evidence,
    find_unknown,
    right_beside_unknown,
    split_point,
)
from candapt.randomness import generator

CLASSES, OTHERS, WIDTH = 8, 4, 32


def samples(seed: int, labels: Tensor) -> Tensor:
    """Unit vectors around a center for each class; classes from `CLASSES` on are those that the source lacks."""
    centers = torch.randn(CLASSES + OTHERS, WIDTH, generator=generator("centers"))
    noise = torch.randn(len(labels), WIDTH, generator=generator(seed))
    return normalize(centers[labels] + 0.7 * noise)


SOURCE = torch.arange(CLASSES).repeat(30)


def found_in(target: Tensor) -> Unknown:
    return find_unknown(samples(0, SOURCE), SOURCE, samples(1, target), CLASSES)


def test_objects_of_other_classes_are_found() -> None:
    target = torch.arange(CLASSES + OTHERS).repeat(20)
    unknown = found_in(target)
    truth = target >= CLASSES
    assert unknown.found
    called = unknown.probability > LIKELY
    assert float((called == truth).float().mean()) > 0.9
    assert unknown.share == pytest.approx(float(called.double().mean()))
    assert torch.equal(unknown.known, 1 - unknown.probability)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_unknown_where_all_classes_are_known(seed: int) -> None:
    target = torch.randint(CLASSES, (200,), generator=generator(seed))
    unknown = find_unknown(samples(0, SOURCE), SOURCE, samples(seed + 2, target), CLASSES)
    assert not unknown.found
    assert unknown.known is None
    assert unknown.share == 0


def test_a_target_of_few_samples_has_nothing_unknown() -> None:
    for count in (1, 2):
        unknown = find_unknown(samples(0, SOURCE), SOURCE, samples(1, torch.arange(count)), CLASSES)
        assert unknown.probability.shape == (count,)
        assert unknown.share == 0


def test_classes_that_are_missing_are_not_taken_for_unknown_objects() -> None:
    assert not found_in(torch.arange(CLASSES // 2).repeat(30)).found


def test_values_are_averaged_with_those_of_neighbors() -> None:
    values, near = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([[1, 2], [0, 2], [0, 1]])
    expected = values.tolist()
    for _ in range(3):
        expected = [(expected[i] + sum(expected[j] for j in near[i].tolist()) / 2) / 2 for i in range(3)]
    assert among_neighbors(values, near).tolist() == pytest.approx(expected)


def test_values_are_split_where_they_vary_least_within_the_parts() -> None:
    values = torch.cat([torch.randn(60, generator=generator(0)), 4 + torch.randn(30, generator=generator(1))])

    def within(limit: float) -> float:
        parts = [values[values < limit], values[values >= limit]]
        return sum(float((part - part.mean()).square().sum()) for part in parts if len(part))

    limit = split_point(values)
    ordered = values.sort().values
    assert within(limit) == pytest.approx(min(within(each) for each in ((ordered[1:] + ordered[:-1]) / 2).tolist()))
    assert split_point(torch.tensor([3.0])) == 3


def test_evidence_adds_up_three_signs() -> None:
    energy = torch.tensor([4.0, 4.0, 4.0, 4.0, 1.0, 1.0])
    low, near = energy < 2, torch.tensor([[1], [0], [3], [2], [5], [4]])
    two = torch.tensor([0, 0, 1, 1, 0, 0])
    assert evidence(energy, low, two, near, 2) == pytest.approx(1 - 0.25 + 1)
    lost = torch.tensor([0, 0, 0, 0, 1, 1])  # without the low part a class would be missing
    assert evidence(energy, low, lost, near, 2) == pytest.approx(0.5 - 0.25 + 1)
    mixed = torch.tensor([0, 0, 1, 1, 0, 1])  # neighbors get other votes
    assert evidence(energy, low, mixed, near, 2) == pytest.approx(1 - 0.25)


def test_groups_hold_what_resembles_each_other() -> None:
    labels = torch.tensor([0] * 12 + [1] * 8 + [2] * 10 + [3])
    units = samples(0, labels)
    groups = alike(units, (labels != 0).float())
    assert [len(group) >= 8 for group in groups] == [True, True]
    assert [set(labels[group].tolist()) for group in groups] == [{2}, {1}]
    assert alike(units, torch.zeros(len(units))) == []


def test_a_class_is_wrong_for_unknown_objects_and_their_own_name_is_right() -> None:
    confidence, unknown = torch.tensor([0.8, 0.8, 0.5]), torch.tensor([0.0, 0.25, 0.9])
    right = right_beside_unknown(confidence, unknown, named=False)
    torch.testing.assert_close(right, torch.tensor([0.8, 0.6, 0.05]))
    torch.testing.assert_close(right_beside_unknown(confidence, unknown, named=True), torch.tensor([0.8, 0.6, 0.9]))
    assert torch.equal(right_beside_unknown(confidence, None, named=True), confidence)
