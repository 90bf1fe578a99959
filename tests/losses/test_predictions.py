"""The losses of the compared methods against plain Python, closed forms and the direction of their gradients."""

import re
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from candapt.losses import (
    absolute_disagreement,
    class_balance,
    classwise_domain_confusion,
    confidence_mask,
    consistency_balance,
    domain_confusion,
    masked_consistency,
    minimum_class_confusion,
    reverse_gradient,
    symmetric_divergence,
)
from tests.references import predictions as reference

quick = settings(derandomize=True, deadline=None, max_examples=25)
VARIANTS = ["bce", "log", "bug"]


def logits(seed: int, n: int, classes: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    first = 3 * torch.randn(n, classes, generator=random, dtype=torch.float64)
    return first, first + torch.randn(n, classes, generator=random, dtype=torch.float64)


def gradient(value: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(value, at, retain_graph=True)[0]


batches = given(seed=st.integers(0, 10_000), n=st.integers(1, 6), classes=st.integers(2, 5))


@batches
@quick
def test_they_equal_plain_python(seed: int, n: int, classes: int) -> None:
    first, second = logits(seed, n, classes)
    a, b = first.tolist(), second.tolist()
    pairs = [
        (
            domain_confusion(first[:, 0], second[:, :1]),
            reference.domain_confusion(first[:, 0].tolist(), second[:, 0].tolist()),
        ),
        (
            classwise_domain_confusion(first, second[1:] if n > 1 else second),
            reference.classwise_domain_confusion(a, b[1:] if n > 1 else b),
        ),
        (absolute_disagreement(first, second), reference.absolute_disagreement(a, b)),
        (symmetric_divergence(first, second), reference.symmetric_divergence(a, b, double_softmax=False)),
        (
            symmetric_divergence(first, second, double_softmax=True),
            reference.symmetric_divergence(a, b, double_softmax=True),
        ),
        (class_balance(first), reference.class_balance(a)),
        (masked_consistency(first, second, threshold=0.7), reference.masked_consistency(a, b, 0.7)),
        (minimum_class_confusion(first), reference.minimum_class_confusion(a, 2.5)),
        (minimum_class_confusion(first, temperature=1.0), reference.minimum_class_confusion(a, 1.0)),
    ]
    for variant in VARIANTS:
        ours = consistency_balance(first, second, threshold=0.7, variant=variant)  # type: ignore[arg-type]
        pairs.append((ours, reference.consistency_balance(a, b, 0.7, variant)))
    for value, expected in pairs:
        assert value.shape == ()
        assert value.item() == pytest.approx(expected, abs=1e-10)


# Adversarial


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_reversal_keeps_values_and_turns_the_gradient_around(strength: float) -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    turned = reverse_gradient(x, strength)
    assert torch.equal(turned, x)
    turned.square().sum().backward()
    torch.testing.assert_close(x.grad, -strength * 2 * x.detach())


def test_by_default_the_gradient_keeps_its_length() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    reverse_gradient(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1, -1]


def test_a_step_helps_the_discriminator_and_confuses_it_through_the_features() -> None:
    source = torch.tensor([[1.0], [2.0]], requires_grad=True)
    target = torch.tensor([[-1.0], [-2.0]])
    discriminator = torch.tensor([[0.5]], requires_grad=True)

    def confusion() -> Tensor:
        return domain_confusion(reverse_gradient(source) @ discriminator, target @ discriminator)

    before = confusion()
    before.backward()
    assert discriminator.grad is not None
    assert source.grad is not None
    with torch.no_grad():
        assert domain_confusion(source @ (discriminator - 0.1 * discriminator.grad), target @ discriminator) < before
        assert domain_confusion((source - 0.1 * source.grad) @ discriminator, target @ discriminator) > before


def test_a_discriminator_that_knows_nothing_costs_log_two_a_class() -> None:
    assert domain_confusion(torch.zeros(3), torch.zeros(5)).item() == pytest.approx(log(2))
    assert classwise_domain_confusion(torch.zeros(3, 4), torch.zeros(5, 4)).item() == pytest.approx(4 * log(2))


def test_each_domain_counts_half_whatever_its_size() -> None:
    source, target = torch.full((1,), 2.0), torch.full((9,), 2.0)
    expected = 0.5 * (log(1 + 2.718281828459045**-2) + log(1 + 2.718281828459045**2))
    assert domain_confusion(source, target).item() == pytest.approx(expected)


def test_confident_discriminators_stay_finite() -> None:
    assert domain_confusion(torch.tensor([1000.0]), torch.tensor([-1000.0])) == 0
    assert domain_confusion(torch.tensor([-1000.0]), torch.tensor([1000.0])) == 1000


# Disagreement


def test_equal_predictions_do_not_disagree() -> None:
    first, _ = logits(0, 4, 3)
    assert absolute_disagreement(first, first + 7) < 1e-12
    assert symmetric_divergence(first, first + 7) < 1e-12
    assert symmetric_divergence(first, first, double_softmax=True) > 0.01


def test_certain_opposite_predictions_disagree_fully() -> None:
    first = torch.tensor([[100.0, 0.0, 0.0]])
    second = torch.tensor([[0.0, 100.0, 0.0]])
    assert absolute_disagreement(first, second).item() == pytest.approx(2 / 3)
    assert symmetric_divergence(first, second, reduction="batch").item() == pytest.approx(100.0)


def test_the_batch_mean_is_larger_by_the_number_of_classes() -> None:
    first, second = logits(1, 4, 5)
    torch.testing.assert_close(
        symmetric_divergence(first, second, reduction="batch"), 5 * symmetric_divergence(first, second)
    )


def test_a_constant_reference_keeps_the_value_and_takes_one_half_of_the_gradient_away() -> None:
    first, second = logits(2, 4, 3)
    first.requires_grad_()
    free = symmetric_divergence(first, second)
    held = symmetric_divergence(first, second, constant_reference=True)
    torch.testing.assert_close(free, held)
    p, q = first.softmax(1), second.softmax(1)
    # d/dlogits of KL(q || p) with q held is p - q.
    torch.testing.assert_close(gradient(held, first), ((p - q) / (2 * first.numel())).detach())
    assert not torch.allclose(gradient(free, first), gradient(held, first))
    assert torch.autograd.gradcheck(symmetric_divergence, (first, second))


def test_balance_is_smallest_for_equal_shares() -> None:
    equal = class_balance(20 * torch.eye(4, dtype=torch.float64))
    assert equal.item() == pytest.approx(log(4), abs=1e-5)
    assert class_balance(20 * torch.eye(4, dtype=torch.float64)[[0, 0, 1, 2]]) > equal
    collapsed = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    moved = collapsed + torch.tensor([2.0, 0.0, 0.0])
    assert (gradient(class_balance(moved), collapsed)[:, 0] > 0).all()  # a step down lowers the crowded class


# Consistency


def test_only_confident_samples_are_pulled_and_the_teacher_stays() -> None:
    student = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[9.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    assert confidence_mask(teacher, threshold=0.9).tolist() == [True, False]
    value = masked_consistency(student, teacher)
    value.backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert student.grad[0, 0] < 0  # towards the teacher's class
    assert (student.grad[1] == 0).all()


def test_no_confident_sample_means_no_loss() -> None:
    student, _ = logits(3, 4, 3)
    teacher = torch.zeros_like(student)
    assert masked_consistency(student, teacher) == 0
    for variant in VARIANTS:
        assert consistency_balance(student, teacher, variant=variant) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["bce", "log"])
def test_consistency_balance_spreads_the_student_over_the_classes(variant: str) -> None:
    student = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[9.0, 0.0, 0.0]], dtype=torch.float64)
    slope = gradient(consistency_balance(student, teacher, variant=variant), student)  # type: ignore[arg-type]
    assert slope[0, 0] > 0
    assert (slope[0, 1:] < 0).all()


