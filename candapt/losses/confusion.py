"""Minimum class confusion, MCC (Jin et al., ECCV 2020, arXiv:1912.03699)."""

import torch
from torch import Tensor


def minimum_class_confusion(logits: Tensor, *, temperature: float = 2.5, constant_weights: bool = True) -> Tensor:
    """How much of each class's prediction mass is shared with other classes, on target samples.

    Softened predictions Y are correlated as Y^T W Y, where W weighs certain samples more; each row is normalized, and
    what stands off the diagonal is averaged over the classes.

    Args:
        logits: of target samples, shape (n, classes).
        temperature: divides the logits before the softmax.
        constant_weights: let no gradient into the weights of the samples, as the released code does.

    Returns:
        A scalar in [0, 1): zero if every prediction is certain.

    Raises:
        ValueError: if there are no samples or the temperature is not positive.
    """
    if logits.dim() != 2 or logits.numel() == 0:
        raise ValueError(f"Class confusion needs logits of shape (samples, classes), got {tuple(logits.shape)}.")
    if temperature <= 0:
        raise ValueError(f"The temperature must be positive, got {temperature}.")
    softened = logits / temperature
    predictions = softened.softmax(1)
    weights = _certainty(softened.detach() if constant_weights else softened)
    correlation = predictions.mT @ (weights[:, None] * predictions)  # (classes, classes)
    # A class without any mass would divide by zero; it then has no confusion.
    normalized = correlation / correlation.sum(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)
    return (normalized.sum() - normalized.diagonal().sum()) / len(normalized)


def _certainty(logits: Tensor) -> Tensor:
    """Weights 1 + exp(-entropy) of the samples, (n,), which add up to their number."""
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    weights = 1 + (-entropy).exp()
    return len(weights) * weights / weights.sum()
