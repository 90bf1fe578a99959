"""The main job: from a task and settings to an adapted model. Command line and estimator both call `adapt`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from candapt.data.domains import Side, Task
from candapt.data.joining import separate_domains, with_samples
from candapt.errors import UserError
from candapt.evaluation.reference import MANY
from candapt.evaluation.scores import Choice, check_selection, import_libraries
from candapt.methods import METHODS
from candapt.methods.base import Method
from candapt.model import Model, Predictions, reach_of
from candapt.network.activations import ActivationCache, Progress
from candapt.network.build import NetworkParts, build_parts
from candapt.randomness import derive_seed
from candapt.settings import ImageSettings, Settings
from candapt.training.batches import make_fabric
from candapt.training.callbacks import Callback
from candapt.training.checkpoint import Checkpoints
from candapt.training.finiteness import clustering_in
from candapt.training.head_first import HeadFirst
from candapt.training.loop import Training
from candapt.training.precision import decide_precision
from candapt.training.state import Record, TrainingState

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, eq=False)
class Result:
    """What a training leaves."""

    model: Model
    predictions: Predictions  # of the target
    state: TrainingState  # where the training ended
    seconds: float
    choice: Choice  # the round that the model comes from
    settings: Settings
    task: Task
    prepared: Task  # what it was trained on: the task after the frozen layers

    @property
    def settled(self) -> bool:
        """Whether it stopped because labels and centers had settled, before the last round."""
        return self.state.round < self.settings.rounds

    @property
    def history(self) -> list[Record]:
        """The record of each round."""
        return self.state.history

    @property
    def record(self) -> Record:
        """The record of the round that the model comes from."""
        return self.history[self.choice.round]


def adapt(
    task: Task,
    settings: Settings,
    *,
    callbacks: Sequence[Callback] = (),
    images: ImageSettings | None = None,
    fabric: "Fabric | None" = None,
    parts: NetworkParts | None = None,
    cache: ActivationCache | None = None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Train a method on a task.

    Args:
        task: labeled source and unlabeled target.
        settings: everything else that decides the outcome.
        callbacks: called during the training.
        images: how image files were turned into samples, to be stored with the model.
        fabric: device and number format of the settings, whose precision is not `auto` then; made by default.
        parts: the network to start from; by default the `initial_parts`.
        cache: where outputs of frozen layers are stored; by default in the user's cache folder.
        checkpoints: restores the training, and saves it after the other callbacks.
    """
    check_task(task)
    check_selection(settings.select)
    import_libraries()
    started = time.perf_counter()
    parts = parts or initial_parts(task, settings)
    settings = replace(settings, training=decide_precision(settings.training, parts.settings))
    fabric = fabric or make_fabric(settings.training)
    prepared = prepare(task, parts, fabric, cache or ActivationCache(), _on_embedded(callbacks))
    training = Training(fabric, build_method(parts, settings), prepared, settings)
    if checkpoints is not None:
        checkpoints.restore(training)
    paused = time.perf_counter()
    for callback in callbacks:
        callback.on_start(training)
    started += time.perf_counter() - paused  # such as the map before adaptation, which is no part of the training
    HeadFirst(parts, adapt).on_start(training)
    training.run([*callbacks, *([checkpoints] if checkpoints is not None else [])])
    choice = training.return_to_best()
    model = model_of(training, task, parts, images)
    predictions = model.predictions_from(training.outputs.of(Side.TARGET), prepared.target.names)
    if prepared.target.size > MANY:  # features of many samples take more memory than everything else
        predictions = replace(predictions, features=predictions.features[:0].clone())
    training.outputs.forget()
    seconds = time.perf_counter() - started + (checkpoints.seconds_before if checkpoints is not None else 0.0)
    return Result(model, predictions, training.state, seconds, choice, settings, task, prepared)


def model_of(training: Training, task: Task, parts: NetworkParts, images: ImageSettings | None) -> Model:
    """The trained method with everything that is needed to use it."""
    settings, method = training.settings, training.method
    with clustering_in(training.state.round - 1):
        clusters = method.final_clusters(training.describe_round())
    return Model(
        method.cpu().eval(),
        settings.method,
        parts,
        task.source.classes,
        tuple(task.source.samples.shape),
        images,
        settings.training.evaluation_batch,
        clusters.centers.cpu(),
        reach_of(clusters).cpu(),
    )


def initial_parts(task: Task, settings: Settings) -> NetworkParts:
    """The network before training, a function of the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(settings.seed, "network"))
        parts = build_parts(settings.network, tuple(task.source.samples.shape), task.num_classes)
    parts.network.add_sources(task.source.count)
    return parts


def build_method(parts: NetworkParts, settings: Settings) -> Method:
    """The method before training, around the network; a function of the seed."""
    kind = METHODS[settings.method]
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(settings.seed, "method"))
        return kind(parts.network, settings.method_settings or kind.Settings())


def prepare(
    task: Task, parts: NetworkParts, fabric: "Fabric", cache: ActivationCache, progress: Progress | None = None
) -> Task:
    """The task after the frozen layers, which process every view only once."""
    if parts.frozen is None:
        return task
    parts.frozen.to(fabric.device)
    prepared = cache.through(parts, *separate_domains(task), progress=progress)
    parts.frozen.cpu()
    return with_samples(task, [domain.samples for domain in prepared])


def check_task(task: Task) -> None:
    """Raise a `UserError` for a source and a target that do not fit together."""
    source, target = tuple(task.source.samples.shape), tuple(task.target.samples.shape)
    if source != target:
        raise UserError(
            f"Source samples have shape {source} but target samples {target}: both must come from the same features."
        )
    if task.target.size < 2:
        raise UserError("The target has fewer than two samples: there is nothing to adapt to.")


def _on_embedded(callbacks: Sequence[Callback]) -> Progress:
    def report(done: int, total: int) -> None:
        for callback in callbacks:
            callback.on_embedded(done, total)

    return report