# Class confusion


def test_certain_predictions_are_not_confused_and_even_ones_are() -> None:
    assert minimum_class_confusion(100 * torch.eye(3)) < 1e-6
    assert minimum_class_confusion(torch.zeros(5, 4)).item() == pytest.approx(3 / 4)


def test_a_class_that_nobody_predicts_gives_finite_gradients() -> None:
    certain = torch.tensor([[0.0, -1e4, 0.0], [1.0, -1e4, 0.0]], requires_grad=True)
    value = minimum_class_confusion(certain)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient(value, certain)).all()


def test_weights_take_a_gradient_only_on_request() -> None:
    first, _ = logits(4, 4, 3)
    first.requires_grad_()
    held, free = (minimum_class_confusion(first, constant_weights=constant) for constant in (True, False))
    assert torch.equal(held, free)
    assert torch.equal(gradient(minimum_class_confusion(first), first), gradient(held, first))  # as the authors do
    assert not torch.allclose(gradient(held, first), gradient(free, first))
    assert torch.autograd.gradcheck(lambda x: minimum_class_confusion(x, constant_weights=False), (first,))


def test_descending_makes_predictions_more_certain() -> None:
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    step = first - gradient(minimum_class_confusion(first), first)
    assert (step.softmax(1).amax(1) > first.softmax(1).amax(1)).all()


# Defaults and boundaries


