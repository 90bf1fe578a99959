"""Finiteness: losses and gradients that are NaN or infinite are caught before they reach a weight."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from candapt.data.domains import Task
from candapt.errors import DivergedError, UserError
from candapt.methods.base import Draw, Losses, Method, Phase

MAX_NAMED = 3  # samples of each part of a batch that an error names


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is NaN or infinite; the message names it."""


def check_losses(losses: Losses) -> None:
    """Raise a `NonFiniteError` if a loss is not finite."""
    if not torch.isfinite(torch.stack(list(losses.values())).sum()):
        values = ", ".join(f"{name} {float(loss.detach()):g}" for name, loss in losses.items())
        raise NonFiniteError(f"the loss is no longer finite ({values})")


def check_gradients(method: Method, phase: Phase) -> None:
    """Raise a `NonFiniteError` if a gradient is not finite, before the optimizer sees it."""
    gradients = {
        f"{part}.{name}": parameter.grad
        for part in phase.updates
        for name, parameter in method.get_submodule(part).named_parameters()
        if parameter.grad is not None
    }
    # A sum is not finite if one of its values is not, and far cheaper than a test of each; but it may overflow.
    if not gradients or torch.isfinite(torch.stack([gradient.sum() for gradient in gradients.values()])).all():
        return
    for name, gradient in gradients.items():
        if not torch.isfinite(gradient).all():
            raise NonFiniteError(f"the gradient of {name} is no longer finite")


def describe_samples(task: Task, draw: Draw) -> str:
    """The first samples of each part of a batch by name."""
    parts = []
    for name, part in draw.items():
        names = [str(task.domain(part.side).names[row])[:80] for row in part.indices[:MAX_NAMED].tolist()]
        more = f" and {len(part.indices) - MAX_NAMED} more" if len(part.indices) > MAX_NAMED else ""
        parts.append(f"{name} {', '.join(map(repr, names))}{more}")
    return "; ".join(parts)


@contextmanager
def clustering_in(round: int) -> Iterator[None]:
    """Turn the `ValueError` for features that are not finite, and so cannot be clustered, into a `DivergedError`."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise DivergedError(f"In round {round + 1} the target cannot be clustered: {error}") from None


@contextmanager
def restore_buffers(module: nn.Module) -> Iterator[None]:
    """Restore buffers after a `NonFiniteError`: the forward pass has already moved batch norm's running averages."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    except NonFiniteError:
        for buffer, value in before:
            buffer.copy_(value)
        raise
