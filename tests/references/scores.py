"""Label-free scores as loops over samples, slow and plain."""

import math

import numpy as np
from torch import Tensor


def entropy(p: Tensor) -> float:
    """Sum of -q log q over classes, averaged over samples."""
    return float(np.mean([sum(-q * math.log(q) for q in row if q > 0) for row in p.tolist()]))


def information(p: Tensor) -> float:
    """Entropy of the average row minus the average entropy."""
    return entropy(p.mean(0, keepdim=True)) - entropy(p)


def snd(p: Tensor, temperature: float) -> float:
    """For each sample the entropy of its softmax over all others."""
    rows = [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in p.double().tolist()]
    entropies = []
    for i, one in enumerate(rows):
        similar = [
            math.exp(sum(a * b for a, b in zip(one, other, strict=True)) / temperature)
            for j, other in enumerate(rows)
            if j != i
        ]
        entropies.append(sum(-s / sum(similar) * math.log(s / sum(similar)) for s in similar))
    return float(np.mean(entropies))


def dev(losses: list[float], weights: list[float]) -> float:
    """The weighted risk plus eta times (mean weight - 1), with the eta of least variance."""
    weighted = [loss * weight for loss, weight in zip(losses, weights, strict=True)]
    mean_weighted, mean_weight = sum(weighted) / len(weighted), sum(weights) / len(weights)
    covariance = sum((a - mean_weighted) * (b - mean_weight) for a, b in zip(weighted, weights, strict=True))
    variance = sum((b - mean_weight) ** 2 for b in weights)
    eta = -covariance / variance
    return mean_weighted + eta * mean_weight - eta


def neighbors(labels: list[int], features: Tensor, count: int) -> float:
    """Mean share of the `count` samples of largest cosine that have the sample's own label."""
    units = [row / row.norm() for row in features.double()]
    shares = []
    for i, one in enumerate(units):
        others = sorted((-float(one @ other), j) for j, other in enumerate(units) if j != i)
        shares.append(np.mean([labels[j] == labels[i] for _, j in others[:count]]))
    return float(np.mean(shares))


def neighbor_information(labels: list[int], features: Tensor, count: int, classes: int) -> float:
    """Sum over pairs of labels of P(a, b) log(P(a, b) / P(a) P(b)), pairs being samples and their neighbors."""
    units = [row / row.norm() for row in features.double()]
    pairs = []
    for i, one in enumerate(units):
        others = sorted((-float(one @ other), j) for j, other in enumerate(units) if j != i)
        pairs += [(labels[i], labels[j]) for _, j in others[:count]]
    total = 0.0
    for a, b in set(pairs):
        both = pairs.count((a, b)) / len(pairs)
        first, second = (sum(pair[side] == c for pair in pairs) / len(pairs) for side, c in enumerate((a, b)))
        total += both * math.log(both / (first * second))
    return total / math.log(classes)
