"""Numbers that go wrong: losses and gradients that are not finite are noticed before they reach a weight."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from candapt.data.domains import Task
from candapt.methods.base import Draw, Losses, Method, Phase

NAMED = 3
"""Samples of each part of a batch that an error names."""


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is NaN or infinite; the message names it."""


def check_losses(losses: Losses) -> None:
    """Refuse losses that are not finite."""
    if not torch.isfinite(torch.stack(list(losses.values())).sum()):
        told = ", ".join(f"{name} {float(loss.detach()):g}" for name, loss in losses.items())
        raise NonFiniteError(f"the loss is no longer finite ({told})")


def check_gradients(method: Method, phase: Phase) -> None:
    """Refuse gradients of which one is not finite, before the optimizer sees them; costs one look at each value."""
    gradients = {
        f"{part}.{name}": parameter.grad
        for part in phase.updates
        for name, parameter in method.get_submodule(part).named_parameters()
        if parameter.grad is not None
    }
    # A sum is not finite if any of its values is not, and far cheaper than to ask each one; but it may overflow.
    if not gradients or torch.isfinite(torch.stack([gradient.sum() for gradient in gradients.values()])).all():
        return
    for name, gradient in gradients.items():
        if not torch.isfinite(gradient).all():
            raise NonFiniteError(f"the gradient of {name} is no longer finite")


def describe_samples(task: Task, draw: Draw) -> str:
    """The first samples of each part of a batch by name."""
    told = []
    for name, part in draw.items():
        names = [str(task.domain(part.side).names[row])[:80] for row in part.indices[:NAMED].tolist()]
        more = f" and {len(part.indices) - NAMED} more" if len(part.indices) > NAMED else ""
        told.append(f"{name} {', '.join(map(repr, names))}{more}")
    return "; ".join(told)


@contextmanager
def undo_buffers(module: nn.Module) -> Iterator[None]:
    """Put buffers back if the numbers go wrong: a forward pass has moved batch norm's averages before anyone looks."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    except NonFiniteError:
        for buffer, value in before:
            buffer.copy_(value)
        raise
