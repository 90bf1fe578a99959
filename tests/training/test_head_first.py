"""The head learns alone before the last stage does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric

from candapt.adaptation import Result, adapt, initial_parts, prepare
from candapt.data.domains import Side, Task
from candapt.methods import METHODS
from candapt.model import load
from candapt.network.activations import ActivationCache
from candapt.network.network import Network
from candapt.settings import Settings
from candapt.training import head_first
from candapt.training.callbacks import Callback
from candapt.training.checkpoint import Checkpoints
from candapt.training.head_first import HeadFirst
from candapt.training.loop import Training
from tests.images import SIZE, photo_task, write_weights
from tests.toy import make_training, quick_settings


class StopError(Exception):
    pass


class FirstRound(Callback):
    """Ends a training after its first round."""

    def on_round(self, training: Training, record: Any) -> None:
        self.record = record
        raise StopError


@dataclass
class Photos:
    task: Task
    weights: Path
    cache: ActivationCache

    def settings(self, method: str = "can", **changes: Any) -> Settings:
        base = {
            "network__backbone": "test_resnet",
            "network__weights": self.weights,
            "network__finetune": "last-stage",
            "network__views": 1,
            "training__batch_size": 4,
            "training__steps": 2,
        }
        return quick_settings(method, **base | changes)

    def adapt(self, settings: Settings, **rest: Any) -> Result:
        return adapt(self.task, settings, cache=self.cache, **rest)


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
    return Photos(photo_task(tmp_path), weights, ActivationCache(tmp_path / "cache"))


def adapted_training(photos: Photos, settings: Settings) -> tuple[Training, Result]:
    """Where the last stage is about to be trained, and what the head has learned over it."""
    parts = initial_parts(photos.task, settings)
    prepared = prepare(photos.task, parts, Fabric(accelerator="cpu"), photos.cache)
    training, heads = make_training(prepared, settings, parts), []

    def adapt_head(task: Task, settings: Settings) -> Result:
        assert settings.training.statistics == "auto"
        heads.append(adapt(task, settings))
        return heads[-1]

    HeadFirst(parts, adapt_head).on_start(training)
    (head,) = heads
    return training, head


@pytest.mark.parametrize("statistics", ["running", "auto"])
@pytest.mark.parametrize("method", METHODS)
def test_the_last_stage_starts_from_what_the_head_has_learned(photos: Photos, method: str, statistics: str) -> None:
    settings = photos.settings(method, training__statistics=statistics)
    training, head = adapted_training(photos, settings)
    assert training.method.head_is_adapted
    assert all(module.layers_are_fixed for module in training.method.modules() if isinstance(module, Network))
    torch.testing.assert_close(training.outputs.of(Side.TARGET).probabilities, head.predictions.probabilities)
    assert torch.equal(training.state.score_memory["first_labels"], head.state.score_memory["first_labels"])


def test_the_layers_keep_their_statistics_and_learn(photos: Photos) -> None:
    settings = photos.settings()
    parts = initial_parts(photos.task, settings)
    before = {name: value.clone() for name, value in parts.network.state_dict().items() if ".layers." in name}
    after = photos.adapt(settings, parts=parts).model.method.network.state_dict()
    for name, value in before.items():
        kept = "running" in name or "num_batches" in name
        assert torch.equal(after[name], value) is kept, name


def test_what_rises_in_the_course_of_a_training_has_risen(photos: Photos) -> None:
    training, _ = adapted_training(photos, photos.settings("dann"))
    seen = []
    training.method.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[2]))
    training.one_round()
    assert seen == [1.0, 1.0]


def test_fixed_pseudo_labels_stay_those_of_the_first_clustering(photos: Photos) -> None:
    adapted = photos.adapt(photos.settings("pseudo-fixed", rounds=3))
    assert all(record["label_change"] == 0 for record in adapted.history)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "can"},
        {"method": "self-ensembling"},
        {"method": "source-only"},
        {"method": "source-only", "source-only__statistics": "source"},
        {"method": "can", "training__statistics": "running"},
    ],
    ids=str,
)
def test_samples_go_through_the_layers_once(photos: Photos, settings: dict[str, Any]) -> None:
    training, _ = adapted_training(photos, photos.settings(**settings))
    training.one_round()
    training.outputs.forget()
    passed = []
    layers = training.method.network.backbone.get_submodule("layers")
    hook = layers.register_forward_hook(lambda module, inputs, output: passed.append(len(output)))
    looks = {side: training.outputs.of(side) for side in Side}
    hook.remove()
    assert sum(passed) == sum(training.task.domain(side).size for side in Side)
    for side, look in looks.items():
        torch.testing.assert_close(training.outputs.of_samples(side, training.task.domain(side)), look)


@pytest.mark.parametrize("method", ["source-only", "mcd", "self-ensembling"])
def test_a_saved_model_predicts_the_same(photos: Photos, method: str, tmp_path: Path) -> None:
    adapted = photos.adapt(photos.settings(method), images=SIZE)
    adapted.model.save(tmp_path)
    again = load(tmp_path).predict(photos.task.target)
    assert torch.equal(again.probabilities, adapted.predictions.probabilities)


def test_without_rounds_for_it_there_is_none(photos: Photos) -> None:
    for changes in ({"training__head_rounds": 0}, {"network__head": "linear"}, {"network__finetune": "head"}):
        settings = photos.settings(**changes)
        assert HeadFirst(initial_parts(photos.task, settings), adapt).head_settings(settings) is None


@pytest.mark.parametrize(
    ("rounds", "head_rounds", "warmup", "whole"),
    [(4, 2, 0, True), (4, 0, 1, True), (3, 2, 0, True), (3, 0, 0, False)],  # three are too few for a warm-up
)
def test_what_has_learned_needs_no_careful_start(
    photos: Photos, rounds: int, head_rounds: int, warmup: int, whole: bool
) -> None:
    watch = FirstRound()
    with pytest.raises(StopError):
        photos.adapt(photos.settings(rounds=rounds, training__head_rounds=head_rounds), callbacks=[watch])
    assert watch.record["warmup"] == warmup
    assert (watch.record["kept_share"] == 1) is whole


def test_a_resumed_run_does_not_train_the_head_again(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, saved = photos.settings(rounds=3, training__settled=0.0), tmp_path / "saved"
    saved.mkdir()
    whole = photos.adapt(settings)
    with pytest.raises(StopError):
        photos.adapt(settings, checkpoints=Checkpoints(saved, minutes=0), callbacks=[FirstRound()])
    monkeypatch.setattr(head_first, "take_over", None)
    resumed = photos.adapt(settings, checkpoints=Checkpoints(saved))
    assert torch.equal(resumed.predictions.probabilities, whole.predictions.probabilities)
