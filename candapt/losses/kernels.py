"""What the kernel two-sample losses are built from: pairs of layers, squared distances and Gaussian mixtures."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SMALLEST_BANDWIDTH = 1e-5  # samples that coincide would otherwise divide by zero
SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-5, 1e5  # beyond these the kernel is constant and has no gradient

LARGEST_KERNEL = exp(-SMALLEST_EXPONENT)

FULL_DEVICES = ("cpu", "cuda")  # have double precision and pdist, the vectorized form of the distances within a batch


@dataclass(frozen=True)
class Mixture:
    """A sum of Gaussian kernels whose bandwidths form a geometric series, as one layer uses it."""

    kernels: int = 5  # how many kernels are summed; the middle one has the bandwidth itself
    ratio: float = 2.0  # ratio of neighboring bandwidths
    bandwidth: float | None = None  # by default the mean squared distance between distinct samples of the batch

    def __post_init__(self) -> None:
        if self.kernels < 1:
            raise ValueError(f"A mixture needs at least one kernel, got kernels={self.kernels}.")
        if self.ratio <= 0:
            raise ValueError(f"The ratio of neighboring bandwidths must be positive, got ratio={self.ratio}.")
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise ValueError(f"A fixed bandwidth must be positive, got bandwidth={self.bandwidth}.")


def squared_distances(a: Tensor, b: Tensor | None = None) -> Tensor:
    """Squared Euclidean distance of every row of `a` to every row of `b`.

    The differences are taken coordinate by coordinate, so that the distances inside a tight cluster stay right
    however far it lies from the origin. The gradient is right at distance zero too, where it vanishes.

    Args:
        a: shape (..., n, d), float32 or float64.
        b: shape (..., m, d), its leading dimensions broadcast with those of `a`. Default: `a` itself, which then has
            no leading dimensions; this is several times faster than giving it twice.

    Returns:
        Shape (..., n, m).
    """
    distances: Tensor = _DistancesWithin.apply(a) if b is None else _DistancesAcross.apply(a, b)  # type: ignore[no-untyped-call]
    return distances


# The shortcut |a|^2 + |b|^2 - 2ab loses every digit once |a|^2 is 10^7 times the distance (float32), so the values come
# from direct differences, but for `centered_distances`. The gradients are sums of differences: a matrix product in
# double precision gives them without loss, while torch's own backward of the distances is slow and divides by them.


class _DistancesWithin(torch.autograd.Function):
    """Every row to every row of the same matrix."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        if a.device.type not in FULL_DEVICES:
            return _direct(a, a)
        first, second = torch.triu_indices(len(a), len(a), 1, device=a.device)
        distances = a.new_zeros(len(a), len(a))
        distances[first, second] = torch.pdist(a).square_()
        return distances + distances.mT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        a: Tensor = ctx.saved_tensors[0]
        return laplacian_products((gradients[0] + gradients[0].mT)[None], [a])[0]


def centered_distances(a: Tensor) -> Tensor:
    """The squared distances within `a`, (n, d) to (n, n), by products of its rows, in a fraction of the time.

    They are right to the rounding of the mean of all of them: enough for kernels whose bandwidth is that mean, which
    are constant long before a distance is as small as that. For other bandwidths take `squared_distances`.
    """
    distances: Tensor = _CenteredDistances.apply(a)  # type: ignore[no-untyped-call]
    return distances


class _CenteredDistances(torch.autograd.Function):
    """Every row to every row of the same matrix, by products of what is left without the mean."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        centered = a - a.mean(0)  # exact however far from the origin: the mean itself may be rounded
        ctx.save_for_backward(centered)
        with torch.autocast(a.device.type, enabled=False):  # in half precision the digits would be lost
            products = centered @ centered.mT
        lengths = products.diagonal()
        return (lengths[:, None] + lengths - 2 * products).clamp_min_(0).fill_diagonal_(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        centered: Tensor = ctx.saved_tensors[0]
        doubled = 2 * (gradients[0] + gradients[0].mT)
        return (doubled.sum(-1).diag_embed() - doubled) @ centered


class _DistancesAcross(torch.autograd.Function):
    """Every row of one matrix to every row of another."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _direct(a, b)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        to_a = _pull(gradients[0], a, b) if ctx.needs_input_grad[0] else None
        to_b = _pull(gradients[0].mT, b, a) if ctx.needs_input_grad[1] else None
        return to_a, to_b


