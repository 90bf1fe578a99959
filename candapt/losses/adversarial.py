"""Domain confusion for DANN (Ganin and Lempitsky, ICML 2015) and, class by class, MADA (Pei et al., AAAI 2018)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """Return the values unchanged and multiply the gradient by `-strength` in the backward pass.

    The layers after this call are trained to minimize a loss, the layers before it to maximize it.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> (2 * reverse_gradient(x, 0.5)).backward()
    >>> x.grad
    tensor(-1.)
    """
    reversed_: Tensor = _GradientReversal.apply(x, strength)  # type: ignore[no-untyped-call]
    return reversed_


class _GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


def domain_confusion(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Binary cross-entropy of a domain discriminator, source 1 and target 0; each domain counts half (DANN).

    The confusion comes from `reverse_gradient` between features and discriminator.

    Args:
        source_logits: the discriminator's output before the sigmoid, shape (n,) or (n, 1).
        target_logits: the same for the target, shape (m,) or (m, 1).

    Returns:
        A scalar; log 2 for a discriminator that cannot distinguish the domains.
    """
    source_errors, target_errors = _discriminator_errors(source_logits, target_logits)
    return 0.5 * (source_errors.mean() + target_errors.mean())


def classwise_domain_confusion(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Binary cross-entropy of one domain discriminator per class, averaged over samples, added over classes (MADA).

    Discriminator k sees the features weighted by the predicted probability of class k, in both domains.

    Args:
        source_logits: output of every discriminator before the sigmoid, shape (n, classes).
        target_logits: the same for the target, shape (m, classes).

    Returns:
        A scalar; classes * log 2 if no discriminator can distinguish the domains.
    """
    errors = _discriminator_errors(source_logits, target_logits)
    if source_logits.dim() != 2 or target_logits.dim() != 2 or source_logits.shape[1] != target_logits.shape[1]:
        shapes = f"{tuple(source_logits.shape)} and {tuple(target_logits.shape)}"
        raise ValueError(f"Both domains need logits of shape (samples, classes) with the same classes, got {shapes}.")
    return torch.cat(errors).mean(0).sum()


def _discriminator_errors(source_logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Negative log of the probability that the discriminator gives to the true domain of each sample."""
    if source_logits.numel() == 0 or target_logits.numel() == 0:
        raise ValueError("Domain confusion needs at least one sample of each domain.")
    return softplus(-source_logits), softplus(target_logits)
