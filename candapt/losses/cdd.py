"""Contrastive domain discrepancy, the loss of CAN (Kang et al., CVPR 2019, arXiv:1901.00976)."""

from typing import Any

import torch
from torch import Tensor

from candapt.losses.kernels import Layers, laplacian_products, mixture_and_slope, paired_layers, pairwise_distances
from candapt.losses.layouts import Layout, make_layout


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
    discrepancies, names = _discrepancies(source, target, source_labels, target_labels)
    shared = len(names)
    classes = shared if num_classes is None else num_classes
    if classes < shared:
        raise ValueError(f"num_classes is {classes}, but the batch has {shared} classes that both domains share.")
    if intra_only or shared < 2:
        return discrepancies.diagonal().sum() / max(classes, 1)
    weights = torch.full_like(discrepancies, -1 / (classes * (classes - 1)))
    return (discrepancies * weights.fill_diagonal_(1 / classes)).sum()


def classwise_mmd(source: Layers, target: Layers, source_labels: Tensor, target_labels: Tensor) -> Tensor:
    """Squared MMD of every source class to every target class, added over the layers.

    Every pair of classes has its own bandwidth in every layer: the mean squared distance between distinct samples of
    the pair's union, without gradient. The estimate is the biased one (a V-statistic). The arguments are those of
    `contrastive_domain_discrepancy`.

    Returns:
        Shape (classes, classes): row a, column b compares source class a with target class b. The classes are those
        that `shared_classes` gives, in its order.
    """
    discrepancies, names = _discrepancies(source, target, source_labels, target_labels)
    order = torch.tensor(
        sorted(range(len(names)), key=names.__getitem__), device=discrepancies.device, dtype=torch.int64
    )
    return discrepancies[order][:, order]


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


def _discrepancies(
    source: Layers, target: Layers, source_labels: Tensor, target_labels: Tensor
) -> tuple[Tensor, list[int]]:
    """What `classwise_mmd` gives, with the shared classes in the order in which the source has them, and these."""
    layers = paired_layers(source, target)
    _check_labels("source", source_labels, len(layers[0][0]))
    _check_labels("target", target_labels, len(layers[0][1]))
    source_names, target_names = source_labels.tolist(), target_labels.tolist()
    both = set(target_names)
    numbers = {name: number for number, name in enumerate(x for x in dict.fromkeys(source_names) if x in both)}
    sources = _shared_rows([s for s, _ in layers], source_names, numbers)
    targets = _shared_rows([t for _, t in layers], target_names, numbers)
    if not numbers:
        zero: Tensor = sum((layer.sum() for layer in (*sources, *targets)), start=sources[0].new_zeros(()))
        return zero.expand(0, 0), []
    # Numbered by their first appearance, whatever classes a class-aware batch holds, its layout is the same.
    by_source, by_target = (
        [numbers[name] for name in names if name in numbers] for names in (source_names, target_names)
    )
    layout = make_layout(by_source, by_target, sources[0].device)
    discrepancies: Tensor = _ClasswiseMMD.apply(layout, *sources, *targets)  # type: ignore[no-untyped-call]
    return discrepancies, list(numbers)


def _shared_rows(layers: list[Tensor], names: list[int], shared: dict[int, int]) -> list[Tensor]:
    """The rows of shared classes; a class-aware batch has no others and is spared the copy."""
    rows = [row for row, name in enumerate(names) if name in shared]
    if len(rows) == len(names):
        return layers
    kept = torch.tensor(rows, dtype=torch.int64, device=layers[0].device)
    return [layer.index_select(0, kept) for layer in layers]


class _ClasswiseMMD(torch.autograd.Function):
    """Squared MMD of every source class to every target class (M, M), added over the layers, by one set of tables.

    Only distances and the last product of the gradient, which depend on the width of a layer, are computed for each
    layer by itself.
    """

    @staticmethod
    def forward(ctx: Any, layout: Layout, *layers: Tensor) -> Tensor:
        sources, targets = layers[: len(layers) // 2], layers[len(layers) // 2 :]
        unions = [torch.cat(pair) for pair in zip(sources, targets, strict=True)]
        distances = pairwise_distances(unions).index_select(1, layout.pairs)
        distances = distances.view(len(unions), layout.classes, layout.classes, -1)
        within_source, within_target, across = layout.sums(distances)
        total = within_source + within_target + 2 * across  # (layers, M, M)
        bandwidth = total / (layout.samples * (layout.samples - 1))
        values, slopes = mixture_and_slope(distances, bandwidth[..., None])
        ctx.layout, ctx.sources, ctx.slopes = layout, [len(source) for source in sources], slopes
        ctx.save_for_backward(*unions)
        within_source, within_target, across = (
            total / count for total, count in zip(layout.sums(values), layout.counts, strict=True)
        )
        return (within_source + within_target - 2 * across).sum(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layout: Layout = ctx.layout
        gradient = gradients[0]
        # Both members of a pair inside a class are rows and columns, so each pair is there twice.
        factors = [2 * gradient / layout.counts[0], 2 * gradient / layout.counts[1], -2 * gradient / layout.counts[2]]
        parts = zip(ctx.slopes.split_with_sizes(layout.widths, -1), factors, strict=True)
        weights = torch.cat([slopes * factor[..., None] for slopes, factor in parts], -1)
        weights = weights if layout.real is None else weights * layout.real
        products = laplacian_products(layout.collect(weights), ctx.saved_tensors)
        sizes = zip(products, ctx.sources, strict=True)
        halves = [(product[:size], product[size:]) for product, size in sizes]
        return (None, *(source for source, _ in halves), *(target for _, target in halves))
