"""An estimate of the accuracy on the target, without a label: how far different views of it agree, calibrated.

Agreements say how often a classifier can be right at most, and tend to be too good by about the same in similar
situations. The log odds of the accuracy are therefore taken as a weighted sum of the log odds of the scores, with
weights fitted on runs whose accuracy is known: all methods on Office-31 features (`python -m benchmarks.estimate`).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Formula:
    """Weights of scores for one kind of network."""

    bias: float
    weights: Mapping[str, float]
    """By the names of `SCORES`."""
    margin: float
    """Nine of ten estimates were off by less."""


@dataclass(frozen=True)
class Estimate:
    """A guess and its range."""

    value: float
    low: float
    high: float
    method: str
    """How it was made."""

    @property
    def sentence(self) -> str:
        """It in words."""
        return (
            f"Estimated accuracy on the target: {self.value:.0%}, probably between {self.low:.0%} and {self.high:.0%}; "
            "without labels this is a guess."
        )

    def describe(self) -> dict[str, Any]:
        """As it stands in `summary.json`."""
        return asdict(self)


FORMULAS = {
    "pretrained": Formula(bias=-0.554, weights={"neighbor_information": 0.913, "first_agreement": 0.672}, margin=0.067),
    "from scratch": Formula(bias=-0.219, weights={"agreement": 0.459, "class_ami": 0.266}, margin=0.161),
}
"""By whether features mean something before training: only then are neighbors and clusters of the start asked."""


def estimate_accuracy(record: Mapping[str, float | int], *, starts_at_random: bool, doubtful: bool) -> Estimate | None:
    """Estimate from a round's record; None if it lacks a score.

    Args:
        record: what is known of the round, with scores as `score_NAME`.
        starts_at_random: whether features meant nothing before training.
        doubtful: whether the alarm spoke: agreement then proves little, and the range goes down to 0.
    """
    kind = "from scratch" if starts_at_random else "pretrained"
    formula = FORMULAS[kind]
    scores = {name: record.get(f"score_{name}") for name in formula.weights}
    known = {name: value for name, value in scores.items() if value is not None}
    if len(known) < len(scores):
        return None
    total = formula.bias + sum(formula.weights[name] * log_odds(value) for name, value in known.items())
    value = 1 / (1 + math.exp(-total))
    low = 0.0 if doubtful else max(0.0, value - formula.margin)
    method = f"weighted log odds of {', '.join(formula.weights)}; calibrated on Office-31 ({kind})"
    return Estimate(value, low, min(1.0, value + formula.margin), method)


def log_odds(share: float) -> float:
    """Log odds of a share, which is kept away from 0 and 1 where they are infinite.

    >>> log_odds(0.5)
    0.0
    """
    share = min(max(share, 0.02), 0.995)
    return math.log(share / (1 - share))