def test_defaults_are_those_of_the_papers() -> None:
    first, second = logits(5, 6, 3)
    assert torch.equal(class_balance(first), class_balance(first, floor=1e-6))
    sure, unsure = torch.tensor([[3.2, 0.0, 0.0]]), torch.tensor([[2.7, 0.0, 0.0]])  # 0.92 and 0.88
    assert [bool(confidence_mask(teacher)) for teacher in (sure, unsure)] == [True, False]
    for loss in (masked_consistency, consistency_balance):
        assert [bool(loss(torch.zeros(1, 3), teacher) > 0) for teacher in (sure, unsure)] == [True, False]
    assert torch.equal(consistency_balance(first, second), consistency_balance(first, second, variant="bce"))
    assert torch.equal(symmetric_divergence(first, second), symmetric_divergence(first, second, reduction="element"))


def test_a_teacher_that_is_exactly_as_sure_as_the_threshold_does_not_count() -> None:
    assert not confidence_mask(torch.zeros(1, 2), threshold=0.5)
    assert confidence_mask(torch.zeros(1, 2), threshold=0.4999)


def test_a_class_without_a_sample_costs_the_logarithm_of_the_floor() -> None:
    certain = torch.tensor([[1000.0, 0.0]], dtype=torch.float64)
    assert class_balance(certain).item() == pytest.approx(-log(1e-6) / 2, abs=1e-5)
    assert class_balance(certain, floor=1e-3).item() == pytest.approx(-log(1e-3) / 2, abs=1e-3)
    assert consistency_balance(certain, certain, variant="log").item() == pytest.approx(-log(1e-6), abs=1e-5)


def test_the_mask_gives_the_teacher_no_gradient() -> None:
    student, teacher = (x.requires_grad_() for x in logits(6, 4, 3))
    total = masked_consistency(student, teacher, threshold=0.0) + consistency_balance(student, teacher, threshold=0.0)
    assert gradient(total, student).any()
    total.backward()
    assert teacher.grad is None


def test_low_temperatures_and_single_samples_are_allowed() -> None:
    first, _ = logits(7, 1, 3)
    value = minimum_class_confusion(first, temperature=0.5)
    assert value.item() == pytest.approx(reference.minimum_class_confusion(first.tolist(), 0.5))


def test_the_divergence_is_computed_where_and_how_precisely_the_logits_are() -> None:
    first, second = logits(8, 4, 3)
    with torch.device("meta"):  # whatever does not ask for a device ends there, where it has no values
        value = symmetric_divergence(first, second)
    assert value.item() == pytest.approx(
        reference.symmetric_divergence(first.tolist(), second.tolist(), double_softmax=False)
    )
    assert symmetric_divergence(first.bfloat16(), second.bfloat16()).dtype == torch.bfloat16


# What they refuse


def test_they_refuse_what_does_not_fit_together_and_say_why() -> None:
    some, other, none = torch.ones(3, 4), torch.ones(3, 5), torch.ones(0, 4)
    for loss in (absolute_disagreement, symmetric_divergence, masked_consistency, consistency_balance):
        with pytest.raises(ValueError, match=r"same shape \(samples, classes\), got \(3, 4\) and \(3, 5\)"):
            loss(some, other)
        with pytest.raises(ValueError, match=r"^Both predictions need logits of the same shape"):
            loss(some[0], some[0])
        with pytest.raises(ValueError, match=r"^The batch is empty; at least one sample is needed\.$"):
            loss(none, none)
    for confusion in (domain_confusion, classwise_domain_confusion):
        for sides in ((some, none), (none, some)):
            with pytest.raises(ValueError, match=r"^Domain confusion needs at least one sample of each domain\.$"):
                confusion(*sides)
    for sides in ((some, other), (some, some[:, 0]), (some[:, 0], some), (some[:, 0], some[:, 0])):
        shapes = " and ".join(str(tuple(side.shape)) for side in sides)
        with pytest.raises(ValueError, match=f"with the same classes, got {re.escape(shapes)}\\."):
            classwise_domain_confusion(*sides)
    with pytest.raises(ValueError, match="at least one sample"):
        class_balance(none)
    for wrong in (none, some[0]):
        shape = re.escape(str(tuple(wrong.shape)))
        with pytest.raises(ValueError, match=rf"needs logits of shape \(samples, classes\), got {shape}\."):
            minimum_class_confusion(wrong)
    with pytest.raises(ValueError, match="temperature must be positive"):
        minimum_class_confusion(some, temperature=0.0)
    with pytest.raises(ValueError, match="choose one of bce, log, bug"):
        consistency_balance(some, some, variant="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose element or batch"):
        symmetric_divergence(some, some, reduction="sum")  # type: ignore[arg-type]
