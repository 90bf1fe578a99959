"""Losses on predictions: disagreement (MCD, ADR), consistency (self-ensembling) and class confusion (MCC)."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from candapt.losses.kernels import check_logits

SMALLEST_SHARE = 1e-6  # keeps the logarithms finite for a class that nobody predicts


def absolute_disagreement(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """Mean absolute difference of two predicted distributions (MCD: Saito et al., CVPR 2018).

    Args:
        first_logits: one classifier's logits, shape (n, classes).
        second_logits: the other's, same shape.

    Returns:
        The mean over samples and classes, a scalar in [0, 2 / classes].
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
    """Half the sum of both Kullback-Leibler divergences of two predictions, a scalar (ADR: Saito et al., ICLR 2018).

    Args:
        first_logits: logits of one pass, shape (n, classes).
        second_logits: logits of the other pass, same shape.
        reduction: "element" averages over samples and classes, as the released code does; "batch" only over samples,
            which is `classes` times as much.
        constant_reference: let no gradient into the distribution that the other one is measured against, as the
            released code does.
        double_softmax: measure the distance of softmax(softmax(logits)) to the distribution it is measured against, as
            the released code does by mistake. It is no longer zero for equal predictions.
    """
    check_logits(first_logits, second_logits)
    if reduction not in ("element", "batch"):
        raise ValueError(f"There is no reduction {reduction!r}; choose element or batch.")
    total = torch.zeros((), dtype=first_logits.dtype, device=first_logits.device)
    for logits, reference in ((first_logits, second_logits), (second_logits, first_logits)):
        truth = (reference.detach() if constant_reference else reference).log_softmax(1)
        approximation = (logits.softmax(1) if double_softmax else logits).log_softmax(1)
        total = total + kl_div(approximation, truth, reduction="sum", log_target=True)  # KL(truth || approximation)
    samples, classes = first_logits.shape
    return 0.5 * total / (samples * classes if reduction == "element" else samples)


def class_balance(logits: Tensor, *, floor: float = 1e-6) -> Tensor:
    """Mean over classes of -log of the share of the batch that they are given (the balance term of MCD's VisDA runs).

    Args:
        logits: of target samples, shape (n, classes).
        floor: added to each share before the logarithm.

    Returns:
        A scalar, smallest (log classes) where all classes have the same share.
    """
    check_logits(logits, logits)
    return -(logits.softmax(1).mean(0) + floor).log().mean()


def confidence_mask(teacher_logits: Tensor, *, threshold: float = 0.9) -> Tensor:
    """Which samples the teacher gives some class a probability above `threshold`: (n, classes) to boolean (n,)."""
    return teacher_logits.detach().softmax(1).amax(1) > threshold


def masked_consistency(student_logits: Tensor, teacher_logits: Tensor, *, threshold: float = 0.9) -> Tensor:
    """Mean squared difference of student and teacher where the teacher is confident, a scalar.

    The mean runs over all samples and classes: a sample that is not confident counts as zero, so the pull grows with
    the share of confident samples. The teacher receives no gradient.

    Args:
        student_logits: logits of one view of the target samples, shape (n, classes).
        teacher_logits: logits of another view of the same samples, same shape.
        threshold: the teacher is confident if its highest probability is above this.
    """
    check_logits(student_logits, teacher_logits)
    differences = student_logits.softmax(1) - teacher_logits.detach().softmax(1)
    mask = confidence_mask(teacher_logits, threshold=threshold)
    return (differences.square().mean(1) * mask).mean()


def consistency_balance(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    threshold: float = 0.9,
    variant: Literal["bce", "log", "bug"] = "bce",
) -> Tensor:
    """Keep the student from giving all samples to a few classes: compare the mean prediction with the uniform one.

    Args:
        student_logits: logits of the target samples, shape (n, classes).
        teacher_logits: the teacher's, same shape; the term is scaled by the share of samples it is confident of.
        threshold: the teacher is confident if its highest probability is above this.
        variant: "bce" is the binary cross-entropy of each class's share q with t = 1 / classes; "log" is -log q;
            "bug" is -(t log q + (1 - t) log(1 + q)), a slip in the released code with which its results were made.

    Returns:
        A scalar, the sum over classes times the share of confident samples.
    """
    check_logits(student_logits, teacher_logits)
    if variant not in ("bce", "log", "bug"):
        raise ValueError(f"There is no balance variant {variant!r}; choose one of bce, log, bug.")
    shares = student_logits.softmax(1).mean(0)  # (classes,)
    mask_rate = confidence_mask(teacher_logits, threshold=threshold).to(shares.dtype).mean()
    if variant == "log":
        return -_log(shares).sum() * mask_rate
    uniform = 1 / len(shares)
    others = 1 - shares if variant == "bce" else 1 + shares
    return -(uniform * _log(shares) + (1 - uniform) * _log(others)).sum() * mask_rate


def _log(shares: Tensor) -> Tensor:
    return (shares + SMALLEST_SHARE).log()


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
