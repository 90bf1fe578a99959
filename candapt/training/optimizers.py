"""What makes the steps: stochastic gradient descent as in the paper, or Adam."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch.optim import SGD, AdamW, Optimizer

from candapt.errors import UserError
from candapt.methods.base import Method
from candapt.network.network import FeatureBackbone, Network
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
            raise UserError(f"{name} has nothing to learn at this depth: take --network.head bottleneck.")
        rates = [(old, training.learning_rate), (new, training.learning_rate * faster)]
        groups: list[dict[str, Any]] = [{"params": p, "lr": lr, "initial_lr": lr} for p, lr in rates if p]
        optimizers[name] = _optimizer(kind, groups, training)
    return optimizers


def choose_optimizer(network: Network, training: TrainingSettings) -> Kind:
    """As set; by itself Adam for a head that learns from nothing over frozen layers, else the paper's."""
    if training.optimizer != "auto":
        return training.optimizer
    return "adam" if isinstance(network.backbone, FeatureBackbone) and not training.nesterov else "sgd"


def _optimizer(kind: Kind, groups: list[dict[str, Any]], training: TrainingSettings) -> Optimizer:
    # Fused: one pass over the memory in place of four.
    if kind == "adam":
        return AdamW(groups, weight_decay=training.weight_decay, fused=True)
    momentum, nesterov = training.momentum, training.nesterov
    return SGD(groups, momentum=momentum, nesterov=nesterov, weight_decay=training.weight_decay, fused=True)


def start_momentum(optimizers: Iterable[Optimizer]) -> None:
    """Start every momentum at zero: the fused step cannot begin one later, for what gets its first gradient later."""
    for optimizer in (each for each in optimizers if "momentum" in each.defaults):
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
