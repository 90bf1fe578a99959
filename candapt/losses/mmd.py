"""Maximum mean discrepancy of DAN (Long et al., ICML 2015) and joint MMD of JAN (Long et al., ICML 2017)."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor

from candapt.losses.kernels import (
    Layers,
    Mixture,
    centered_distances,
    five_kernels,
    gaussian_mixture,
    paired_layers,
    squared_distances,
)

ROUNDING = 1e-6  # of a distance relative to a bandwidth, which no discrepancy shows

Estimator = Literal["biased", "unbiased", "linear"]
Mixtures = Mixture | Sequence[Mixture] | None  # the kernels of every layer, or one entry per layer

JAN_MIXTURES = (Mixture(), Mixture(kernels=1, bandwidth=1.68))
"""The kernels of JAN: five with a bandwidth from the data for the features, one fixed for the softmax output."""


def maximum_mean_discrepancy(
    source: Layers, target: Layers, *, estimator: Estimator = "biased", mixtures: Mixtures = None
) -> Tensor:
    """Squared MMD between the domains, added over the layers, a scalar.

    Args:
        source: features (n, d), or a sequence of them with one entry per layer.
        target: features (m, d) of the same layers.
        estimator: "biased" averages the kernel over all pairs, each sample with itself included, as CAN does;
            "unbiased" leaves out the pairs of a sample with itself; "linear" uses only neighbors in the batch, the
            last one next to the first, in time linear in the samples, and needs as many source as target samples.
        mixtures: the kernels of every layer, or one entry per layer. Default: five with a bandwidth from the data.
    """
    layers = _layer_kernels(source, target, estimator, mixtures)
    return torch.stack([_ESTIMATORS[estimator](*kernels) for kernels in layers]).sum()


def joint_maximum_mean_discrepancy(
    source: Layers, target: Layers, *, estimator: Estimator = "biased", mixtures: Mixtures = None
) -> Tensor:
    """Squared MMD between the joint distributions of all layers, whose kernel is the product of the layers' kernels.

    JAN itself is `mixtures=JAN_MIXTURES` on bottleneck features and softmax outputs. The arguments are those of
    `maximum_mean_discrepancy`.
    """
    layers = _layer_kernels(source, target, estimator, mixtures)
    return _ESTIMATORS[estimator](*(prod(kernels[1:], start=kernels[0]) for kernels in zip(*layers, strict=True)))


def _layer_kernels(source: Layers, target: Layers, estimator: Estimator, mixtures: Mixtures) -> list[list[Tensor]]:
    """For every layer the kernel on each kind of pairs that the estimator averages."""
    if estimator not in _ESTIMATORS:
        raise ValueError(f"There is no estimator {estimator!r}; choose one of {', '.join(_ESTIMATORS)}.")
    layers = paired_layers(source, target)
    _check_counts(len(layers[0][0]), len(layers[0][1]), estimator)
    pairs = _neighbor_kernels if estimator == "linear" else _all_kernels
    chosen = _one_per_layer(mixtures, len(layers))
    return [pairs(source, target, mixture) for (source, target), mixture in zip(layers, chosen, strict=True)]


def _one_per_layer(mixtures: Mixtures, layers: int) -> Sequence[Mixture]:
    if mixtures is None or isinstance(mixtures, Mixture):
        return [mixtures or Mixture()] * layers
    if len(mixtures) != layers:
        raise ValueError(f"There are {layers} layers, but mixtures has {len(mixtures)} entries; give one per layer.")
    return mixtures


def _check_counts(source: int, target: int, estimator: Estimator) -> None:
    if estimator != "biased" and min(source, target) < 2:
        raise ValueError(
            f"The {estimator} estimator needs two samples of each domain, got {source} and {target}; "
            'use estimator="biased" for single samples.'
        )
    if estimator == "linear" and source != target:
        raise ValueError(f"The linear estimator needs equally many samples, got {source} and {target}.")


def _bandwidth(source: Tensor, target: Tensor, mixture: Mixture) -> Tensor | float:
    """The fixed bandwidth, or the mean squared distance between distinct samples of both domains together."""
    if mixture.bandwidth is not None:
        return mixture.bandwidth
    union = torch.cat([source, target]).detach()
    # The squared distances of all ordered pairs add up to 2 n times those to the mean: no need to form the pairs.
    return 2 * (union - union.mean(0)).square().sum() / (len(union) - 1)


def _all_kernels(source: Tensor, target: Tensor, mixture: Mixture) -> list[Tensor]:
    """The kernel within the source (n, n), within the target (m, m) and across (n, m)."""
    union, n = torch.cat([source, target]), len(source)
    distances = centered_distances(union) if _is_wide(union.detach(), mixture) else squared_distances(union)
    if mixture.bandwidth is None:
        width = distances.detach().sum() / (len(union) * (len(union) - 1))
    else:
        width = torch.as_tensor(mixture.bandwidth)
    if (mixture.kernels, mixture.ratio) == (5, 2.0):
        kernel = five_kernels(distances, width.to(distances))
    else:
        kernel = gaussian_mixture(distances, width, kernels=mixture.kernels, ratio=mixture.ratio)
    return [kernel[:n, :n], kernel[n:, n:], kernel[:n, n:]]


def _is_wide(union: Tensor, mixture: Mixture) -> bool:
    """Whether all bandwidths are so wide that centered distances of these samples (n, d) are right relative to them.

    Of fixed bandwidths it is only looked at on a CPU: a GPU would have to wait for the answer.
    """
    if mixture.bandwidth is None:
        return True
    if union.device.type != "cpu":
        return False
    powers = -(mixture.kernels // 2), mixture.kernels - 1 - mixture.kernels // 2
    narrowest = mixture.bandwidth * min(mixture.ratio**power for power in powers)
    longest = float((union - union.mean(0)).square().sum(1).max())
    return torch.finfo(union.dtype).eps * longest <= ROUNDING * narrowest


def _neighbor_kernels(source: Tensor, target: Tensor, mixture: Mixture) -> list[Tensor]:
    """Of each sample and the next, (n,): within source, within target, source to target, target to source."""
    next_source, next_target = source.roll(-1, 0), target.roll(-1, 0)
    pairs = (source, next_source), (target, next_target), (source, next_target), (target, next_source)
    width = _bandwidth(source, target, mixture)
    distances = [(a - b).square().sum(1) for a, b in pairs]
    return [gaussian_mixture(each, width, kernels=mixture.kernels, ratio=mixture.ratio) for each in distances]


def _biased(within_source: Tensor, within_target: Tensor, across: Tensor) -> Tensor:
    return within_source.mean() + within_target.mean() - 2 * across.mean()


def _unbiased(within_source: Tensor, within_target: Tensor, across: Tensor) -> Tensor:
    return _mean_of_others(within_source) + _mean_of_others(within_target) - 2 * across.mean()


def _mean_of_others(kernel: Tensor) -> Tensor:
    """Mean over pairs of distinct samples."""
    return (kernel.sum() - kernel.diagonal().sum()) / (len(kernel) * (len(kernel) - 1))


def _linear(within_source: Tensor, within_target: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    return (within_source + within_target - forward - backward).mean()


_ESTIMATORS: dict[str, Callable[..., Tensor]] = {"biased": _biased, "unbiased": _unbiased, "linear": _linear}
