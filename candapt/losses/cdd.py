"""Contrastive domain discrepancy, the loss of CAN (Kang et al., CVPR 2019, arXiv:1901.00976)."""

import torch
from torch import Tensor

from candapt.losses.kernels import Layers, gaussian_mixture, paired_layers, squared_distances


def contrastive_domain_discrepancy(
    source: Layers,
    target: Layers,
    source_labels: Tensor,
    target_labels: Tensor,
    *,
    num_classes: int | None = None,
    intra_only: bool = False,
) -> Tensor:
    """Pull each class together across the domains and push different classes apart.

    The sum of the MMD between equal classes over M, minus the sum between different classes over M (M - 1). A class
    that one of the domains lacks takes no part; with a single class there is nothing to push apart.

    Args:
        source: features (n, d), or a sequence of them with one entry per layer; the layers are added up.
        target: features (m, d) of the same layers.
        source_labels: integers (n,), in any order, any number of samples per class.
        target_labels: integers (m,), usually pseudo-labels.
        num_classes: the M above. Default: the number of classes that both domains have in this batch, which makes both
            sums means. The paper and the authors' code take the number of classes of the whole task.
        intra_only: leave out the part that pushes different classes apart.

    Returns:
        A scalar; zero, but still part of the graph, if no class is shared.
    """
    discrepancies = classwise_mmd(source, target, source_labels, target_labels)
    shared = len(discrepancies)
    classes = shared if num_classes is None else num_classes
    if classes < shared:
        raise ValueError(f"num_classes is {classes}, but the batch has {shared} classes that both domains share.")
    same = discrepancies.diagonal().sum()
    intra = same / max(classes, 1)
    if intra_only or shared < 2:
        return intra
    return intra - (discrepancies.sum() - same) / (classes * (classes - 1))


def classwise_mmd(source: Layers, target: Layers, source_labels: Tensor, target_labels: Tensor) -> Tensor:
    """Squared MMD of every source class to every target class, added over the layers.

    Every pair of classes has its own bandwidth in every layer: the mean squared distance between distinct samples of
    the pair's union, without gradient. The estimate is the biased one (a V-statistic). The arguments are those of
    `contrastive_domain_discrepancy`.

    Returns:
        Shape (classes, classes): row a, column b compares source class a with target class b. The classes are those
        that `shared_classes` gives, in its order.
    """
    layers = paired_layers(source, target)
    _check_labels("source", source_labels, len(layers[0][0]))
    _check_labels("target", target_labels, len(layers[0][1]))
    classes = shared_classes(source_labels, target_labels)
    source_kept = torch.isin(source_labels, classes).nonzero()[:, 0]
    target_kept = torch.isin(target_labels, classes).nonzero()[:, 0]
    pairs = _ClassPairs(source_labels[source_kept], target_labels[target_kept], classes)

    unions = [torch.cat([_rows(s, source_kept), _rows(t, target_kept)]) for s, t in layers]
    distances = torch.stack([squared_distances(union)[pairs.first, pairs.second] for union in unions])
    within_source, within_target, across = pairs.sums(distances.detach())
    total = within_source + within_target + 2 * across  # (layers, classes, classes)
    bandwidth = total / (pairs.samples * (pairs.samples - 1))

    within_source, within_target, across = pairs.means(gaussian_mixture(distances, bandwidth[..., None]))
    return (within_source + within_target - 2 * across).sum(0)


def shared_classes(source_labels: Tensor, target_labels: Tensor) -> Tensor:
    """The labels that occur in both domains, sorted.

    >>> shared_classes(torch.tensor([2, 0, 2, 1]), torch.tensor([0, 2, 3]))
    tensor([0, 2])
    """
    candidates: Tensor = source_labels.unique()  # type: ignore[no-untyped-call]
    return candidates[torch.isin(candidates, target_labels)]


def _check_labels(domain: str, labels: Tensor, samples: int) -> None:
    if labels.shape != (samples,):
        raise ValueError(f"The {domain} has {samples} samples, but its labels have shape {tuple(labels.shape)}.")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"The {domain} labels must be integers, got {labels.dtype}.")


def _rows(features: Tensor, kept: Tensor) -> Tensor:
    """The kept rows; a class-aware batch keeps them all and is spared the copy."""
    return features if len(kept) == len(features) else features.index_select(0, kept)


class _ClassPairs:
    """Which pairs of samples belong to which pair of classes.

    With at most m source and n target samples in a class, the m*m pairs inside a source class, the n*n inside a target
    class and the m*n across stand side by side in one row of length `width` for each of the (classes, classes) pairs.
    """

    def __init__(self, source_labels: Tensor, target_labels: Tensor, classes: Tensor) -> None:
        source, source_real = _rows_by_class(source_labels, classes)  # (classes, m)
        target, target_real = _rows_by_class(target_labels, classes)  # (classes, n)
        self._widths = [source.shape[1] ** 2, target.shape[1] ** 2, source.shape[1] * target.shape[1]]
        # Rows of a pair's two samples in the union (source, then target), both (classes, classes, width); and whether
        # it is a real pair rather than padding of a smaller class, same shape.
        self.first, self.second = _every_pair(source, target + len(source_labels))
        self.real = torch.logical_and(*_every_pair(source_real, target_real))
        self.samples = source_real.sum(1)[:, None] + target_real.sum(1)  # in the union of two classes

    def sums(self, values: Tensor) -> list[Tensor]:
        """Add up (..., classes, classes, width) within the source, within the target and across."""
        return [part.sum(-1) for part in (values * self.real).split_with_sizes(self._widths, -1)]

    def means(self, values: Tensor) -> list[Tensor]:
        """Average (..., classes, classes, width) within the source, within the target and across."""
        return [total / count for total, count in zip(self.sums(values), self.sums(self.real), strict=True)]


def _rows_by_class(labels: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers (classes, largest count) of each class, and which of them are real; the rest repeat the first."""
    member = labels == classes[:, None]  # (classes, n)
    counts = member.sum(1, keepdim=True)
    largest = int(counts.max()) if len(classes) else 0
    rows = member.byte().argsort(dim=1, descending=True, stable=True)[:, :largest]
    real = torch.arange(largest, device=labels.device) < counts
    return torch.where(real, rows, rows[:, :1]), real


def _every_pair(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """First and second member of every pair, from (classes, m) and (classes, n) to (classes, classes, width)."""
    classes = len(source)
    pairs = [
        (source[:, None, :, None], source[:, None, None, :]),
        (target[None, :, :, None], target[None, :, None, :]),
        (source[:, None, :, None], target[None, :, None, :]),
    ]
    shapes = [(classes, classes, first.shape[2], second.shape[3]) for first, second in pairs]
    firsts = [first.expand(shape).flatten(2) for (first, _), shape in zip(pairs, shapes, strict=True)]
    seconds = [second.expand(shape).flatten(2) for (_, second), shape in zip(pairs, shapes, strict=True)]
    return torch.cat(firsts, -1), torch.cat(seconds, -1)
