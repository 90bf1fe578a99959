"""MMD and joint MMD against known numbers and a loop over pairs."""

from math import exp
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from candapt.losses import (
    JAN_MIXTURES,
    Mixture,
    classwise_mmd,
    joint_maximum_mean_discrepancy,
    maximum_mean_discrepancy,
    mmd,
)
from tests.references import discrepancies as reference

quick = settings(derandomize=True, deadline=None, max_examples=25)
ESTIMATORS = ["biased", "unbiased", "linear"]


def known_layers() -> tuple[list[Tensor], list[Tensor]]:
    i = torch.arange(7, dtype=torch.float64)[:, None]
    j = torch.arange(4, dtype=torch.float64)
    source, target = torch.sin(0.7 * i + 0.3 * j + 0.1), torch.cos(0.5 * i - 0.2 * j)
    return [source, (2 * source[:, :3]).softmax(1)], [target, (2 * target[:, :3]).softmax(1)]


def samples(seed: int, n: int, m: int, dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    source = torch.randn(n, dim, generator=random, dtype=torch.float64)
    target = torch.randn(m, dim, generator=random, dtype=torch.float64) + 0.5
    return source.to(dtype), target.to(dtype)


def test_they_give_the_numbers_of_the_authors_code() -> None:
    assert maximum_mean_discrepancy(*known_layers()).item() == pytest.approx(2.142775091435608, abs=1e-9)
    assert joint_maximum_mean_discrepancy(*known_layers()).item() == pytest.approx(6.906203796569601, abs=1e-9)


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 5),
    m=st.integers(2, 5),
    dim=st.integers(1, 6),
    estimator=st.sampled_from(ESTIMATORS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    joint=st.booleans(),
)
@quick
def test_value_and_gradient_equal_the_loop_over_pairs(
    seed: int, n: int, m: int, dim: int, estimator: str, dtype: torch.dtype, joint: bool
) -> None:
    m = n if estimator == "linear" else m
    inputs = samples(seed, n, m, dim, dtype)
    fast = [x.clone().requires_grad_() for x in inputs]
    slow = [x.double().requires_grad_() for x in inputs]
    ours = joint_maximum_mean_discrepancy if joint else maximum_mean_discrepancy
    value = ours(*([x, x.tanh()] for x in fast), estimator=estimator)  # type: ignore[arg-type]
    pairs = [[x, x.tanh()] for x in slow]
    if joint:
        expected = reference.joint_mmd(*pairs, estimator)
    else:
        expected = sum(reference.estimated_mmd(s, t, estimator) for s, t in zip(*pairs, strict=True))
    precision = 1e-10 if dtype == torch.float64 else 1e-4
    assert value.dtype == dtype
    assert value.item() == pytest.approx(expected.item(), abs=precision)
    gradients, right = torch.autograd.grad(value, fast), torch.autograd.grad(expected, slow)
    for gradient, wanted in zip(gradients, right, strict=True):
        torch.testing.assert_close(gradient.double(), wanted, atol=precision, rtol=precision)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_kernels_of_jan(estimator: str) -> None:
    source, target = samples(0, 4, 4, 3)
    layers = [source, source.softmax(1)], [target, target.softmax(1)]
    value = joint_maximum_mean_discrepancy(*layers, estimator=estimator, mixtures=JAN_MIXTURES)  # type: ignore[arg-type]
    expected = reference.joint_mmd(*layers, estimator, fixed={1: (1.68, (1.0,))})
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_part_of_a_mixture_counts(estimator: str) -> None:
    source, target = samples(6, 4, 4, 3)
    value = maximum_mean_discrepancy(
        source, target, estimator=estimator, mixtures=Mixture(kernels=3, ratio=5.0, bandwidth=0.7)
    )  # type: ignore[call-overload]
    expected = reference.joint_mmd([source], [target], estimator, fixed={0: (0.7, (0.2, 1.0, 5.0))})
    torch.testing.assert_close(value, expected)


def test_every_estimator_that_can_be_asked_for_is_there() -> None:
    assert list(get_args(mmd.Estimator)) == list(mmd._ESTIMATORS) == ESTIMATORS


def test_one_mixture_serves_all_layers() -> None:
    source, target = known_layers()
    mixture = Mixture(kernels=1, bandwidth=2.0)
    value = maximum_mean_discrepancy(source, target, mixtures=mixture)
    torch.testing.assert_close(value, maximum_mean_discrepancy(source, target, mixtures=[mixture, mixture]))
    assert value != maximum_mean_discrepancy(source, target)


def test_two_single_samples_in_closed_form() -> None:
    # One pair at squared distance 4, which is also the bandwidth: exponents 4, 2, 1, 1/2, 1/4.
    value = maximum_mean_discrepancy(
        torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
    )
    assert value.item() == pytest.approx(10 * exp(-1e-5) - 2 * sum(exp(-x) for x in (4, 2, 1, 0.5, 0.25)))


