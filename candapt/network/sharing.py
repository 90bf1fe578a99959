"""Layers that draw random numbers for a batch of which a process has only a share.

Numbers are drawn for the whole batch, and each process takes those of its own samples: then they do not depend on the
number of processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from candapt import processes
from candapt.processes import Share

_current: list[Share | None] = [None]


@contextmanager
def sharing(share: Share | None) -> Iterator[None]:
    """Within this context batches are a process's share of larger ones; None: they are whole."""
    before, _current[0] = _current[0], share
    try:
        yield
    finally:
        _current[0] = before


def whole_shape(x: Tensor, axis: int = 0) -> torch.Size:
    """The shape of the batch that `x` is a share of, with samples along the axis."""
    share = _current[0]
    return x.shape if share is None else torch.Size((*x.shape[:axis], share.total, *x.shape[axis + 1 :]))


def own_rows(drawn: Tensor, axis: int = 0) -> Tensor:
    """The part of numbers for the whole batch that belongs to the samples of this process."""
    share = _current[0]
    return drawn if share is None else drawn.narrow(axis, share.start, share.sizes[share.rank])


class SharedDropout(nn.Dropout):
    """Dropout whose mask is drawn for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero some of the values in training."""
        if not self.training or _current[0] is None:
            return super().forward(x)
        mask = super().forward(torch.ones(whole_shape(x), dtype=x.dtype, device=x.device))
        return x * own_rows(mask)


def share_dropout(module: nn.Module) -> None:
    """Let every dropout below `module` draw for whole batches."""
    for layer in module.modules():
        if type(layer) is nn.Dropout:
            layer.__class__ = SharedDropout


def noise_like(x: Tensor) -> Tensor:
    """Normal noise of the shape of a batch, or of this process's share of one."""
    share = _current[0]
    if share is None:
        return torch.randn_like(x)
    return own_rows(torch.randn(whole_shape(x), dtype=x.dtype, device=x.device))


def deviation(x: Tensor, **options: Any) -> Tensor:
    """Standard deviation of all values of a batch, or with `dim=0` of each feature, over all processes."""
    share = _current[0]
    if share is None:
        return x.std(**options)
    axes = [0] if options else list(range(x.dim()))
    size = share.total * (1 if options else x.shape[1:].numel())
    mean = processes.summed(x.sum(axes)) / size
    return (processes.summed((x - mean).square().sum(axes)) / (size - 1)).sqrt()
