"""Confidence intervals for the accuracy on a finite target, of which a person has judged a random sample.

A limit of the interval is the accuracy at which what was seen, or more extreme, just keeps a probability of half the
error. For a simple random sample this is the exact interval of Clopper and Pearson for draws without replacement. For a
stratified one, the accuracies within the strata are those that make what was seen most likely, given the accuracy of
the whole; with one stratum that is the same.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

LEVEL = 0.95  # how often an interval shall hold the true accuracy
STEPS = 2048  # steps of the grid on which weighted sums of counts are added up
POINTS = 12  # accuracies that one pass of the search for a limit tries
PASSES = 4  # each narrows the place of a limit by a factor of POINTS + 1
HALVINGS = 48  # of the search for the strain that leads to an accuracy

Array = np.ndarray[Any, Any]


class Stratum(NamedTuple):
    """A part of the target, and what is known of it."""

    size: int
    judged: int
    right: int


class Interval(NamedTuple):
    """An accuracy and its limits."""

    value: float
    low: float
    high: float


def accuracy_interval(strata: Sequence[Stratum], level: float = LEVEL) -> Interval:
    """The share of right predictions in all strata together, each weighted by its size, with limits.

    Args:
        strata: at least one; in each at least one sample was judged, drawn at random without replacement.
        level: probability that the interval holds the true accuracy, before the sample is drawn.

    Raises:
        ValueError: the counts are impossible, or nothing was judged in some stratum.

    >>> interval = accuracy_interval([Stratum(size=1000, judged=50, right=46)])
    >>> [round(each, 2) for each in interval]
    [0.92, 0.81, 0.98]
    """
    counts = np.array(strata, dtype=np.int64).reshape(-1, 3)
    size, judged, right = counts.T
    if len(counts) == 0 or (judged < 1).any() or (judged > size).any() or (right < 0).any() or (right > judged).any():
        raise ValueError(f"strata must have 0 <= right <= judged <= size and judged > 0, not {list(strata)}")
    problem = _Problem(size, judged, right)
    # What is not judged may all be wrong, or all be right.
    least, most = right.sum() / size.sum(), 1 - (judged - right).sum() / size.sum()
    error = (1 - level) / 2
    low = _search(problem, least, problem.estimate, error, upper=False) if right.any() else 0.0
    high = _search(problem, problem.estimate, most, error, upper=True) if (right < judged).any() else 1.0
    return Interval(float(problem.estimate), float(low), float(high))


class _Problem:
    """The counts as arrays, one entry per stratum, and what follows from them."""

    def __init__(self, size: Array, judged: Array, right: Array) -> None:
        self.size, self.judged, self.right = size, judged, right
        self.weight = size / size.sum()
        self.estimate = float((self.weight * right / judged).sum())
        # Places on the grid of the sums that each number of right answers adds.
        steps = STEPS - len(size)  # room for rounding up
        self.places = [
            np.rint(weight * np.arange(n + 1) / n * steps).astype(np.int64)
            for weight, n in zip(self.weight, judged.tolist(), strict=True)
        ]
        self.seen = int(sum(place[count] for place, count in zip(self.places, right.tolist(), strict=True)))


def _search(problem: _Problem, low: float, high: float, error: float, *, upper: bool) -> float:
    """The accuracy between two others at which the tail beyond what was seen has the probability `error`."""
    for _ in range(PASSES):
        edges = np.linspace(low, high, POINTS + 2)
        possible = _tail(problem, edges[1:-1], upper=upper) > error
        # Above the estimate, possible accuracies come first; below it, last.
        place = int(np.argmin([*possible, False])) if upper else int(np.argmax([*possible, True]))
        low, high = edges[place], edges[place + 1]
    return high if upper else low  # the wider end


def _tail(problem: _Problem, accuracies: Array, *, upper: bool) -> Array:
    """Probability, for each accuracy, of an estimate as low as what was seen (upper), or as high; shape (n,)."""
    if len(problem.size) == 1:  # no sum to add up
        chances = right_counts(int(problem.size[0]), int(problem.judged[0]), accuracies)
        seen = int(problem.right[0])
        return np.asarray((chances[:, : seen + 1] if upper else chances[:, seen:]).sum(axis=1))
    within = most_likely(accuracies, problem.size, problem.judged, problem.right)
    spectrum: Array | float = 1.0
    for place, size, judged, shares in zip(problem.places, problem.size, problem.judged, within.T, strict=True):
        chances = right_counts(int(size), int(judged), shares)
        density = np.zeros((len(accuracies), STEPS))
        for column, position in enumerate(place):  # several counts may share a position
            density[:, position] += chances[:, column]
        spectrum = spectrum * np.fft.rfft(density, axis=1)
    sums: Array = np.fft.irfft(spectrum, STEPS, axis=1)
    part = sums[:, : problem.seen + 1] if upper else sums[:, problem.seen :]
    return np.asarray(part.sum(axis=1))


def right_counts(size: int, judged: int, shares: Array) -> Array:
    """Probabilities of 0 to `judged` right answers in a sample without replacement, shape (n, judged + 1).

    Of `size` predictions a share is right, one for each row. Where that is no whole number of them, the two nearest
    whole numbers are mixed.
    """
    exact = np.clip(size * shares, 0, size)
    whole = np.floor(exact + 1e-9)
    part = np.clip(exact - whole, 0, 1)[:, None]
    above = np.minimum(whole + 1, size)
    return np.asarray((1 - part) * _hypergeometric(size, whole, judged) + part * _hypergeometric(size, above, judged))


def _hypergeometric(size: int, right: Array, judged: int) -> Array:
    drawn, right = np.arange(judged + 1), right[:, None]
    left, wrong = judged - drawn, size - right
    possible = (drawn <= right) & (left <= wrong)
    ways = _log_choices(right, np.minimum(drawn, right)) + _log_choices(wrong, np.minimum(left, wrong))
    return np.where(possible, np.exp(ways - _log_choices(size, judged)), 0.0)


def _log_choices(n: Array | int, k: Array | int) -> Array:
    return np.asarray(gammaln(np.add(n, 1)) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1))


def most_likely(accuracies: Array, size: Array, judged: Array, right: Array) -> Array:
    """The accuracies within the strata that make the counts most likely, given that of all; shape (n, strata).

    Each stratum counts as a binomial sample that is as informative as the one without replacement. With the strain l as
    Lagrange's factor, its accuracy p solves right / p - wrong / (1 - p) = l * weight, a quadratic equation; the strain
    is found by halving.
    """
    weight = size / size.sum()
    # Where all are judged, nothing is uncertain.
    gain = np.where(size > judged, (size - 1) / np.maximum(size - judged, 1), 1e9)
    n, x = judged * gain, right * gain
    down = (accuracies < (weight * right / judged).sum())[:, None]
    pulled = np.where(down, x, n - x)  # the outcome that the strain makes rarer
    least, most = right / size, 1 - (judged - right) / size

    def strained(strain: Array) -> Array:
        pull = np.exp(strain)[:, None] * weight
        root = np.sqrt(np.maximum((n + pull) ** 2 - 4 * pull * pulled, 0))
        share = 2 * pulled / (n + pull + root)
        return np.asarray(np.clip(np.where(down, share, 1 - share), least, most))

    low, high = np.full(len(accuracies), -8.0), np.full(len(accuracies), 30.0)  # logarithms of the strain
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_weak = ((weight * strained(middle)).sum(axis=1) > accuracies) == down[:, 0]
        low, high = np.where(too_weak, middle, low), np.where(too_weak, high, middle)
    return strained(high)
