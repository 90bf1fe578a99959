"""MMD, joint MMD and CDD with a loop for every sum in their formulas."""

import torch
from torch import Tensor

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def squared_distance(x: Tensor, y: Tensor) -> Tensor:
    return ((x - y) ** 2).sum()


def mean_distance(samples: list[Tensor]) -> Tensor:
    """Mean squared distance over ordered pairs of distinct samples, without gradient."""
    n = len(samples)
    total = sum(squared_distance(samples[i], samples[j]) for i in range(n) for j in range(n) if i != j)
    return torch.as_tensor(total).detach() / (n * (n - 1))


def kernel(x: Tensor, y: Tensor, bandwidth: Tensor | float, factors: tuple[float, ...] = FACTORS) -> Tensor:
    value = x.new_zeros(())
    for factor in factors:
        gamma = max(float(bandwidth) * factor, 1e-5)
        exponent = squared_distance(x, y) / gamma
        if exponent < 1e-5:
            exponent = x.new_tensor(1e-5)
        elif exponent > 1e5:
            exponent = x.new_tensor(1e5)
        value = value + torch.exp(-exponent)
    return value


def mean_kernel(xs: list[Tensor], ys: list[Tensor], bandwidth: Tensor) -> Tensor:
    return torch.stack([kernel(x, y, bandwidth) for x in xs for y in ys]).mean()


def mmd(source: list[Tensor], target: list[Tensor]) -> Tensor:
    """The biased estimate for one layer, with the bandwidth of exactly these samples."""
    gamma = mean_distance([*source, *target])
    across = mean_kernel(source, target, gamma)
    return mean_kernel(source, source, gamma) + mean_kernel(target, target, gamma) - 2 * across


def estimated_mmd(source: Tensor, target: Tensor, estimator: str) -> Tensor:
    """Any of the three estimates for one layer."""
    return joint_mmd([source], [target], estimator)


def joint_mmd(
    sources: list[Tensor],
    targets: list[Tensor],
    estimator: str,
    fixed: dict[int, tuple[float, tuple[float, ...]]] | None = None,
) -> Tensor:
    """Joint MMD; `fixed` gives a layer's bandwidth and factors where they do not come from the data."""
    settings = [
        (fixed or {}).get(layer, (mean_distance([*s, *t]), FACTORS))
        for layer, (s, t) in enumerate(zip(sources, targets, strict=True))
    ]
    samples = {"s": sources, "t": targets}

    def k(one: str, i: int, other: str, j: int) -> Tensor:
        value = sources[0].new_ones(())
        for layer, (bandwidth, factors) in enumerate(settings):
            value = value * kernel(samples[one][layer][i], samples[other][layer][j], bandwidth, factors)
        return value

    n, m = len(sources[0]), len(targets[0])
    if estimator == "linear":
        terms = [
            k("s", i, "s", (i + 1) % n)
            + k("t", i, "t", (i + 1) % n)
            - k("s", i, "t", (i + 1) % n)
            - k("s", (i + 1) % n, "t", i)
            for i in range(n)
        ]
        return torch.stack(terms).mean()
    with_itself = estimator == "biased"
    ss = torch.stack([k("s", i, "s", j) for i in range(n) for j in range(n) if i != j or with_itself]).mean()
    tt = torch.stack([k("t", i, "t", j) for i in range(m) for j in range(m) if i != j or with_itself]).mean()
    st = torch.stack([k("s", i, "t", j) for i in range(n) for j in range(m)]).mean()
    return ss + tt - 2 * st


def class_mmd(
    sources: list[Tensor], targets: list[Tensor], source_labels: list[int], target_labels: list[int], a: int, b: int
) -> Tensor:
    """MMD of source class a and target class b, summed over layers."""
    value = sources[0].new_zeros(())
    for s, t in zip(sources, targets, strict=True):
        in_a = [x for x, label in zip(s, source_labels, strict=True) if label == a]
        in_b = [x for x, label in zip(t, target_labels, strict=True) if label == b]
        value = value + mmd(in_a, in_b)
    return value


def cdd(
    sources: list[Tensor],
    targets: list[Tensor],
    source_labels: list[int],
    target_labels: list[int],
    num_classes: int | None = None,
    intra_only: bool = False,
) -> Tensor:
    classes = sorted(set(source_labels) & set(target_labels))
    divisor = len(classes) if num_classes is None else num_classes
    value = sources[0].new_zeros(())
    for a in classes:
        for b in classes:
            if a == b:
                value = value + class_mmd(sources, targets, source_labels, target_labels, a, b) / divisor
            elif not intra_only:
                part = class_mmd(sources, targets, source_labels, target_labels, a, b)
                value = value - part / (divisor * (divisor - 1))
    return value
