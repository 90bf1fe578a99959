"""How far two predictions of the same samples lie apart, for MCD and ADR."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from candapt.losses.layers import check_logits


def absolute_disagreement(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """Mean absolute difference of two predicted distributions (MCD: Saito et al., CVPR 2018).

    Args:
        first_logits: one classifier's logits, shape (n, classes).
        second_logits: the other's, same shape.

    Returns:
        The mean over samples and classes, a scalar in [0, 2 / classes].

    Raises:
        ValueError: if the shapes differ or there are no samples.
    """
    check_logits(first_logits, second_logits)
    return (first_logits.softmax(1) - second_logits.softmax(1)).abs().mean()


def symmetric_divergence(
    first_logits: Tensor,
    second_logits: Tensor,
    *,
    reduction: Literal["element", "batch"] = "element",
    constant_reference: bool = False,
    double_softmax: bool = False,
) -> Tensor:
    """Half the sum of both Kullback-Leibler divergences of two predictions (ADR: Saito et al., ICLR 2018).

    Args:
        first_logits: logits of one pass, shape (n, classes).
        second_logits: logits of the other pass, same shape.
        reduction: "element" averages over samples and classes, as the released code does; "batch" only over samples,
            which is `classes` times as much.
        constant_reference: let no gradient into the distribution that the other one is measured against, as the
            released code does.
        double_softmax: measure the distance of softmax(softmax(logits)) to the distribution it is measured against, as
            the released code does by mistake. It is no longer zero for equal predictions.

    Returns:
        A scalar.

    Raises:
        ValueError: if the shapes differ, there are no samples or the reduction is unknown.
    """
    check_logits(first_logits, second_logits)
    if reduction not in ("element", "batch"):
        raise ValueError(f"There is no reduction {reduction!r}; choose element or batch.")
    total = torch.zeros((), dtype=first_logits.dtype, device=first_logits.device)
    for logits, reference in ((first_logits, second_logits), (second_logits, first_logits)):
        approximation = logits.softmax(1) if double_softmax else logits
        reference = reference.detach() if constant_reference else reference
        total = total + _divergence(reference.log_softmax(1), approximation.log_softmax(1))
    samples, classes = first_logits.shape
    return 0.5 * total / (samples * classes if reduction == "element" else samples)


def class_balance(logits: Tensor, *, floor: float = 1e-6) -> Tensor:
    """Mean over classes of -log of the share of the batch that they are given (the balance term of MCD's VisDA runs).

    Args:
        logits: of target samples, shape (n, classes).
        floor: added to each share before the logarithm.

    Returns:
        A scalar, smallest (log classes) where all classes have the same share.

    Raises:
        ValueError: if there are no samples.
    """
    check_logits(logits, logits)
    return -(logits.softmax(1).mean(0) + floor).log().mean()


def _divergence(log_reference: Tensor, log_approximation: Tensor) -> Tensor:
    """KL(reference || approximation), summed over samples and classes."""
    return kl_div(log_approximation, log_reference, reduction="sum", log_target=True)
