"""What a training leaves to the data and to the machine: backbone, depth, views of the images.

Each is decided once and stored with the run, so that it stays the same when the run is resumed somewhere else.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from candapt.console import counting
from candapt.data.domains import Task
from candapt.network.activations import ActivationCache
from candapt.network.backbones import SMALL_CNN, default_backbone, input_settings
from candapt.network.build import depends_on_machine
from candapt.settings import ImageChoice, ImageSettings, Settings
from candapt.training.batches import make_fabric

if TYPE_CHECKING:
    from candapt.data.images import ImageSamples
    from candapt.evaluation.view_choice import ViewChoice

log = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Decided:
    """A task and its settings after everything is decided."""

    task: Task
    images: ImageSettings | None  # how image files become samples; None without any
    settings: Settings
    choice: ImageChoice
    reasons: dict[str, Any] = field(default_factory=dict)  # figures and a sentence for each decision by the data


def decide_network(settings: Settings) -> Settings:
    """The settings for images with the backbone and the depth of training decided."""
    return replace(settings, network=depends_on_machine(settings.network))


def log_backbone(settings: Settings) -> None:
    """Say which backbone is taken and why, if that was left open."""
    network = settings.network
    if network.backbone == AUTO and network.weights is None and (reason := default_backbone()[1]):
        log.info("%s", reason)


def decide_views(
    task: Task, images: ImageSettings | None, settings: Settings, choice: ImageChoice, cache: ActivationCache
) -> Decided:
    """The task in the views that its source prefers, if the user and the depth of training leave the choice."""
    network = settings.network
    is_open = choice.size == AUTO and choice.resize is None and network.finetune == "head"
    if images is None or not is_open or network.backbone == SMALL_CNN or not _are_files(task):
        return Decided(task, images, settings, choice)
    made = _compare(task, images, settings, cache)
    log.info("%s", made.sentence)
    images, mirror = made.chosen.images, made.chosen.mirror
    return Decided(
        _viewed(task, images),
        images,
        settings.changed({"network.mirror": mirror}),
        replace(choice, size=images.size, resize=images.resize),
        {"views": made.figures | {"reason": made.sentence}},
    )


def _compare(task: Task, images: ImageSettings, settings: Settings, cache: ActivationCache) -> "ViewChoice":
    from candapt.evaluation.view_choice import candidates, choose_views  # needs torchvision, as only images do

    network = settings.network
    pair = candidates(images, mirror=network.mirror, any_size=input_settings(network.backbone).any_size)
    with counting("comparing views") as count:
        return choose_views(task.source, pair, network, cache, make_fabric(settings.training).device, count)


def _are_files(task: Task) -> bool:
    """Whether both domains are image files, of which other views can be made."""
    from candapt.data.images import ImageSamples

    return all(isinstance(domain.samples, ImageSamples) for domain in (task.source, task.target))


def _viewed(task: Task, images: ImageSettings) -> Task:
    """The same image files in other views."""
    source, target = (cast("ImageSamples", domain.samples).viewed(images) for domain in (task.source, task.target))
    return replace(task, source=replace(task.source, samples=source), target=replace(task.target, samples=target))


def as_recorded(
    settings: Settings, choice: ImageChoice, recorded: Mapping[str, Any] | None
) -> tuple[Settings, ImageChoice]:
    """What is still to be decided, as a run that is resumed has decided it, by flag name; the rest as it is."""
    known = {name: value for name, value in (recorded or {}).items() if value is not None}
    changes: dict[str, Any] = {
        name: known[name]
        for name in ("network.backbone", "network.finetune", "training.precision")
        if settings.value(name) == AUTO and name in known
    }
    if choice.size == AUTO and "images.size" in known:
        choice = replace(choice, size=known["images.size"], resize=choice.resize or known.get("images.resize"))
        changes["network.mirror"] = bool(known.get("network.mirror", settings.network.mirror))
    return settings.changed(changes), choice
