"""Domain-specific batch norm: all weights are shared between the domains but those of the batch norms."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from candapt import processes
from candapt.data.domains import Side


class DomainBatchNorm(nn.Module):
    """Copies of one batch norm, for the source, the target and any further sources; `side` is the index of the current.

    `candapt.data.domains.norm_of` tells the index of a domain.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.norms = nn.ModuleList(copy.deepcopy(norm) for _ in Side)
        self.side: int = Side.SOURCE
        self.keeps_statistics = False  # whether it normalizes with the statistics that it has, in training too
        self.is_shared = False  # whether training normalizes with the statistics of the batches of all processes

    def train(self, mode: bool = True) -> "DomainBatchNorm":
        """Learn from batches, unless its statistics are to stay."""
        return super().train(mode and not self.keeps_statistics)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` with the statistics and the affine map of the current side."""
        norm = self.norms[self.side]
        if self.is_shared and self.training and norm.training:
            assert isinstance(norm, _BatchNorm)
            return normalized_together(norm, x)
        normalized: Tensor = norm(x)
        return normalized


def normalized_together(norm: _BatchNorm, x: Tensor) -> Tensor:
    """What a batch norm in training gives if the batch is that of all processes, of which `x` is the share of one.

    PyTorch's `SyncBatchNorm` refuses tensors in main memory. Each process sends the mean and the squared deviations of
    its own share, from which those of all follow without loss of digits, in one exchange.
    """
    values = x if x.dtype == torch.float64 else x.float()
    axes, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    size = x.numel() // x.shape[1]
    mean = values.sum(axes) / max(1, size)
    squares = (values - mean.view(shape)).square().sum(axes)
    own = torch.cat([mean.new_full((1,), size), mean, squares])
    sizes, means, deviations = torch.split(_of_all(own), [1, len(mean), len(mean)], dim=1)  # one row for each process
    total = sizes.sum()
    mean = (sizes * means).sum(0) / total
    variance = (deviations + sizes * (means - mean).square()).sum(0) / total
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            step = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)  # type: ignore[arg-type]
            norm.running_mean.lerp_(mean.to(norm.running_mean), step)
            norm.running_var.lerp_((variance * total / (total - 1)).to(norm.running_var), step)
    normalized = (values - mean.view(shape)) * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        normalized = normalized * norm.weight.view(shape) + norm.bias.view(shape)
    result: Tensor = normalized.to(x.dtype)
    return result


def _of_all(own: Tensor) -> Tensor:
    """A row of numbers from each process, shape (processes, n), with a gradient through all of them."""
    place = torch.zeros(processes.count(), 1, dtype=own.dtype, device=own.device)
    place[processes.rank()] = 1
    return processes.summed_with_gradient(place * own)


def share_batches(module: nn.Module, together: bool) -> None:
    """Let every `DomainBatchNorm` below `module` normalize in training with the batches of all processes, or not."""
    for layer in _domain_norms(module):
        layer.is_shared = together


@torch.no_grad()
def average_statistics(module: nn.Module) -> None:
    """Give the running statistics of all batch norms below `module` their mean over the processes."""
    for layer in (layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats):
        for buffer in (layer.get_buffer("running_mean"), layer.get_buffer("running_var")):
            buffer.copy_(processes.summed(buffer) / processes.count())


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


def add_sources(module: nn.Module, count: int) -> None:
    """Give every `DomainBatchNorm` below `module` a norm for each of `count` sources; all start like the first."""
    for layer in _domain_norms(module):
        layer.norms.extend(copy.deepcopy(layer.norms[Side.SOURCE]) for _ in range(count - 1))


def keep_side(module: nn.Module, side: int) -> nn.Module:
    """Undo the conversion for one domain: a copy of `module` with the plain batch norms of that side."""
    if isinstance(module, DomainBatchNorm):
        return copy.deepcopy(module.norms[side])
    kept = copy.deepcopy(module)
    for name, child in kept.named_children():
        setattr(kept, name, keep_side(child, side))
    return kept


def _domain_norms(module: nn.Module) -> Iterator[DomainBatchNorm]:
    return (layer for layer in module.modules() if isinstance(layer, DomainBatchNorm))


def select_side(module: nn.Module, side: int) -> None:
    """Make every `DomainBatchNorm` below `module` normalize for that side."""
    for layer in _domain_norms(module):
        layer.side = side


def current_norm(layer: nn.Module) -> nn.Module:
    """The batch norm that a layer normalizes with now: of a `DomainBatchNorm` that of its side, else the layer."""
    return layer.norms[layer.side] if isinstance(layer, DomainBatchNorm) else layer


def keep_statistics(module: nn.Module) -> None:
    """Let every `DomainBatchNorm` below `module` normalize with the statistics that it has from now on."""
    for layer in _domain_norms(module):
        layer.keeps_statistics = True
        layer.eval()


@torch.no_grad()
def share_affine(module: nn.Module) -> None:
    """Give all batch norms the scale and shift of the source's, or the mean of several; statistics stay their own."""
    for layer in _domain_norms(module):
        source, target, *further = layer.norms
        for own, *values in zip(*(norm.parameters() for norm in (target, source, *further)), strict=True):
            mean = torch.stack(values).mean(0) if further else values[0]
            for each in (own, *(values if further else ())):
                each.copy_(mean)


@torch.no_grad()
def estimate_statistics(module: nn.Module, side: int, batches: Iterable[Tensor], *, together: bool = False) -> None:
    """Set the running statistics of one side to those of all batches together; the module is left in evaluation mode.

    With `together` they are those of the batches of all processes.

    A network that was not pretrained starts with mean 0 and variance 1, which describe neither domain. Statistics
    taken from batches that ignore classes also do not depend on which classes the pseudo labels happen to keep.
    The first batch norm gets exactly the mean and variance of the whole; those behind it see inputs that the ones
    before have normalized batch by batch, so a batch should be a fair sample of the domain.
    """
    module.eval()
    select_side(module, side)
    norms = [layer.norms[side] for layer in _domain_norms(module) if not layer.keeps_statistics]
    pooled = [norm for norm in norms if isinstance(norm, _BatchNorm) and norm.track_running_stats]
    with _pooling(pooled, together):
        for batch in batches:
            module(batch)


@contextmanager
def _pooling(norms: list[_BatchNorm], together: bool) -> Iterator[None]:
    """Within this context the norms normalize each batch by itself; after it they hold the statistics of all."""
    sums: dict[_BatchNorm, Moments] = {norm: Moments() for norm in norms}

    def add(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(norm, _BatchNorm)
        sums[norm].add(inputs[0])

    hooks = [norm.train().register_forward_pre_hook(add) for norm in norms]
    try:
        yield
    finally:
        for norm, hook in zip(norms, hooks, strict=True):
            norm.eval()
            hook.remove()
    for norm, moments in sums.items():
        (moments.of_all(norm.num_features) if together else moments).set(norm)


class Moments:
    """Mean and variance of each channel over many batches, from sums in double precision."""

    def __init__(self) -> None:
        self.samples, self.sums = 0, torch.zeros(0)  # sums: weights, values and squares, shape (3, channels)

    def add(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch (n, channels, …); weights (n,), for batches (n, channels), say how much each sample counts."""
        values = x.float().movedim(1, -1).flatten(0, -2)  # (n, channels)
        counts = values.new_ones(len(values)) if weights is None else weights.to(values)
        # Products with the counts are many times as fast as torch's own mean and variance along the samples.
        total = float(counts.double().sum())
        mean = counts @ values / total
        variance = counts @ (values - mean).square_() / total
        mean, variance = mean.cpu().double(), variance.cpu().double()
        sums = total * torch.stack([torch.ones_like(mean), mean, variance + mean.square()])
        self.sums = self.sums + sums if self.samples else sums
        self.samples += len(values)

    def of_all(self, channels: int) -> "Moments":
        """Those over the batches of all processes."""
        own = self.sums if self.samples else torch.zeros(3, channels, dtype=torch.float64)
        whole = Moments()
        whole.sums = processes.summed(own)
        whole.samples = int(processes.summed(torch.tensor(self.samples)))
        return whole

    def set(self, norm: nn.Module, norms_before: int = 0) -> None:
        """Make them the statistics of a batch norm, unless nothing was added.

        They are those that it tracks if the domain is one batch: of variances that divide by n - 1, while the norms
        before it divide by n. Where those already had the statistics that they track, a factor makes up for it.
        """
        if not self.samples:
            return
        total, values, squares = self.sums
        mean = values / total
        unbiased = (self.samples / (self.samples - 1)) ** (1 + norms_before)
        variance = (squares / total - mean.square()).clamp_min(0) * unbiased
        norm.get_buffer("running_mean").copy_(mean)
        norm.get_buffer("running_var").copy_(variance)
        norm.get_buffer("num_batches_tracked").zero_()  # a saved network must not depend on the number of evaluations
