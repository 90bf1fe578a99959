"""What a training from files is asked to do, and what it is asked to do it with."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from candapt.adaptation import check_task, initial_layers
from candapt.cache import ActivationCache
from candapt.console import counting
from candapt.data.checking import ImageCheck
from candapt.data.domains import Task
from candapt.data.inputs import Reading, is_feature_file, read_domain, read_labeled_domain, read_target_labels
from candapt.data.transforms import ImageSettings
from candapt.network.backbones import input_settings
from candapt.network.build import Layers, check_weights, decide
from candapt.runs import describe_settings, plain
from candapt.settings import ImageChoice, NetworkSettings, Settings


@dataclass(frozen=True)
class Job:
    """What `candapt adapt` is asked to do."""

    source: Path
    target: Path
    settings: Settings
    images: ImageChoice = field(default_factory=ImageChoice)
    target_labels: Path | None = None
    strict: bool = False
    baseline: bool = True
    """Train source-only beside, to tell whether adaptation helped."""
    cache: Path | None = None
    """Folder of the activation cache; None for the user's. It changes no result."""
    report: bool = True
    """Write `report.html`, with a map of both domains."""
    map_points: int = 1000
    """Samples of each domain on that map, at most."""

    def describe(self) -> dict[str, Any]:
        """The content of `config.yaml`."""
        paths = {"source": self.source, "target": self.target, "target_labels": self.target_labels}
        return {
            **{name: str(path.absolute()) if path else None for name, path in paths.items()},
            "strict": self.strict,
            "baseline": self.baseline,
            "report": self.report,
            "images": plain(self.images),
            **describe_settings(self.settings),
        }


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a job names, read and checked."""

    task: Task
    images: ImageSettings | None
    checks: tuple[ImageCheck | None, ImageCheck | None]
    """Of the image files of source and target."""
    truth: Tensor | None
    """Target labels for the oracle."""
    layers: Layers
    cache: ActivationCache

    @property
    def broken(self) -> list[tuple[Path, str]]:
        """Image files that do not decode and classes without a usable one, and why."""
        return [item for check in self.checks if check for item in (*check.broken, *check.empty)]


def read_inputs(job: Job) -> Inputs:
    """Read what a job names, and refuse what does not fit together."""
    images = image_settings(job)
    if images is not None:
        check_weights(job.settings.network)
    with counting("checking images") as count:
        views = images or ImageSettings(augmentation=job.images.augmentation)
        reading = Reading(views, os.cpu_count() or 1, job.strict, count)
        source, source_check = read_labeled_domain(job.source, reading)
        target, target_check = read_domain(job.target, reading)
    task = Task(source, target)
    check_task(task)
    truth = None
    if job.target_labels:
        truth = read_target_labels(job.target_labels, target, source.classes, strict=job.strict)
    layers = initial_layers(task, job.settings)
    cache = ActivationCache(job.cache)
    cache.require_room(layers, task.source, task.target)
    return Inputs(task, images, (source_check, target_check), truth, layers, cache)


def image_settings(job: Job) -> ImageSettings | None:
    """How image files become samples, by the backbone's expectations and the user's choice; None for feature files."""
    if is_feature_file(job.source) and is_feature_file(job.target):
        return None
    return expected_images(job.settings.network, job.images)


def expected_images(network: NetworkSettings, choice: ImageChoice) -> ImageSettings:
    """How image files become the input of a backbone, where the user did not choose otherwise."""
    expects = input_settings(decide(network, (3, 224, 224)).backbone)
    return ImageSettings.for_input(
        choice.size or expects.size,
        expects.mean,
        expects.std,
        resize=choice.resize,
        augmentation=choice.augmentation,
        shrink=choice.shrink,
    )
