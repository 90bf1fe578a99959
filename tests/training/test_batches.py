"""Batches: what each part of a step is read from, and that it keeps its side."""

import pytest
import torch

from candapt.data.domains import Side, norm_of
from candapt.methods import METHODS
from candapt.methods.base import Part
from candapt.training.batches import read_batches
from tests.toy import Toy, make_training, quick_settings


@pytest.mark.parametrize("method", METHODS)
def test_every_part_carries_its_side(toy: Toy, method: str) -> None:
    training = make_training(toy.task, quick_settings(method))
    round = training.describe_round()
    draws = training.method.draws(round, training.method.cluster(round))
    for draw, batch in zip(draws, read_batches(training.fabric, training.task, draws, round.seed), strict=True):
        assert batch.keys() == draw.keys()
        for name, part in batch.items():
            assert part.norm == norm_of(draw[name].side)
            assert torch.equal(part.x, toy.task.domain(draw[name].side).samples.read(draw[name].indices))


@pytest.mark.parametrize("side", Side)
def test_the_side_and_not_the_name_of_a_part_decides_its_batch_norm(toy: Toy, side: Side) -> None:
    training = make_training(toy.task, quick_settings("mcc"))
    draws = [{"neutral": Part(side, torch.arange(6), torch.full((6,), -1))}]
    batch = next(read_batches(training.fabric, training.task, draws, seed=0))
    norms = training.method.network.backbone.input_norm.norms
    before = [norm.running_mean.clone() for norm in norms]
    training.method.train()
    (features,), (outputs,) = training.method.features(batch, "neutral"), training.method.outputs(batch, "neutral")
    assert features.shape == outputs.features.shape == (6, 16)
    moved = [not torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True)]
    assert moved == [side is each for each in Side]


def test_a_round_can_begin_at_any_step(toy: Toy) -> None:
    training = make_training(toy.task, quick_settings())
    draws = training.describe_round().random_draws(4, *Side)
    whole, rest = (list(read_batches(training.fabric, training.task, draws, seed=0, first=first)) for first in (0, 3))
    assert (len(whole), len(rest)) == (4, 1)
    for name, part in rest[0].items():
        assert torch.equal(part.x, whole[3][name].x)
