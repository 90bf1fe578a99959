"""The contrastive domain discrepancy by a loop over pairs of classes, as its first implementations have it."""

import torch
from torch import Tensor


def loop_discrepancy(source: list[Tensor], target: list[Tensor], classes: int, num_classes: int) -> Tensor:
    """CDD by a loop over layers and pairs of classes; the rows are in order of class, equally many each."""
    intra, inter = source[0].new_zeros(()), source[0].new_zeros(())
    for s, t in zip(source, target, strict=True):
        of_source, of_target = s.chunk(classes), t.chunk(classes)
        within_source = [expanded_distances(x, x) for x in of_source]
        within_target = [expanded_distances(x, x) for x in of_target]
        for a in range(classes):
            for b in range(classes):
                across = expanded_distances(of_source[a], of_target[b])
                value = pair_discrepancy(within_source[a], within_target[b], across)
                if a == b:
                    intra = intra + value
                else:
                    inter = inter + value
    return intra / num_classes - inter / (num_classes * (num_classes - 1))


def expanded_distances(a: Tensor, b: Tensor) -> Tensor:
    rows = a.unsqueeze(1).expand(-1, len(b), -1)
    columns = b.unsqueeze(0).expand(len(a), -1, -1)
    return ((rows - columns) ** 2).sum(2)


def pair_discrepancy(within_source: Tensor, within_target: Tensor, across: Tensor) -> Tensor:
    samples = len(within_source) + len(within_target)
    total = within_source.sum() + within_target.sum() + 2 * across.sum()
    gamma = (total / (samples * (samples - 1))).detach()
    gammas = [torch.clamp(gamma * 2.0**power, min=1e-5) for power in range(-2, 3)]
    parts = [sum_of_kernels(distances, gammas).mean() for distances in (within_source, within_target, across)]
    return parts[0] + parts[1] - 2 * parts[2]


def sum_of_kernels(distances: Tensor, gammas: list[Tensor]) -> Tensor:
    total = torch.zeros_like(distances)
    for gamma in gammas:
        total = total + torch.exp(-torch.clamp(distances / gamma, 1e-5, 1e5))
    return total
