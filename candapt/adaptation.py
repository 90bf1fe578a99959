"""The main job: from a task and settings to an adapted model. Command line and estimator both call it."""

import logging
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from lightning_fabric import Fabric

from candapt.cache import ActivationCache, Progress
from candapt.data.domains import LabeledDomain, Side, Task
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.evaluation.selection import Choice, check_choice
from candapt.head_first import features_of, head_first, mark_adapted, take_over
from candapt.methods import METHODS
from candapt.methods.base import Method
from candapt.model import Model, Predictions, reach_of
from candapt.network.build import Layers, build_layers
from candapt.randomness import derive_seed
from candapt.settings import Settings, TrainingSettings
from candapt.training.checkpoint import Checkpoints
from candapt.training.loop import Record, Training
from candapt.training.optimizers import choose_optimizer
from candapt.training.state import State

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Something that follows a training, for instance a progress bar or a run folder; it can end it but not steer."""

    def on_step(self, done: int, planned: int) -> None:
        """After a step: steps done and planned in this round."""

    def on_round(self, training: Training, record: Record) -> None:
        """After a round: what is known of it."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """What a training leaves."""

    model: Model
    predictions: Predictions
    """Of the target."""
    state: State
    """Where the training ended."""
    seconds: float
    settled: bool
    """Whether it stopped because labels and centers had settled, before the last round."""
    choice: Choice
    """Which round's model it is."""
    task: Task
    prepared: Task
    """What it was trained on: the task through the frozen layers."""

    @property
    def history(self) -> list[Record]:
        """What is known of each round."""
        return self.state.history

    @property
    def record(self) -> Record:
        """What is known of the round whose model it is."""
        return self.history[self.choice.round]


def adapt(
    task: Task,
    settings: Settings,
    *,
    images: ImageSettings | None = None,
    watcher: Watcher | None = None,
    layers: Layers | None = None,
    cache: ActivationCache | None = None,
    on_embedded: Progress | None = None,
    checkpoints: Checkpoints | None = None,
    on_start: Callable[[Training], None] | None = None,
) -> Adapted:
    """Train a method on a task.

    Args:
        task: labelled source and unlabelled target.
        settings: everything else that decides the outcome.
        images: how image files were turned into samples, to be kept with the model.
        watcher: is told of steps and rounds.
        layers: the network to start from; by default the `initial_layers`.
        cache: where the results of frozen layers are kept; by default in the user's folder for caches.
        on_embedded: is told how many views of images are through the frozen layers, if there are any.
        checkpoints: where the training goes on from, and what it is saved to.
        on_start: is shown the training before it begins or goes on; the time that this takes is not counted.
    """
    check_task(task)
    check_settings(settings)
    started = time.perf_counter()
    fabric = make_fabric(settings.training)
    layers = layers or initial_layers(task, settings)
    optimizer = choose_optimizer(layers.network, settings.training)
    log.info("Network: %s, fine-tuning %s by %s.", layers.settings.backbone, layers.settings.finetune, optimizer)
    prepared = prepare(task, layers, fabric, cache or ActivationCache(), on_embedded)
    training = Training(fabric, build_method(layers, settings), prepared, settings)
    if checkpoints is not None:
        checkpoints.restore(training)
    if on_start is not None:
        paused = time.perf_counter()
        on_start(training)
        started += time.perf_counter() - paused
    if first := head_first(layers, settings):
        if training.state.iteration == 0:  # else it was part of what is restored
            log.info("The head learns alone first, in %d rounds.", first.rounds)
            head = adapt(features_of(training), first)
            take_over(training, head.model.method, head.state)
        mark_adapted(training.method)
    run_training(training, watcher, checkpoints)
    choice = training.return_to_best()
    model = model_of(training, task, layers, images)
    predictions = model.read_off(training.embed(Side.TARGET), prepared.target.names)
    seconds = time.perf_counter() - started
    if checkpoints is not None:
        seconds += checkpoints.seconds_before
    settled = training.state.round < settings.rounds
    return Adapted(model, predictions, training.state, seconds, settled, choice, task, prepared)


def run_training(training: Training, watcher: Watcher | None, checkpoints: Checkpoints | None) -> None:
    """Train to the end; what is told of a round is written before its checkpoint, which must not be ahead of it."""

    def on_step(done: int, planned: int) -> None:
        if watcher is not None:
            watcher.on_step(done, planned)
        if checkpoints is not None:
            checkpoints.after_step(training, last=done == planned)

    def on_round(training: Training, record: Record) -> None:
        if watcher is not None:
            watcher.on_round(training, record)
        if checkpoints is not None:
            checkpoints.after_round(training)

    training.run(on_step, on_round)


