"""Intervals against scipy, against slow references, and in simulation."""

from collections import Counter
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from candapt.review.interval import Stratum, accuracy_interval, most_likely, right_counts


@st.composite
def a_stratum(draw: st.DrawFn, largest: int = 60) -> Stratum:
    size = draw(st.integers(1, largest))
    judged = draw(st.integers(1, size))
    return Stratum(size, judged, draw(st.integers(0, judged)))


class TestOneStratum:
    @pytest.mark.parametrize("right", [0, 1, 25, 46, 50])
    def test_of_a_large_target_it_is_that_of_clopper_and_pearson(self, right: int) -> None:
        expected = stats.binomtest(right, 50).proportion_ci(method="exact")
        interval = accuracy_interval([Stratum(10**7, 50, right)])
        assert interval.value == right / 50
        assert interval[1:] == pytest.approx((expected.low, expected.high), abs=2e-4)

    @given(a_stratum())
    @settings(max_examples=40, deadline=None)
    def test_it_holds_exactly_the_totals_that_no_tail_refuses(self, stratum: Stratum) -> None:
        size, judged, right = stratum
        totals = np.arange(size + 1)
        at_least = stats.hypergeom.sf(right - 1, size, totals, judged)
        at_most = stats.hypergeom.cdf(right, size, totals, judged)
        # Limits are found to 1e-4 of the accuracy, and one more right sample changes a tail by at most 1.
        margin = 1e-4 * size
        sure, possible = (
            set(totals[(at_least > limit) & (at_most > limit)].tolist()) for limit in (0.025 + margin, 0.025 - margin)
        )
        _, low, high = accuracy_interval([stratum])
        inside = set(totals[(totals / size >= low - 1e-4) & (totals / size <= high + 1e-4)].tolist())
        assert sure <= inside <= possible

    def test_it_covers_for_every_accuracy(self) -> None:
        size, judged = 60, 15
        intervals = [accuracy_interval([Stratum(size, judged, right)]) for right in range(judged + 1)]
        for total in range(size + 1):
            chances = stats.hypergeom.pmf(np.arange(judged + 1), size, total, judged)
            holds = [each.low - 1e-9 <= total / size <= each.high + 1e-9 for each in intervals]
            assert chances @ holds >= 0.95

    def test_it_narrows(self) -> None:
        widths = [
            high - low for _, low, high in (accuracy_interval([Stratum(900, n, n * 9 // 10)]) for n in (50, 100, 400))
        ]
        assert widths == sorted(widths, reverse=True)

    def test_other_levels(self) -> None:
        stratum = [Stratum(1000, 50, 40)]
        _, low, high = accuracy_interval(stratum)
        _, lower, higher = accuracy_interval(stratum, level=0.99)
        assert lower < low < high < higher


class TestSeveralStrata:
    @given(st.lists(a_stratum(), min_size=1, max_size=5))
    @settings(max_examples=60, deadline=None)
    def test_limits_are_on_both_sides_and_possible(self, strata: list[Stratum]) -> None:
        value, low, high = accuracy_interval(strata)
        size = sum(each.size for each in strata)
        assert value == pytest.approx(sum(each.size * each.right / each.judged for each in strata) / size)
        least = sum(each.right for each in strata) / size
        most = 1 - sum(each.judged - each.right for each in strata) / size
        assert min(least, value) - 1e-9 <= low <= value + 1e-9
        assert value - 1e-9 <= high <= max(most, value) + 1e-9

    @pytest.mark.parametrize("right", [0, 12])
    def test_all_right_or_none_has_a_width(self, right: int) -> None:
        _, low, high = accuracy_interval([Stratum(300, 12, right)] * 4)
        one = accuracy_interval([Stratum(1200, 48, 4 * right)])
        assert (low, high) == pytest.approx(one[1:], abs=0.003)
        assert high - low > 0.07

    def test_what_is_judged_completely_has_none(self) -> None:
        assert accuracy_interval([Stratum(7, 7, 5), Stratum(3, 3, 3)]) == pytest.approx((0.8, 0.8, 0.8))

    def test_differing_strata_narrow_it(self) -> None:
        strata = [Stratum(500, 25, 10), Stratum(500, 25, 25)]
        _, low, high = accuracy_interval(strata)
        _, plain_low, plain_high = accuracy_interval([Stratum(1000, 50, 35)])
        assert high - low < 0.85 * (plain_high - plain_low)

    def test_the_limits_are_where_the_tail_is_a_fortieth(self) -> None:
        """All outcomes are listed, and the accuracies within the strata are found by an optimizer of scipy."""
        strata = [Stratum(400, 6, 3), Stratum(700, 8, 7), Stratum(200, 5, 5)]
        size, judged, right = np.array(strata).T
        _, low, high = accuracy_interval(strata)
        weight = size / size.sum()
        seen = (weight * right / judged).sum()
        outcomes = np.array(list(product(*(range(n + 1) for n in judged))))
        estimates = (weight * outcomes / judged).sum(1)
        for accuracy, upper in ((low, False), (high, True)):
            shares = constrained_reference(accuracy, size, judged, right)
            totals = size * shares
            chances = np.ones(len(outcomes))
            for h in range(3):
                below, part = int(totals[h]), totals[h] % 1
                around = (below, min(below + 1, size[h]))  # the optimizer may end where all of a stratum are right
                pmf = [stats.hypergeom.pmf(outcomes[:, h], size[h], whole, judged[h]) for whole in around]
                chances *= (1 - part) * pmf[0] + part * pmf[1]
            tail = chances[estimates <= seen + 1e-9 if upper else estimates >= seen - 1e-9].sum()
            assert tail == pytest.approx(0.025, abs=5e-4)

    @pytest.mark.parametrize(
        "strata",
        [[], [Stratum(5, 0, 0)], [Stratum(5, 6, 1)], [Stratum(5, 3, 4)], [Stratum(5, 3, -1)]],
    )
    def test_impossible_counts_are_refused(self, strata: list[Stratum]) -> None:
        with pytest.raises(ValueError, match="strata must have"):
            accuracy_interval(strata)


def constrained_reference(accuracy: float, size: np.ndarray, judged: np.ndarray, right: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """The most likely accuracies within strata by a general optimizer."""
    weight, gain = size / size.sum(), (size - 1) / (size - judged)

    def loss(shares: np.ndarray) -> float:  # type: ignore[type-arg]
        inside = np.clip(shares, 1e-12, 1 - 1e-12)
        return float(-(gain * (right * np.log(inside) + (judged - right) * np.log(1 - inside))).sum())

    bounds = list(zip(right / size, 1 - (judged - right) / size, strict=True))
    constraint = {"type": "eq", "fun": lambda shares: (weight * shares).sum() - accuracy}
    start = np.full(len(size), accuracy)
    found = optimize.minimize(loss, start, bounds=bounds, constraints=[constraint], options={"ftol": 1e-14})
    return np.asarray(found.x)


@pytest.mark.parametrize("accuracy", [0.3, 0.6, 0.78, 0.9, 0.97])
def test_accuracies_within_strata(accuracy: float) -> None:
    size, judged, right = np.array([[400, 12, 5], [700, 15, 13], [200, 9, 9]]).T
    found = most_likely(np.array([accuracy]), size, judged, right)[0]
    assert found @ size / size.sum() == pytest.approx(accuracy, abs=1e-9)
    assert found == pytest.approx(constrained_reference(accuracy, size, judged, right), abs=2e-3)


@given(a_stratum(), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_counts_of_right_answers(stratum: Stratum, share: float) -> None:
    size, judged, _ = stratum
    (chances,) = right_counts(size, judged, np.array([share]))
    assert chances.sum() == pytest.approx(1)
    assert chances @ np.arange(judged + 1) == pytest.approx(judged * share, abs=1e-6 * size)
    whole = round(size * share)
    (chances,) = right_counts(size, judged, np.array([whole / size]))
    expected = [comb(whole, k) * comb(size - whole, judged - k) / comb(size, judged) for k in range(judged + 1)]
    assert chances == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shares", [(0.5, 0.9, 1.0), (0.95, 1.0, 1.0)])
def test_stratified_intervals_cover(shares: tuple[float, ...]) -> None:
    """Every outcome of strata with these accuracies, weighted by how likely it is."""
    size, judged = 200, 10
    chances = [stats.hypergeom.pmf(np.arange(judged + 1), size, round(size * share), judged) for share in shares]
    covered: Counter[tuple[int, ...]] = Counter()
    for outcome in product(range(judged + 1), repeat=len(shares)):
        chance = np.prod([each[right] for each, right in zip(chances, outcome, strict=True)])
        if chance > 1e-5:
            covered[tuple(sorted(outcome))] += chance  # sizes are equal: the order does not matter
    total = 0.0
    for outcome, chance in covered.items():
        _, low, high = accuracy_interval([Stratum(size, judged, right) for right in outcome])
        total += chance * (low <= sum(shares) / len(shares) <= high)
    assert total >= 0.94
