"""Before the last stage of a backbone is trained, the head over it learns alone.

Gradients of a head that starts at random spoil pretrained layers; a head that has learned over the frozen features,
which takes seconds, does not.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from candapt.data.domains import Side, Task
from candapt.network.batchnorm import keep_statistics
from candapt.network.build import NetworkParts
from candapt.network.network import Network
from candapt.settings import LAST, Settings
from candapt.training.callbacks import Callback
from candapt.training.loop import Training
from candapt.training.state import TrainingState


class HeadFirst(Callback):
    """Adapts the head of a last-stage training over fixed layers before its first step, for `head_rounds` rounds.

    The layers keep the batch norm statistics that the head has learned over: a batch of 30 samples, chosen by class,
    has other statistics than the pretrained network, and with them the features are no longer those the head knows.
    """

    def __init__(self, parts: NetworkParts, adapt: Callable[[Task, Settings], Any]) -> None:
        """Prepare for a training of these parts; `adapt` trains the head, as `candapt.adaptation.adapt` does."""
        self.parts, self.adapt = parts, adapt

    def on_start(self, training: Training) -> None:
        """Adapt the head, unless that is part of what was restored, and let the training continue from it."""
        settings = self.head_settings(training.settings)
        if settings is None:
            return
        if training.state.iteration == 0:
            task, features = training.task, training.outputs.features
            source = replace(task.source, samples=features(Side.SOURCE).samples)
            head = self.adapt(replace(task, source=source, target=features(Side.TARGET)), settings)
            take_over(training, head.model.method.state_dict(), head.state)
        training.method.head_is_adapted = True
        training.least_progress = 1.0
        for network in (module for module in training.method.modules() if isinstance(module, Network)):
            network.layers_are_fixed = True
            keep_statistics(network.backbone.get_submodule("layers"))

    def head_settings(self, settings: Settings) -> Settings | None:
        """Settings of the head's own training; None if it has none."""
        network, training = self.parts.settings, settings.training
        has_bottleneck = network.finetune == "last-stage" and network.head == "bottleneck"
        if not has_bottleneck or self.parts.network.starts_at_random or not training.head_rounds:
            return None
        # Features are cheap, so that no faster number format is needed; held-out samples are held out already.
        own = replace(training, precision="32-true", statistics="auto", held_out=0.0)
        network = replace(settings.network, finetune="head")
        return replace(settings, rounds=training.head_rounds, select=LAST, network=network, training=own)


def take_over(training: Training, head: dict[str, Any], state: TrainingState) -> None:
    """Load the method's state dict, clusters and score memory of a head that was trained over the same layers."""
    tensors = {name.replace("backbone.", "backbone.bottleneck."): value for name, value in head.items()}
    missing, unknown = training.method.load_state_dict(tensors, strict=False)
    if unknown or not all("backbone.layers." in name for name in missing):
        raise ValueError(f"the head does not fit: {[*unknown, *missing][:3]}")
    training.state.clusters, training.state.score_memory = state.clusters, state.score_memory
    training.outputs.forget(layers=False)
