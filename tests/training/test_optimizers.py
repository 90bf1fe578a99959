"""Which optimizer trains what, how fast, and how the learning rate decays: the figures of the authors' code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW

from candapt.adaptation import initial_parts
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.methods.base import Method
from candapt.network.build import build_network
from candapt.presets import make_settings
from candapt.settings import NetworkSettings, Settings, TrainingSettings
from candapt.training.optimizers import build_optimizers, learning_rate_factor, set_learning_rates
from tests.toy import Toy, quick_settings

OFFICE, VISDA = (0.001, 0.75), (0.0005, 2.25)
BOTTLENECK = NetworkSettings(head="bottleneck", bottleneck=8)


def over_features(toy: Toy, settings: Settings) -> Method:
    return METHODS[settings.method](initial_parts(toy.task, settings).network, settings.method_settings)


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


class TestDecay:
    @pytest.mark.parametrize(
        ("decay", "iteration", "expected"),
        [
            (OFFICE, 1000, 5.94604e-4),
            (VISDA, 1000, 4.01601e-4),
            (OFFICE, 4650, 2.72875e-4),
            (VISDA, 4650, 6.69836e-5),
            (OFFICE, 25400, 8.58612e-5),
            (VISDA, 25400, 2.76936e-6),
        ],
    )
    def test_check_values_by_iteration(self, decay: tuple[float, float], iteration: int, expected: float) -> None:
        slope, power = decay
        factor = learning_rate_factor("iteration", progress=0.3, iteration=iteration, slope=slope, power=power)
        assert 0.001 * factor == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("power", [0.75, 2.25])
    def test_by_progress_as_the_paper_writes(self, power: float) -> None:
        factors = [
            learning_rate_factor("progress", progress=p, iteration=99, slope=10, power=power)
            for p in (0.0, 0.25, 0.5, 1.0)
        ]
        assert factors == pytest.approx([1, 3.5**-power, 6**-power, 11**-power])

    def test_constant_does_not_decay(self) -> None:
        assert learning_rate_factor("constant", progress=0.9, iteration=900, slope=10, power=2) == 1

    @given(
        st.sampled_from(["progress", "iteration"]), st.floats(0, 1), st.floats(0, 1), st.floats(0, 20), st.floats(0, 3)
    )
    def test_it_starts_at_one_and_never_grows(self, kind: str, p: float, q: float, slope: float, power: float) -> None:
        def factor(position: float) -> float:
            return learning_rate_factor(
                kind, progress=position, iteration=int(1e4 * position), slope=slope, power=power
            )

        assert factor(0) == 1
        assert 0 < factor(max(p, q)) <= factor(min(p, q)) <= 1

    def test_it_is_set_for_every_group_of_every_optimizer(self) -> None:
        settings = TrainingSettings(schedule="iteration", slope=0.001)
        optimizers = build_optimizers(over_a_stage(), settings)
        for _ in range(2):  # from the initial rates, and not from those of the step before
            factor = set_learning_rates(optimizers.values(), settings, progress=0.5, iteration=1000)
            assert factor == pytest.approx(2**-0.75)
            groups = optimizers["network"].param_groups
            assert [group["lr"] for group in groups] == pytest.approx([0.001 * factor, 0.01 * factor])
