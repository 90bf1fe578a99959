"""Student-teacher consistency of self-ensembling (French et al., ICLR 2018)."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from candapt.losses.layers import check_logits

SMALLEST_SHARE = 1e-6  # keeps the logarithms finite for a class that nobody predicts


def confidence_mask(teacher_logits: Tensor, *, threshold: float = 0.9) -> Tensor:
    """Which samples the teacher gives some class a probability above `threshold`: (n, classes) to boolean (n,)."""
    return teacher_logits.detach().softmax(1).amax(1) > threshold


def masked_consistency(student_logits: Tensor, teacher_logits: Tensor, *, threshold: float = 0.9) -> Tensor:
    """Mean squared difference of student and teacher where the teacher is confident.

    The mean runs over all samples and classes: a sample that is not confident counts as zero, so the pull grows with
    the share of confident samples. The teacher receives no gradient.

    Args:
        student_logits: logits of one view of the target samples, shape (n, classes).
        teacher_logits: logits of another view of the same samples, same shape.
        threshold: the teacher is confident if its highest probability is above this.

    Returns:
        A scalar.

    Raises:
        ValueError: if the shapes differ or there are no samples.
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

    Raises:
        ValueError: if the shapes differ, there are no samples or the variant is unknown.
    """
    check_logits(student_logits, teacher_logits)
    if variant not in _BALANCES:
        raise ValueError(f"There is no balance variant {variant!r}; choose one of {', '.join(_BALANCES)}.")
    shares = student_logits.softmax(1).mean(0)  # (classes,)
    mask_rate = confidence_mask(teacher_logits, threshold=threshold).to(shares.dtype).mean()
    return _BALANCES[variant](shares, 1 / len(shares)).sum() * mask_rate


def _cross_entropy(share: Tensor, uniform: float) -> Tensor:
    return -(uniform * _log(share) + (1 - uniform) * _log(1 - share))


def _negative_log(share: Tensor, uniform: float) -> Tensor:
    return -_log(share)


def _wrong_cross_entropy(share: Tensor, uniform: float) -> Tensor:
    return -(uniform * _log(share) + (1 - uniform) * _log(1 + share))


def _log(share: Tensor) -> Tensor:
    return (share + SMALLEST_SHARE).log()


_BALANCES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "bce": _cross_entropy,
    "log": _negative_log,
    "bug": _wrong_cross_entropy,
}
