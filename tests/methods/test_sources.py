"""Several sources: batches of one source each, batch norms of their own, and a model that comes back from its files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import candapt
from candapt.adaptation import adapt
from candapt.data.domains import Domain, LabeledDomain, Side, Task
from candapt.data.joining import join_sources
from candapt.methods import METHODS
from candapt.methods.sources import draws_by_source
from candapt.network.batchnorm import DomainBatchNorm
from tests.toy import Toy, make_toy, make_training, quick_settings, run


@pytest.fixture(scope="module")
def several() -> Task:
    """Three sources, of which the second lacks a class and lies elsewhere, and the toy's target."""
    toy = make_toy()
    first = toy.task.source
    kept = np.flatnonzero(toy.source_y != 3)
    moved = LabeledDomain(3 * toy.source_x[kept] + 7, (), torch.as_tensor(toy.source_y[kept]), ("0", "1", "2"))
    return Task(join_sources([first, moved, first], ["a", "b", "c"]), toy.task.target)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_one_source_at_a_time(several: Task, method: str) -> None:
    training = make_training(several, quick_settings(method, rounds=1))
    round, origins = training.describe_round(), several.source.origins
    assert origins is not None
    training.cluster(round)
    draws = draws_by_source(training.method, round, training.state.clusters)
    assert [origins[draw["source"].indices].float().std() for draw in draws] == [0] * 15
    assert [int(origins[draw["source"].indices[0]]) for draw in draws] == [0, 1, 2] * 5
    for part in (part for draw in draws for part in draw.values() if part.side == Side.SOURCE):
        assert part.labels.equal(several.source.labels[part.indices])
        assert len(set(origins[part.indices].tolist())) == 1
    run(training)


class TestBatchNorm:
    def test_each_source_is_normalized_by_itself(self, several: Task) -> None:
        """The second source, moved and stretched, has statistics of its own; the third those of the first."""
        training = run(make_training(several, quick_settings()))
        training.outputs.refresh()
        norms = next(layer for layer in training.method.modules() if isinstance(layer, DomainBatchNorm)).norms
        means = [norm.get_buffer("running_mean") for norm in norms]
        assert len(means) == 4
        assert torch.allclose(means[0], means[3], atol=1e-6)
        assert not torch.allclose(means[0], means[2], atol=1e-2)

    def test_outputs_are_in_the_order_of_the_samples(self, several: Task) -> None:
        training = run(make_training(several, quick_settings()))
        whole, origins = training.outputs.of(Side.SOURCE).logits, several.source.origins
        assert origins is not None
        for number, norm in ((0, 0), (1, 2), (2, 3)):
            rows = (origins == number).nonzero().flatten()
            with torch.no_grad():
                alone = training.method.eval().predict(several.source.samples.read(rows), norm).logits
            assert torch.allclose(whole[rows], alone, atol=1e-4)


def test_two_equal_sources_give_the_classes_of_one(toy: Toy) -> None:
    source, settings = toy.task.source, quick_settings(rounds=4, training__steps=40, network__bottleneck=64)
    result = adapt(replace(toy.task, source=join_sources([source, source], ["a", "b"])), settings)
    assert (result.predictions.labels == torch.as_tensor(toy.target_y)).float().mean() > 0.9


def test_a_model_of_several_sources_comes_back_from_its_files(several: Task, toy: Toy, tmp_path: Path) -> None:
    result = adapt(several, quick_settings())
    result.model.save(tmp_path)
    again = candapt.load(tmp_path).predict(Domain(toy.target_x))
    assert torch.allclose(again.probabilities, result.predictions.probabilities, atol=1e-5)
