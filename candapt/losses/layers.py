"""What losses are given: features of two domains in one precision, one or several layers, and pairs of predictions."""

from collections.abc import Sequence

import torch
from torch import Tensor

Layers = Tensor | Sequence[Tensor]
"""Features (n, d) of one layer, or a sequence of them with one entry a layer."""


def paired_layers(source: Layers, target: Layers) -> list[tuple[Tensor, Tensor]]:
    """Match the layers of the two domains.

    Half precision is raised to float32: a mean of squared distances over 2048 coordinates overflows or rounds away
    in it.

    Returns:
        One pair of features (n, d) and (m, d) a layer, of the same floating type.

    Raises:
        ValueError: if the layers do not fit together or a domain has no samples.
    """
    sources = [source] if isinstance(source, Tensor) else list(source)
    targets = [target] if isinstance(target, Tensor) else list(target)
    if not sources or len(sources) != len(targets):
        raise ValueError(
            f"Source and target need the same layers, at least one, got {len(sources)} and {len(targets)}."
        )
    _check_rows("source", sources)
    _check_rows("target", targets)
    return [_in_one_precision(s, t, layer) for layer, (s, t) in enumerate(zip(sources, targets, strict=True))]


def _check_rows(domain: str, layers: Sequence[Tensor]) -> None:
    for number, layer in enumerate(layers):
        if layer.dim() != 2:
            raise ValueError(f"Layer {number} of the {domain} must have shape (n, d), got {tuple(layer.shape)}.")
        if len(layer) != len(layers[0]):
            raise ValueError(
                f"Layer {number} of the {domain} has {len(layer)} samples where layer 0 has {len(layers[0])}."
            )
    if len(layers[0]) == 0:
        raise ValueError(f"The {domain} batch is empty; a discrepancy needs at least one sample of each domain.")


def _in_one_precision(source: Tensor, target: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    if source.shape[1] != target.shape[1]:
        raise ValueError(
            f"Layer {layer} has {source.shape[1]} features in the source, {target.shape[1]} in the target."
        )
    if not (source.is_floating_point() and target.is_floating_point()):
        raise ValueError(f"Layer {layer} must hold floating-point features, got {source.dtype} and {target.dtype}.")
    dtype = torch.promote_types(torch.promote_types(source.dtype, target.dtype), torch.float32)
    return source.to(dtype), target.to(dtype)


def check_logits(first: Tensor, second: Tensor) -> None:
    """Refuse two predictions of the same samples that are none, or no such pair."""
    if first.dim() != 2 or first.shape != second.shape:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"Both predictions need logits of the same shape (samples, classes), got {shapes}.")
    if first.numel() == 0:
        raise ValueError("The batch is empty; at least one sample is needed.")
