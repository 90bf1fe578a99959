"""A task whose target is the source rotated and moved, trainings on it, and small batches for sums by hand."""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from candapt.adaptation import Result, adapt, build_method, initial_parts
from candapt.data.domains import Side
from candapt.methods import METHODS
from candapt.methods.base import Batch, BatchPart, Method
from candapt.network.network import Network
from candapt.presets import make_settings
from candapt.settings import Settings
from candapt.training.batches import make_fabric
from candapt.training.loop import Training
from tests.toy import Toy

SHORT: dict[str, Any] = {
    "rounds": 4,
    "network.bottleneck": 32,
    "training.steps": 15,
    "training.learning_rate": 0.01,
    "training.settled": 0,
    "training.accelerator": "cpu",
}
FOR_SHORT: dict[str, dict[str, Any]] = {
    "source-only": {"statistics": "source"},  # as a network that never saw the target
    "self-ensembling": {"decay": 0.9},  # the default teacher would remember its first weights to the end
    "mada": {"width": 64},
}
"""Settings whose defaults are not for a training of so few steps on this task."""


@cache
def make_rotated(*, samples: int = 40, width: int = 16, angle: float = 0.9) -> Toy:
    """Three classes; in the target all pairs of coordinates are turned by the angle and the origin is elsewhere."""
    random = np.random.default_rng(0)
    centers = 1.5 * random.normal(size=(3, width))
    labels = np.arange(3 * samples) % 3
    source, target = (centers[labels] + random.normal(size=(len(labels), width)) for _ in range(2))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    target = target @ np.kron(np.eye(width // 2), turn) + 2 * random.normal(size=width)
    order = random.permutation(len(labels))
    return Toy(source.astype(np.float32), labels, target[order].astype(np.float32), labels[order])


def short_settings(method: str, *, seed: int = 0, **changes: Any) -> Settings:
    """Settings for a training of a second; changes without a dot are of the method's own settings."""
    own = FOR_SHORT.get(method, {}) | changes
    named = {name if name in SHORT else f"{method}.{name}": value for name, value in own.items()}
    return make_settings(method, seed=seed, changes=SHORT | named)


@cache
def adapted(method: str, **changes: Any) -> Result:
    """The method trained on the rotated task; done once for all tests."""
    return adapt(make_rotated().task, short_settings(method, **changes))


def accuracy(method: str, **changes: Any) -> float:
    """Share of the target that the trained method predicts right."""
    return float((adapted(method, **changes).predictions.labels.numpy() == make_rotated().target_y).mean())


def begin(settings: Settings) -> Training:
    """A training on the rotated task that has not begun, with the weights that `adapt` starts from."""
    task = make_rotated().task
    method = build_method(initial_parts(task, settings), settings)
    return Training(make_fabric(settings.training), method, task, settings)


def tiny(name: str, **settings: Any) -> Method:
    """A method over a network with five inputs, four features and three classes, as it is in evaluation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind = METHODS[name]
        backbone = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU())
        return kind(Network(backbone, 4, 3), kind.Settings(**settings)).eval()


def small_batch(**sides: Side) -> Batch:
    """Six samples for each named part, two of each class; by default `source` and `target`."""
    random = torch.Generator().manual_seed(1)
    parts = sides or {"source": Side.SOURCE, "target": Side.TARGET}
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    return {name: BatchPart(torch.randn(6, 5, generator=random), labels, side) for name, side in parts.items()}


def gradients(loss: Tensor, module: nn.Module) -> list[Tensor]:
    """Gradients of all parameters of the module that learn, zeros where the loss does not depend on one."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True))
