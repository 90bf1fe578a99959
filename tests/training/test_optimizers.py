"""Which optimizer trains what, and how fast."""

import pytest
from torch import nn
from torch.optim import SGD, AdamW

from candapt.adaptation import initial_layers
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.methods.base import Method
from candapt.network.build import build_network
from candapt.presets import make_settings
from candapt.settings import NetworkSettings, Settings, TrainingSettings
from candapt.training.optimizers import build_optimizers
from tests.toy import Toy, quick_settings

BOTTLENECK = NetworkSettings(head="bottleneck", bottleneck=8)


def over_features(toy: Toy, settings: Settings) -> Method:
    return METHODS[settings.method](initial_layers(toy.task, settings).network, settings.adaptation)


def over_a_stage() -> Method:
    network = build_network(nn.Linear(4, 6), 6, 3, BOTTLENECK)
    return METHODS["source-only"](network, METHODS["source-only"].Settings())


def rates(method: Method, training: TrainingSettings) -> list[float]:
    return [group["lr"] for group in build_optimizers(method, training)["network"].param_groups]


@pytest.mark.parametrize("method", ["can", "dann", "mcd"])
def test_a_head_alone_is_trained_by_adam(toy: Toy, method: str) -> None:
    settings = quick_settings(method)
    for optimizer in build_optimizers(over_features(toy, settings), settings.training).values():
        assert isinstance(optimizer, AdamW)
        assert [group["lr"] for group in optimizer.param_groups] == [settings.training.learning_rate]


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_presets_take_the_papers_optimizer_and_start_from_the_features(toy: Toy, preset: str) -> None:
    settings = make_settings("can", preset=preset)
    method = over_features(toy, settings)
    (optimizer,) = build_optimizers(method, settings.training).values()
    assert isinstance(optimizer, SGD)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert method.network.num_features == toy.source_x.shape[1]


def test_more_than_a_head_is_trained_as_in_the_paper() -> None:
    (optimizer,) = build_optimizers(over_a_stage(), TrainingSettings()).values()
    assert isinstance(optimizer, SGD)
    assert rates(over_a_stage(), TrainingSettings()) == pytest.approx([0.001, 0.01])


def test_a_choice_is_kept(toy: Toy) -> None:
    assert rates(over_a_stage(), TrainingSettings(optimizer="adam")) == [0.001, 0.001]
    assert rates(over_a_stage(), TrainingSettings(new_layers=3)) == pytest.approx([0.001, 0.003])
    nesterov = quick_settings(training__nesterov=True)
    (optimizer,) = build_optimizers(over_features(toy, nesterov), nesterov.training).values()
    assert isinstance(optimizer, SGD)
    assert optimizer.defaults["nesterov"]


def test_a_part_without_weights_is_told(toy: Toy) -> None:
    settings = quick_settings("mcd", network__head="linear")
    with pytest.raises(UserError, match="backbone has nothing to learn at this depth"):
        build_optimizers(over_features(toy, settings), settings.training)
