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
    find_unknown,
    is_apart,
    look,
    low_part,
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


def test_unknown_objects_look_less_like_the_classes() -> None:
    others = torch.arange(CLASSES, CLASSES + OTHERS).repeat(20)
    known, seen = look(samples(0, SOURCE), SOURCE, samples(1, others), CLASSES)
    assert known.energy.shape == known.similarity.shape == SOURCE.shape
    assert seen.energy.shape == others.shape
    for name in ("energy", "similarity"):
        assert float(getattr(known, name).mean()) > float(getattr(seen, name).mean())


def test_values_are_averaged_with_those_of_neighbors() -> None:
    units = samples(0, torch.arange(2).repeat(12))
    values = torch.stack([torch.arange(24).float() % 2, torch.ones(24)])
    smooth = among_neighbors(values, units)
    assert (smooth[0, ::2] < 0.2).all()
    assert (smooth[0, 1::2] > 0.8).all()
    assert torch.allclose(smooth[1], torch.ones(24))


def test_only_a_low_part_that_lies_apart_is_unknown() -> None:
    random = generator(0)
    known, noise = 5 + 0.3 * torch.randn(500, generator=random), 0.3 * torch.randn(400, generator=random)
    apart, whole = torch.cat([5 + noise[:200], 2.5 + noise[200:]]), 2.5 + noise
    assert is_apart(apart, known, low_part(apart), 4)
    assert not is_apart(apart + 2, known, low_part(apart), 4)  # more energy than known objects have
    assert not is_apart(whole, known, low_part(whole), 4)  # all of it is shifted
    assert not is_apart(apart, known, torch.zeros(400), 4)


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
