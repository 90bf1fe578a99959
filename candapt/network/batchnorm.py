"""Domain-specific batch norm: all weights are shared between the domains but those of the batch norms."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from candapt.data.domains import Side


class DomainBatchNorm(nn.Module):
    """Two copies of one batch norm, for the source and the target; `side` says which one normalizes."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _ in Side)
        self.side = Side.SOURCE

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` with the statistics and the affine map of the current side."""
        normalized: Tensor = self.norms[self.side](x)
        return normalized


def convert_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every batch norm below `module` by a `DomainBatchNorm`; both sides start from the pretrained one.

    A model without batch norm stays as it is. Returns the module, which is new only if it is a batch norm itself.
    """
    if isinstance(module, _BatchNorm):
        return DomainBatchNorm(module)
    for name, child in module.named_children():
        if not isinstance(child, DomainBatchNorm):
            setattr(module, name, convert_batchnorm(child))
    return module


def keep_side(module: nn.Module, side: Side) -> nn.Module:
    """Undo the conversion for one domain: a copy of `module` with the plain batch norms of that side."""
    if isinstance(module, DomainBatchNorm):
        return copy.deepcopy(module.norms[side])
    kept = copy.deepcopy(module)
    for name, child in kept.named_children():
        setattr(kept, name, keep_side(child, side))
    return kept


def select_side(module: nn.Module, side: Side) -> None:
    """Make every `DomainBatchNorm` below `module` normalize for that side."""
    for layer in module.modules():
        if isinstance(layer, DomainBatchNorm):
            layer.side = side


@contextmanager
def _cumulative(norms: list[_BatchNorm]) -> Iterator[None]:
    """Within this context the norms forget their statistics and average the batches that they see."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


@torch.no_grad()
def estimate_statistics(module: nn.Module, side: Side, batches: Iterable[Tensor]) -> None:
    """Set the running statistics of one side to those of the given batches; everything else is in evaluation mode.

    A network that was not pretrained starts with mean 0 and variance 1, which describe neither domain. Statistics
    taken from batches that ignore classes also do not depend on which classes the pseudo labels happen to keep.
    """
    module.eval()
    select_side(module, side)
    norms = [layer.norms[side] for layer in module.modules() if isinstance(layer, DomainBatchNorm)]
    with _cumulative([norm for norm in norms if isinstance(norm, _BatchNorm)]):
        for batch in batches:
            module(batch)