def test_it_is_the_discrepancy_of_one_class() -> None:
    source, target = samples(1, 4, 6, 5)
    matrix = classwise_mmd(source, target, torch.zeros(4).long(), torch.zeros(6).long())
    torch.testing.assert_close(maximum_mean_discrepancy(source, target), matrix[0, 0])


def test_a_joint_discrepancy_of_one_layer_is_the_plain_one() -> None:
    source, target = samples(2, 4, 6, 5)
    assert torch.equal(joint_maximum_mean_discrepancy(source, target), maximum_mean_discrepancy([source], [target]))


@pytest.mark.parametrize("ours", [maximum_mean_discrepancy, joint_maximum_mean_discrepancy])
@pytest.mark.parametrize("estimator", ["biased", "linear"])
def test_identical_domains_have_no_discrepancy(ours, estimator: str) -> None:  # type: ignore[no-untyped-def]
    source, _ = samples(3, 6, 6, 4)
    assert ours([source, source.tanh()], [source, source.tanh()], estimator=estimator).abs() < 1e-12


def test_the_unbiased_estimate_is_zero_on_average_for_equal_distributions() -> None:
    random = torch.Generator().manual_seed(0)
    draws = torch.randn(400, 2, 6, 3, generator=random)
    values = torch.stack([maximum_mean_discrepancy(s, t, estimator="unbiased") for s, t in draws])
    assert values.mean().abs() < 4 * values.std() / 20  # four standard errors
    biased = torch.stack([maximum_mean_discrepancy(s, t) for s, t in draws])
    assert biased.mean() > 0.5


@given(seed=st.integers(0, 10_000), offset=st.floats(-50, 50), scale=st.floats(0.1, 100))
@quick
def test_moving_scaling_and_shuffling_change_nothing(seed: int, offset: float, scale: float) -> None:
    source, target = samples(seed, 5, 4, 3)
    moved = maximum_mean_discrepancy(scale * (source.flip(0) + offset), scale * (target + offset))
    torch.testing.assert_close(moved, maximum_mean_discrepancy(source, target), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_descending_brings_the_domains_together(estimator: str) -> None:
    source, target = samples(4, 30, 30, 2)
    target = (target + 3).requires_grad_()
    before = (target.mean(0) - source.mean(0)).norm()
    maximum_mean_discrepancy(source, target, estimator=estimator).backward()  # type: ignore[arg-type]
    assert target.grad is not None
    after = (target - target.grad).mean(0) - source.mean(0)
    assert after.norm() < before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    source, target = samples(5, 4, 4, 512, dtype)
    for estimator in ESTIMATORS:
        value = maximum_mean_discrepancy(50 * source, 50 * target, estimator=estimator)  # type: ignore[arg-type]
        expected = maximum_mean_discrepancy((50 * source).float(), (50 * target).float(), estimator=estimator)  # type: ignore[arg-type]
        assert value.dtype == torch.float32
        assert torch.equal(value, expected)


def test_they_refuse_what_does_not_fit_together_and_say_why() -> None:
    one, three, four = torch.ones(1, 2), torch.ones(3, 2), torch.ones(4, 2)
    for ours in (maximum_mean_discrepancy, joint_maximum_mean_discrepancy):
        with pytest.raises(ValueError, match="choose one of biased, unbiased, linear"):
            ours(three, four, estimator="best")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="needs equally many samples, got 3 and 4"):
            ours(three, four, estimator="linear")
        for sides, counts in (((one, four), "1 and 4"), ((four, one), "4 and 1")):
            with pytest.raises(ValueError, match="estimator needs two") as caught:
                ours(*sides, estimator="unbiased")
            assert str(caught.value) == (
                f"The unbiased estimator needs two samples of each domain, got {counts}; "
                'use estimator="biased" for single samples.'
            )
        ours(torch.ones(2, 2), torch.ones(2, 2), estimator="unbiased")
        with pytest.raises(ValueError, match="There are 1 layers, but mixtures has 2 entries"):
            ours(three, four, mixtures=JAN_MIXTURES)
        with pytest.raises(ValueError, match="source batch is empty"):
            ours(torch.ones(0, 2), four)
        with pytest.raises(ValueError, match="2 features in the source, 3 in the target"):
            ours(three, torch.ones(3, 3))


@pytest.mark.parametrize("bandwidth", [None, 1e-3, 1.0, 300.0, 1e6])
@pytest.mark.parametrize("spread", [0.01, 1.0, 1e3])
def test_bandwidths_of_any_width_give_the_same_as_direct_distances(bandwidth: float | None, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = (spread * torch.randn(12, 40, generator=generator) + shift * spread for shift in (0, 0.3))
    mixture = Mixture(bandwidth=bandwidth)
    exact = maximum_mean_discrepancy(source.double(), target.double(), mixtures=mixture)
    assert float(maximum_mean_discrepancy(source, target, mixtures=mixture)) == pytest.approx(float(exact), abs=2e-5)
