"""Classes that the target lacks take no part in a training, until the network finds them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from candapt.adaptation import adapt
from candapt.data.domains import Domain, Side, Task
from candapt.data.features import labeled_arrays
from candapt.training.checkpoint import Checkpoints
from candapt.training.mixing import remembered_mixture, remembered_proportions, revise_mixture
from tests.toy import Hooks, Toy, make_toy, make_training, quick_settings, run, weights

KEPT = 4  # of eight classes


@pytest.fixture(scope="module")
def partial() -> Toy:
    """A target that lacks half of the source's classes."""
    toy = make_toy(classes=8, samples=24)
    there = toy.target_y < KEPT
    return Toy(toy.source_x, toy.source_y, toy.target_x[there], toy.target_y[there])


def test_absent_classes_take_no_part(partial: Toy) -> None:
    result = adapt(partial.task, quick_settings(rounds=6, training__steps=40, network__bottleneck=64))
    estimate = remembered_proportions(result.state.score_memory)
    assert estimate is not None
    assert estimate.absent.tolist() == [number >= KEPT for number in range(8)]
    assert result.state.clusters is not None
    assert int(result.state.clusters.labels.max()) < KEPT
    assert float((result.predictions.labels.numpy() == partial.target_y).mean()) > 0.9


def test_rare_classes_keep_their_part() -> None:
    """A target with few samples of half the classes weighs them less and still labels samples as them."""
    toy = make_toy(classes=8, samples=24)
    rare = [np.flatnonzero(toy.target_y == each)[:5] for each in range(KEPT, 8)]
    rows = np.sort(np.concatenate([np.flatnonzero(toy.target_y < KEPT), *rare]))
    thin = Toy(toy.source_x, toy.source_y, toy.target_x[rows], toy.target_y[rows])
    training = run(make_training(thin.task, quick_settings(rounds=6, training__steps=40, network__bottleneck=64)))
    memory, clusters = training.state.score_memory, training.state.clusters
    estimate, mixture = remembered_proportions(memory), remembered_mixture(memory)
    assert estimate is not None
    assert estimate.differ
    assert mixture.present is None
    assert mixture.classes is not None
    assert mixture.classes[:KEPT].min() > 1 > mixture.classes[KEPT:].max()
    assert clusters is not None
    assert clusters.labels.unique().tolist() == list(range(8))
    right = training.outputs.of(Side.TARGET).probabilities.argmax(1).numpy() == thin.target_y
    assert float(right[thin.target_y >= KEPT].mean()) > 0.9  # of the rare ones
    assert float(right.mean()) > 0.9


def test_sources_are_drawn_as_the_target_has_them(partial: Toy) -> None:
    training = make_training(partial.task, quick_settings())
    training.cluster(training.describe_round())
    round = training.describe_round()
    drawn = torch.cat([draw["source"].labels for draw in round.random_draws(50, Side.SOURCE)])
    assert float((drawn < KEPT).float().mean()) > 0.9
    norm = training.method.network.backbone.input_norm.norms[Side.SOURCE]  # type: ignore[union-attr]
    units = torch.nn.functional.normalize(torch.as_tensor(partial.source_x))
    training.outputs.refresh()
    there = units[torch.as_tensor(partial.source_y) < KEPT].mean(0)
    assert (norm.running_mean - there).norm() < 0.1 * (units.mean(0) - there).norm()  # type: ignore[operator]


@pytest.mark.parametrize("method", ["can", "mcc"])
def test_equal_proportions_change_nothing(toy: Toy, method: str) -> None:
    with_it, without = (
        run(make_training(toy.task, quick_settings(method, training__proportions=each))) for each in ("auto", "off")
    )
    assert remembered_mixture(with_it.state.score_memory).is_even
    assert remembered_proportions(with_it.state.score_memory) is not None
    assert remembered_proportions(without.state.score_memory) is None
    for name, value in weights(with_it).items():
        assert torch.equal(value, weights(without)[name]), name


def test_source_only_does_not_look_at_the_target(partial: Toy) -> None:
    training = run(make_training(partial.task, quick_settings("source-only")))
    assert remembered_proportions(training.state.score_memory) is None


def test_a_class_can_come_back(partial: Toy) -> None:
    settings = quick_settings(rounds=6, training__steps=40, network__bottleneck=64)
    training = run(make_training(partial.task, settings))
    memory = training.state.score_memory
    before = remembered_mixture(memory)
    hidden = torch.ones(8, dtype=torch.bool)
    hidden[1:] = before.absent[1:]  # type: ignore[index]
    memory["mixture_absent"] = hidden
    training.outputs.forget()
    round = training.describe_round()
    assert not round.mixture.present[0]  # type: ignore[index]
    assert revise_mixture(training, round).present[0]  # type: ignore[index]
    assert remembered_mixture(memory).present[0]  # type: ignore[index]


def test_it_resumes_as_it_was(partial: Toy, tmp_path: Path) -> None:
    settings = quick_settings(rounds=3)
    whole = run(make_training(partial.task, settings))
    first = make_training(partial.task, settings)

    def stop(*_: object) -> None:
        if first.state.round == 1 and first.state.progress.steps == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.run([Hooks(on_step=stop), Checkpoints(tmp_path, minutes=0)])
    again = make_training(partial.task, settings)
    Checkpoints(tmp_path).restore(again)
    assert not again.mixture.is_even
    again.run()
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name


def test_a_source_class_without_a_sample_is_no_trouble() -> None:
    toy = make_toy(classes=4)
    source = labeled_arrays(toy.source_x, toy.source_y, where="the toy")
    target = Domain(toy.target_x[np.isin(toy.target_y, (0, 1))])
    result = adapt(Task(source, target), quick_settings())
    assert result.predictions.labels.shape == (target.size,)
