"""A small task with a known answer, for tests that train."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from torch import Tensor

from candapt.adaptation import initial_parts
from candapt.data.domains import Domain, Task
from candapt.data.features import labeled_arrays
from candapt.methods import METHODS
from candapt.network.build import NetworkParts
from candapt.presets import make_settings
from candapt.settings import Settings
from candapt.training.callbacks import Callback
from candapt.training.loop import Training
from candapt.training.state import Record

Array = np.ndarray[Any, Any]

QUICK: dict[str, Any] = {
    "rounds": 2,
    "network.bottleneck": 16,
    "training.steps": 5,
    "training.head_rounds": 2,
    "training.accelerator": "cpu",
}
"""Settings under which a training takes a fraction of a second; by the names of the flags."""


@dataclass(frozen=True)
class Toy:
    """Classes in the source as Gaussians; in the target the same ones, moved and stretched."""

    source_x: Array
    source_y: Array
    target_x: Array
    target_y: Array

    @property
    def task(self) -> Task:
        return Task(labeled_arrays(self.source_x, self.source_y, where="the toy"), Domain(self.target_x))

    def write(self, folder: Path) -> Path:
        """Write `source.npz`, `target.npz`, `labels.csv` and `labeled.npz`, the target with its labels."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "source.npz", x=self.source_x, y=self.source_y)
        np.savez(folder / "target.npz", x=self.target_x)
        np.savez(folder / "labeled.npz", x=self.target_x, y=self.target_y)
        rows = "".join(f"{row},{label}\n" for row, label in enumerate(self.target_y))
        (folder / "labels.csv").write_text(f"path,label\n{rows}")
        return folder


def make_toy(*, classes: int = 4, samples: int = 30, width: int = 24, seed: int = 0) -> Toy:
    """A task on which the domains' means and scales differ, so that a source classifier goes wrong."""
    random = np.random.default_rng(seed)
    centers = 2 * random.normal(size=(classes, width))
    labels = np.arange(classes * samples) % classes
    source, target = (centers[labels] + random.normal(size=(len(labels), width)) for _ in range(2))
    target = target * random.uniform(0.5, 1.5, size=width) + 4.5 * random.normal(size=width)
    order = random.permutation(len(labels))
    return Toy(source.astype(np.float32), labels, target[order].astype(np.float32), labels[order])


def quick_settings(method: str = "can", *, seed: int = 0, **changes: Any) -> Settings:
    """Settings for a fast training; `training__steps=3` changes the setting `training.steps`."""
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    return make_settings(method, seed=seed, changes=QUICK | changed)


def make_training(task: Task, settings: Settings, parts: NetworkParts | None = None) -> Training:
    """A training that has not begun, of the kind that `adapt` makes."""
    parts = parts or initial_parts(task, settings)
    method = METHODS[settings.method](parts.network, settings.method_settings)
    return Training(Fabric(accelerator="cpu", devices=1), method, task, settings)


class Hooks(Callback):
    """A callback that calls the functions given."""

    def __init__(
        self,
        *,
        on_step: Callable[[Training, int, int], object] = lambda training, done, planned: None,
        on_round: Callable[[Training, Record], object] = lambda training, record: None,
    ) -> None:
        self._on_step, self._on_round = on_step, on_round

    def on_step(self, training: Training, done: int, planned: int) -> None:
        self._on_step(training, done, planned)

    def on_round(self, training: Training, record: Record) -> None:
        self._on_round(training, record)


def run(training: Training) -> Training:
    """Train to the end."""
    training.run()
    return training


def weights(training: Training) -> dict[str, Tensor]:
    """A copy of everything that the method holds."""
    return {name: value.clone() for name, value in training.method.state_dict().items()}


def timeless(history: list[Record]) -> list[Record]:
    """The history without how long it took."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]
