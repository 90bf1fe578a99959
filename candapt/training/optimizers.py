"""Optimizers and their learning rates: stochastic gradient descent as in the paper, or Adam."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch.optim import SGD, AdamW, Optimizer

from candapt.errors import UserError
from candapt.methods.base import Method
from candapt.network.network import Bottleneck, Network
from candapt.settings import TrainingSettings

Kind = Literal["sgd", "adam"]


def build_optimizers(method: Method, training: TrainingSettings) -> dict[str, Optimizer]:
    """One optimizer for each part that some phase updates; new layers learn faster than pretrained ones."""
    networks = [module for module in method.modules() if isinstance(module, Network)]
    pretrained = {parameter for network in networks for parameter in network.pretrained_parameters()}
    kind = choose_optimizer(method.network, training)
    faster = {"sgd": 10.0, "adam": 1.0}[kind] if training.new_layers is None else training.new_layers
    optimizers: dict[str, Optimizer] = {}
    for name in dict.fromkeys(part for phase in method.phases for part in phase.updates):
        trained = [p for p in method.get_submodule(name).parameters() if p.requires_grad]
        old, new = [p for p in trained if p in pretrained], [p for p in trained if p not in pretrained]
        if not trained:
            raise UserError(f"{name} has nothing to learn at this depth: use --network.head bottleneck.")
        rates = [(old, training.learning_rate), (new, training.learning_rate * faster)]
        groups: list[dict[str, Any]] = [{"params": p, "lr": lr, "initial_lr": lr} for p, lr in rates if p]
        optimizers[name] = _optimizer(kind, groups, training)
    return optimizers


def choose_optimizer(network: Network, training: TrainingSettings) -> Kind:
    """The optimizer of the settings; `auto` is Adam for a new head over frozen layers, else the paper's."""
    if training.optimizer != "auto":
        return training.optimizer
    return "adam" if isinstance(network.backbone, Bottleneck) and not training.nesterov else "sgd"


def _optimizer(kind: Kind, groups: list[dict[str, Any]], training: TrainingSettings) -> Optimizer:
    # Fused: one pass over the memory in place of four.
    if kind == "adam":
        return AdamW(groups, weight_decay=training.weight_decay, fused=True)
    momentum, nesterov = training.momentum, training.nesterov
    return SGD(groups, momentum=momentum, nesterov=nesterov, weight_decay=training.weight_decay, fused=True)


def start_momentum(optimizers: Iterable[Optimizer]) -> None:
    """Start every momentum at zero: the fused step cannot start one for a parameter with a late first gradient."""
    for optimizer in (each for each in optimizers if "momentum" in each.defaults):
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def learning_rate_factor(schedule: str, *, progress: float, iteration: int, slope: float, power: float) -> float:
    """The factor on the initial learning rate: (1 + slope·p)^-power, a and b in the paper.

    The schedule `progress` takes p as the share of all planned steps done (the paper), `iteration` as the number of
    steps done (the authors' code); `constant` does not decay.

    >>> round(0.001 * learning_rate_factor("iteration", progress=0, iteration=1000, slope=0.001, power=0.75), 9)
    0.000594604
    """
    if schedule == "constant":
        return 1.0
    position = progress if schedule == "progress" else float(iteration)
    return float((1 + slope * position) ** -power)


def set_learning_rates(
    optimizers: Iterable[Optimizer], settings: TrainingSettings, *, progress: float, iteration: int
) -> float:
    """Set every parameter group to its decayed learning rate; returns the factor."""
    factor = learning_rate_factor(
        settings.schedule, progress=progress, iteration=iteration, slope=settings.slope, power=settings.power
    )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
    return factor