def pairwise_distances(layers: Sequence[Tensor]) -> Tensor:
    """Squared distances of the pairs i < j of the same N rows in every layer, and a zero, without gradient.

    Shape (layers, N (N - 1) / 2 + 1), the pairs of the first row first.
    """
    rows = len(layers[0])
    pairs = rows * (rows - 1) // 2
    distances = layers[0].new_zeros(len(layers), pairs + 1)
    for place, layer in enumerate(layers):
        if layer.device.type in FULL_DEVICES:
            distances[place, :pairs] = torch.pdist(layer)
        else:
            first, second = torch.triu_indices(rows, rows, 1, device=layer.device)
            distances[place, :pairs] = _direct(layer, layer)[first, second].sqrt()
    return distances.square_()


def laplacian_products(weights: Tensor, layers: Sequence[Tensor]) -> list[Tensor]:
    """For every layer (N, d) the sums over j of 2 w_ij (a_i - a_j), given its symmetric weights (layers, N, N)."""
    doubled = 2 * weights.to(_gradient_dtype(layers[0]))
    laplacians = doubled.sum(-1).diag_embed() - doubled
    products = zip(laplacians, layers, strict=True)
    return [(laplacian @ layer.to(laplacian.dtype)).to(layer.dtype) for laplacian, layer in products]


