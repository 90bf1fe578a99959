"""Before the last stage of a backbone is trained, the head over it learns alone.

A head that starts at random spoils pretrained layers before its gradients mean anything; one that has learned over the
frozen features, which takes seconds, does not.
"""

from dataclasses import replace

from candapt.data.domains import LabeledDomain, Side, Task
from candapt.evaluation.selection import LAST
from candapt.methods.base import Method
from candapt.network.batchnorm import keep_statistics
from candapt.network.build import Layers
from candapt.network.network import Network
from candapt.settings import Settings
from candapt.training.loop import Training
from candapt.training.state import State


def head_first(layers: Layers, settings: Settings) -> Settings | None:
    """How the head learns alone before the layers below it do; None if it does not."""
    network, training = layers.settings, settings.training
    apart = network.finetune == "last-stage" and network.head == "bottleneck"
    if not apart or layers.network.starts_at_random or not training.head_rounds:
        return None
    # What may be too slow for a last stage is not over features; and the samples to hold out have been taken already.
    own = replace(training, precision="32-true", statistics="auto", held_out=0.0)
    network = replace(settings.network, finetune="head")
    return replace(settings, rounds=training.head_rounds, select=LAST, network=network, training=own)


def features_of(training: Training) -> Task:
    """The task of a training that has not begun as the head sees it: features of the evaluation views."""
    source, features = training.task.source, training.features(Side.SOURCE).samples
    return Task(LabeledDomain(features, source.names, source.labels, source.classes), training.features(Side.TARGET))


def take_over(training: Training, head: Method, state: State) -> None:
    """Go on from where the head has got over the same layers while these were frozen.

    Args:
        training: of head and layers; it has not begun.
        head: the method of the head's training.
        state: where that training ended. Its clusters go on, and scores compare with what was before it.
    """
    tensors = {name.replace("backbone.", "backbone.bottleneck."): value for name, value in head.state_dict().items()}
    missing, unknown = training.method.load_state_dict(tensors, strict=False)
    if unknown or not all("backbone.layers." in name for name in missing):
        raise ValueError(f"the head does not fit: {[*unknown, *missing][:3]}")
    training.state.clusters, training.state.scored = state.clusters, state.scored
    training.forget(layers=False)


def mark_adapted(method: Method) -> None:
    """Let the layers keep the statistics over which the head has learned, and the method know that it need not warm up.

    A batch of 30 samples, chosen by class, has other statistics than the pretrained network; with them the features
    are no longer those that the head knows.
    """
    for network in (module for module in method.modules() if isinstance(module, Network)):
        network.is_adapted = True
        keep_statistics(network.backbone.get_submodule("layers"))
