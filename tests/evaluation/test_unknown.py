"""Objects of none of the classes."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.evaluation.unknown import (
    LIKELY,
    Unknown,
    alike,
    find_unknown,
    leave_classes_out,
    low_part,
    spreads,
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


def test_too_few_classes_to_leave_some_out_find_nothing() -> None:
    labels = torch.arange(3).repeat(20)
    assert not find_unknown(samples(0, labels), labels, samples(1, torch.arange(6).repeat(10)), 3).found


def test_classes_that_were_left_out_look_less_like_the_others() -> None:
    known, left_out = leave_classes_out(samples(0, SOURCE), SOURCE, CLASSES)
    assert len(known.energy) + len(left_out.energy) == 4 * len(SOURCE) // 2
    assert float(known.energy.mean()) > float(left_out.energy.mean())
    assert float(known.similarity.mean()) > float(left_out.similarity.mean())


def test_only_a_target_that_reaches_further_down_spreads() -> None:
    random = generator(0)
    known, left_out = torch.randn(500, generator=random) + 5, torch.randn(500, generator=random)
    shifted = torch.randn(500, generator=random) - 20
    assert not spreads(shifted, known, left_out)
    assert spreads(torch.cat([shifted, shifted - 5]), known, left_out)
    assert not spreads(shifted, known, left_out[:1])


def test_the_lower_of_two_parts() -> None:
    random = generator(0)
    values = torch.cat([torch.randn(300, generator=random) * 2 + 9, torch.randn(150, generator=random)])
    posterior = low_part(values)
    assert float((posterior[:300] < 0.5).float().mean()) > 0.97
    assert float((posterior[300:] > 0.5).float().mean()) > 0.97
    assert (posterior[values.argsort()].diff() <= 1e-6).all()


def test_groups_hold_what_resembles_each_other() -> None:
    labels = torch.tensor([0] * 12 + [1] * 8 + [2] * 10 + [3])
    units = samples(0, labels)
    groups = alike(units, (labels != 0).float())
    assert [len(group) >= 8 for group in groups] == [True, True]
    assert [set(labels[group].tolist()) for group in groups] == [{2}, {1}]
    assert alike(units, torch.zeros(len(units))) == []