def _direct(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _pull(weights: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Gradient to `a`: the sum over j of 2 w_ij (a_i - b_j)."""
    doubled = 2 * weights.to(_gradient_dtype(a))
    gradient = a.to(doubled.dtype) * doubled.sum(-1, keepdim=True) - doubled @ b.to(doubled.dtype)
    return gradient.sum_to_size(a.shape).to(a.dtype)


def _gradient_dtype(a: Tensor) -> torch.dtype:
    return torch.float64 if a.device.type in FULL_DEVICES else a.dtype


def gaussian_mixture(distances: Tensor, bandwidth: Tensor | float, *, kernels: int = 5, ratio: float = 2.0) -> Tensor:
    """Sum of Gaussian kernels exp(-d / g) whose bandwidths g form a geometric series around `bandwidth`.

    There is no factor 2 in the exponent. With five kernels and ratio 2 the bandwidths are 1/4, 1/2, 1, 2 and 4 times
    the given one.

    Args:
        distances: squared distances, any shape.
        bandwidth: one value, or a tensor that broadcasts with `distances`; it takes no gradient.
        kernels: number of kernels.
        ratio: ratio of neighboring bandwidths.

    Returns:
        The shape of `distances` broadcast with `bandwidth`; values in (0, kernels).
    """
    center = torch.as_tensor(bandwidth, dtype=distances.dtype, device=distances.device).detach()
    powers = torch.arange(kernels, dtype=distances.dtype, device=distances.device) - kernels // 2
    factors = (ratio**powers).view(-1, *[1] * max(distances.dim(), center.dim()))  # (kernels, 1, ..., 1)
    bandwidths = (center * factors).clamp_min(SMALLEST_BANDWIDTH)
    exponents = (distances / bandwidths).clamp(SMALLEST_EXPONENT, LARGEST_EXPONENT)
    return exponents.neg().exp().sum(0)


def mixture_and_slope(distances: Tensor, bandwidth: Tensor) -> tuple[Tensor, Tensor]:
    """The mixture of five Gaussians with ratio 2, as `gaussian_mixture` has it, and its derivative by the distance.

    Where no limit on a bandwidth applies, one exponential gives all five: each kernel is the square of the next wider
    one. On GPUs, where exponentials cost little, all five are computed, which needs no look at the bandwidths.
    """
    factors = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.25], dtype=distances.dtype, device=distances.device)
    bandwidths = bandwidth * factors.view(-1, *[1] * bandwidth.dim())
    if distances.device.type == "cpu" and bool(bandwidths[-1].min() >= SMALLEST_BANDWIDTH):
        rates = bandwidths.reciprocal_().neg_()
        widest = (distances * rates[0]).exp_()
        kernels = widest.new_empty(5, *widest.shape)
        kernels[0] = widest
        for wider, kernel in pairwise(kernels):
            torch.mul(wider, wider, out=kernel)
    else:
        rates = bandwidths.clamp_min_(SMALLEST_BANDWIDTH).reciprocal_().neg_()
        kernels = (distances * rates).exp_()
    constant = kernels > LARGEST_KERNEL
    # Added one after another: a sum over the kernels would round by the place in memory, equal distances differently.
    narrow, *others = kernels.clamp_max(LARGEST_KERNEL)
    values = functools.reduce(Tensor.add_, others, narrow)
    return values, kernels.masked_fill_(constant, 0).mul_(rates).sum(0)


def five_kernels(distances: Tensor, bandwidth: Tensor) -> Tensor:
    """What `gaussian_mixture` gives with five kernels and ratio 2, of (n, m), in a fraction of the time."""
    values: Tensor = _FiveKernels.apply(distances, bandwidth.detach().view(1, 1))  # type: ignore[no-untyped-call]
    return values


class _FiveKernels(torch.autograd.Function):
    """The mixture with its derivative in closed form."""

    @staticmethod
    def forward(ctx: Any, distances: Tensor, bandwidth: Tensor) -> Tensor:
        values, slopes = mixture_and_slope(distances, bandwidth)
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.saved_tensors[0], None


Layers = Tensor | Sequence[Tensor]  # features (n, d) of one layer, or a sequence of them with one entry per layer


def paired_layers(source: Layers, target: Layers) -> list[tuple[Tensor, Tensor]]:
    """One pair of features (n, d) and (m, d) per layer, of the same floating type.

    Half precision is raised to float32: a mean of squared distances over 2048 coordinates overflows or rounds away
    in it. Raises a `ValueError` if the layers of the domains do not match or a domain has no samples.
    """
    sources = [source] if isinstance(source, Tensor) else list(source)
    targets = [target] if isinstance(target, Tensor) else list(target)
    if not sources or len(sources) != len(targets):
        raise ValueError(f"Both domains need the same layers, at least one, got {len(sources)} and {len(targets)}.")
    _check_rows("source", sources)
    _check_rows("target", targets)
    return [_in_one_precision(s, t, layer) for layer, (s, t) in enumerate(zip(sources, targets, strict=True))]


def _check_rows(domain: str, layers: Sequence[Tensor]) -> None:
    for number, layer in enumerate(layers):
        if layer.dim() != 2:
            raise ValueError(f"Layer {number} of the {domain} must have shape (n, d), got {tuple(layer.shape)}.")
        if len(layer) != (rows := len(layers[0])):
            raise ValueError(f"Layer {number} of the {domain} has {len(layer)} samples where layer 0 has {rows}.")
    if rows == 0:
        raise ValueError(f"The {domain} batch is empty; a discrepancy needs at least one sample of each domain.")


def _in_one_precision(source: Tensor, target: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    if source.size(1) != target.size(1):
        raise ValueError(f"Layer {layer} has {source.size(1)} features in the source, {target.size(1)} in the target.")
    if not (source.is_floating_point() and target.is_floating_point()):
        raise ValueError(f"Layer {layer} must hold floating-point features, got {source.dtype} and {target.dtype}.")
    dtype = torch.promote_types(torch.promote_types(source.dtype, target.dtype), torch.float32)
    return source.to(dtype), target.to(dtype)


def check_logits(first: Tensor, second: Tensor) -> None:
    """Raise a `ValueError` unless both are logits (samples, classes) of the same samples, at least one."""
    if first.dim() != 2 or first.shape != second.shape:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"Both predictions need logits of the same shape (samples, classes), got {shapes}.")
    if first.numel() == 0:
        raise ValueError("The batch is empty; at least one sample is needed.")