def model_of(training: Training, task: Task, layers: Layers, images: ImageSettings | None) -> Model:
    """The trained method with all that is needed to use it."""
    settings, method = training.settings, training.method
    clusters = method.final_clusters(training.describe_round())
    return Model(
        method.cpu().eval(),
        settings.method,
        layers,
        task.source.classes,
        tuple(task.source.samples.shape),
        images,
        settings.training.evaluation_batch,
        clusters.centers.cpu(),
        reach_of(clusters).cpu(),
    )


def initial_layers(task: Task, settings: Settings) -> Layers:
    """The network before training, a function of the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(settings.seed, "network"))
        return build_layers(settings.network, tuple(task.source.samples.shape), task.num_classes)


def build_method(layers: Layers, settings: Settings) -> Method:
    """The method before training, around the network; a function of the seed."""
    kind = METHODS[settings.method]
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(settings.seed, "method"))
        return kind(layers.network, settings.adaptation or kind.Settings())


def prepare(
    task: Task, layers: Layers, fabric: Fabric, cache: ActivationCache, progress: Progress | None = None
) -> Task:
    """The task as the trained layers see it: through the frozen ones, once."""
    if layers.frozen is None:
        return task
    layers.frozen.to(fabric.device)
    source, target = cache.through(layers, task.source, task.target, progress=progress)
    layers.frozen.cpu()
    return Task(LabeledDomain(source.samples, source.names, task.source.labels, task.source.classes), target)


def check_task(task: Task) -> None:
    """Refuse a source and a target that do not fit together."""
    source, target = tuple(task.source.samples.shape), tuple(task.target.samples.shape)
    if source != target:
        raise UserError(
            f"Source samples have shape {source} but target samples {target}: both must come from the same features."
        )
    if task.target.size < 2:
        raise UserError("The target has fewer than two samples: there is nothing to adapt to.")


RANGES: dict[str, tuple[float, float]] = {
    "rounds": (1, math.inf),
    "network.bottleneck": (1, math.inf),
    "network.rank": (1, math.inf),
    "network.dropout": (0, 1),
    "network.views": (0, math.inf),
    "training.steps": (1, math.inf),
    "training.batch_size": (2, math.inf),
    "training.evaluation_batch": (2, math.inf),
    "training.workers": (0, 1024),
    "training.head_rounds": (0, math.inf),
    "training.learning_rate": (0, 1e30),
    "training.new_layers": (0, 1e6),
    "training.momentum": (0, 1),
    "training.weight_decay": (0, 1e6),
    "method.classes": (1, math.inf),
    "method.samples": (1, math.inf),
    "method.clustering_steps": (0, math.inf),
    "method.warmup": (0, math.inf),
    "method.start_share": (0, 1),
    "method.full_share": (0, math.inf),
}
"""Least and largest value of settings that no training can work with otherwise; `method` stands for the one chosen."""


def check_settings(settings: Settings) -> None:
    """Refuse numbers that no training can work with, and a device that this machine lacks."""
    for name, (least, most) in RANGES.items():
        group, _, field = name.rpartition(".")
        owner = {"": settings, "method": settings.adaptation}.get(group) or getattr(settings, group, None)
        value, told = getattr(owner, field, None), name.replace("method.", f"{settings.method}.")
        if value is not None and not least <= value <= most:
            limit = f"at least {least}" if value < least else f"at most {most:g}"
            raise UserError(f"{told} is {value}, but must be {limit}.")
    training = settings.training
    if training.nesterov and training.optimizer == "adam":
        raise UserError("training.nesterov is for sgd, but training.optimizer is adam: leave one of them out.")
    if training.nesterov and not training.momentum:
        raise UserError("training.nesterov needs a momentum, but training.momentum is 0.")
    if not 0 <= training.held_out < 1:
        raise UserError(f"training.held_out is {training.held_out}, but must be at least 0 and less than 1.")
    check_choice(settings.select)
    make_fabric(training)


def make_fabric(training: TrainingSettings) -> Fabric:
    """The device and the number format of a training."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fp16 is not supported on CPU")  # it is refused here
            fabric = Fabric(accelerator=training.accelerator, devices=1, precision=training.precision)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"training.accelerator is {training.accelerator!r}, which this machine does not have: take auto or cpu."
        ) from error
    if training.precision == "16-mixed" and fabric.device.type == "cpu":
        raise UserError("training.precision is '16-mixed', which needs a GPU: take bf16-mixed or 32-true.")
    return fabric
