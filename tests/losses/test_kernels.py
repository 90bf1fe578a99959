"""Distances that stay right far from the origin, and the mixture of Gaussians."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from math import exp
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from candapt.losses import Mixture, gaussian_mixture, kernels, maximum_mean_discrepancy, squared_distances

quick = settings(derandomize=True, deadline=None, max_examples=30)


def random_rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@given(
    n=st.integers(1, 5),
    m=st.integers(1, 5),
    dim=st.integers(1, 40),
    leading=st.sampled_from([(), (3,), (2, 3)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@quick
def test_distances_across_equal_the_sum_of_squared_differences(
    n: int, m: int, dim: int, leading: tuple[int, ...], dtype: torch.dtype
) -> None:
    a, b = random_rows(*leading, n, dim, dtype=dtype), random_rows(*leading, m, dim, seed=1, dtype=dtype)
    expected = (a[..., :, None, :] - b[..., None, :, :]).square().sum(-1)
    torch.testing.assert_close(squared_distances(a, b), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_distances_within_equal_those_across(n: int, dtype: torch.dtype) -> None:
    a = random_rows(n, 9, dtype=dtype)
    torch.testing.assert_close(squared_distances(a), squared_distances(a, a))
    assert (squared_distances(a).diagonal() == 0).all()
    assert torch.equal(squared_distances(a), squared_distances(a).mT)


def test_leading_dimensions_broadcast_forward_and_backward() -> None:
    a, b = random_rows(4, 1, 2, 3).requires_grad_(), random_rows(5, 2, 3, seed=1).requires_grad_()
    assert squared_distances(a, b).shape == (4, 5, 2, 2)
    assert torch.autograd.gradcheck(squared_distances, (a, b))


def test_derivatives_of_first_and_second_order_agree_with_finite_differences() -> None:
    a, b = random_rows(3, 4).requires_grad_(), random_rows(2, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(squared_distances, (a, b))
    assert torch.autograd.gradcheck(squared_distances, (a,))
    assert torch.autograd.gradgradcheck(squared_distances, (a, b))
    assert torch.autograd.gradgradcheck(squared_distances, (a,))


def counted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    """The function, which then also notes that it was called."""
    return lambda *arguments, **options: calls.append(arguments) or function(*arguments, **options)


@pytest.mark.parametrize("asks", [(True, False), (False, True), (True, True)])
def test_only_the_side_that_asks_receives_a_gradient(asks: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(kernels, "_pull", counted(kernels._pull, made))
    a, b = random_rows(3, 4).requires_grad_(asks[0]), random_rows(2, 4, seed=1).requires_grad_(asks[1])
    squared_distances(a, b).sum().backward()
    assert [x.grad is not None for x in (a, b)] == list(asks)
    assert len(made) == sum(asks)  # the other one is not even computed
    for x, y in ((a, b), (b, a)):
        if x.grad is not None:
            torch.testing.assert_close(x.grad, 2 * (len(y) * x - y.sum(0)).detach())


@pytest.mark.parametrize("n", [6, 40])  # torch takes the shortcut from 26 rows on
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_a_tight_cluster_far_from_the_origin_keeps_its_distances(offset: float, n: int) -> None:
    a = random_rows(n, 512, dtype=torch.float32) + offset
    exact = squared_distances(a.double())
    for distances in (squared_distances(a), squared_distances(a, a)):
        torch.testing.assert_close(distances.double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_the_gradient_stays_right_far_from_the_origin(offset: float, across: bool) -> None:
    a = random_rows(6, 512, dtype=torch.float32) + offset
    weights = random_rows(6, 6, seed=2, dtype=torch.float32)
    gradients = []
    for rows in (a.clone().requires_grad_(), a.double().requires_grad_()):
        distances = squared_distances(rows, rows.detach().flip(0)) if across else squared_distances(rows)
        (distances * weights.to(rows.dtype)).sum().backward()
        assert rows.grad is not None
        gradients.append(rows.grad.double())
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_centered_distances_are_right_relative_to_their_mean(offset: float) -> None:
    rows = (random_rows(20, 300) + offset).float()
    exact, weights = squared_distances(rows.double()), random_rows(20, 20, seed=1)
    a, b = rows.clone().requires_grad_(), rows.double().requires_grad_()
    distances = kernels.centered_distances(a)
    torch.testing.assert_close(distances.double(), exact, rtol=0, atol=1e-6 * float(exact.mean()))
    (distances * weights.float()).sum().backward()
    (squared_distances(b) * weights).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    torch.testing.assert_close(a.grad.double(), b.grad, rtol=0, atol=1e-5 * float(b.grad.abs().max()))


def test_a_discrepancy_ignores_what_centered_distances_lose() -> None:
    """Two tight clusters far apart: distances inside them are lost in that of the clusters, and so in its bandwidth."""
    clusters = [(1e-3 * random_rows(10, 300, seed=n) + 100 * n).float() for n in range(2)]
    fast, slow = (list(map(convert, clusters)) for convert in (torch.Tensor.float, torch.Tensor.double))
    assert float(maximum_mean_discrepancy(*fast)) == pytest.approx(float(maximum_mean_discrepancy(*slow)), rel=1e-5)


def test_coinciding_rows_have_distance_and_gradient_zero() -> None:
    a = torch.ones(3, 4, requires_grad=True)
    for distances in (squared_distances(a), squared_distances(a, a)):
        (gradient,) = torch.autograd.grad(distances.sum(), a)
        assert (distances == 0).all()
        assert (gradient == 0).all()


def test_the_mixture_sums_kernels_from_a_quarter_to_four_times_the_bandwidth() -> None:
    value = gaussian_mixture(torch.tensor(3.0, dtype=torch.float64), 2.0)
    assert value.item() == pytest.approx(sum(exp(-3 / gamma) for gamma in (0.5, 1, 2, 4, 8)))


@pytest.mark.parametrize(
    ("kernels", "ratio", "gammas"), [(1, 2.0, [1.68]), (2, 3.0, [0.56, 1.68]), (3, 2.0, [0.84, 1.68, 3.36])]
)
def test_number_and_ratio_of_the_kernels(kernels: int, ratio: float, gammas: list[float]) -> None:
    value = gaussian_mixture(torch.tensor(1.0, dtype=torch.float64), 1.68, kernels=kernels, ratio=ratio)
    assert value.item() == pytest.approx(sum(exp(-1 / gamma) for gamma in gammas))


def test_exponents_beyond_the_clips_are_constant() -> None:
    distances = torch.tensor([0.0, 1e-9, 1.0, 1e9], dtype=torch.float64, requires_grad=True)
    values = gaussian_mixture(distances, 1.0)
    values.sum().backward()
    assert values.tolist()[:2] == pytest.approx([5 * exp(-1e-5)] * 2, abs=1e-15)
    assert values[3] == 0
    assert distances.grad is not None
    assert distances.grad[2] < 0
    assert (distances.grad[[0, 1, 3]] == 0).all()


def test_bandwidths_have_a_floor_each_and_take_no_gradient() -> None:
    bandwidth = torch.tensor(2e-5, dtype=torch.float64, requires_grad=True)
    distance = torch.tensor(1e-5, dtype=torch.float64, requires_grad=True)
    value = gaussian_mixture(distance, bandwidth)
    assert value.item() == pytest.approx(sum(exp(-1e-5 / gamma) for gamma in (1e-5, 1e-5, 2e-5, 4e-5, 8e-5)))
    value.backward()
    assert bandwidth.grad is None
    assert distance.grad is not None


def test_kernels_have_the_precision_of_the_distances() -> None:
    exact = gaussian_mixture(torch.tensor(3.0, dtype=torch.float64), 0.7)
    assert exact.item() == pytest.approx(sum(exp(-3 / (0.7 * factor)) for factor in (0.25, 0.5, 1, 2, 4)), rel=1e-14)
    single = gaussian_mixture(torch.tensor(3.0), torch.tensor(0.7, dtype=torch.float64))
    assert single.dtype == torch.float32


def test_everything_is_made_where_the_features_are() -> None:
    a = random_rows(3, 4).requires_grad_()
    with torch.device("meta"):  # whatever does not ask for a device ends there, where it has no values
        value = gaussian_mixture(squared_distances(a), 2.0) + gaussian_mixture(
            squared_distances(a, a), a.detach()[:, 0]
        )
        (gradient,) = torch.autograd.grad(value.sum(), a)
    assert value.device == gradient.device == a.device
    assert gradient.isfinite().all()


def test_a_bandwidth_may_have_more_dimensions_than_the_distances() -> None:
    values = gaussian_mixture(torch.ones(3), torch.ones(2, 1))
    assert values.shape == (2, 3)


@pytest.mark.parametrize("wrong", [{"kernels": 0}, {"ratio": 0.0}, {"bandwidth": 0.0}])
def test_a_mixture_without_kernels_or_bandwidth_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Mixture(**wrong)  # type: ignore[arg-type]


def test_small_ratios_and_bandwidths_are_allowed_and_a_mixture_stays_as_it_is() -> None:
    mixture = Mixture(kernels=1, ratio=0.5, bandwidth=0.5)
    assert (mixture.kernels, mixture.ratio, mixture.bandwidth) == (1, 0.5, 0.5)
    with pytest.raises(FrozenInstanceError):
        mixture.kernels = 2  # type: ignore[misc]


def test_devices_without_pdist_and_double_precision_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results, vectorized = [], []
    monkeypatch.setattr(torch, "pdist", counted(torch.pdist, vectorized))
    assert kernels._gradient_dtype(torch.ones(1)) == torch.float64
    assert kernels._gradient_dtype(torch.ones(1, device="meta")) == torch.float32
    for devices in (("cpu",), ()):
        monkeypatch.setattr(kernels, "FULL_DEVICES", devices)
        a = random_rows(5, 9, dtype=torch.float32).requires_grad_()
        distances = squared_distances(a)
        (gradient,) = torch.autograd.grad(distances.square().sum(), a)
        results.append((distances, gradient))
        assert len(vectorized) == 1  # by the first one only
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bandwidth", [3.0, 4e-5, 3.9e-5, 1e-7, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_exponential_and_its_powers_are_the_mixture_and_its_slope(bandwidth: float, dtype: torch.dtype) -> None:
    shares = torch.tensor([0.0, 1e-7, 1e-3, 0.3, 1.0, 7.0, 1e3, 1e9], dtype=dtype)
    distances = (shares * max(bandwidth, 1e-5)).requires_grad_()
    widths = torch.full((2, 1), bandwidth, dtype=dtype)
    values, slopes = kernels.mixture_and_slope(distances.detach(), widths)
    expected = gaussian_mixture(distances, widths)
    (slope,) = torch.autograd.grad(expected.sum(), distances)
    precision = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(values, expected.detach(), rtol=precision, atol=precision)
    torch.testing.assert_close(slopes.sum(0), slope, rtol=precision, atol=precision * float(slope.abs().max()))
