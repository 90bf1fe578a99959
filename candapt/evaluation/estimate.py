"""An estimate of the accuracy on the target without labels: a calibrated sum of label-free scores.

Agreements bound how often a classifier can be right, and exceed its accuracy by about the same amount in similar
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
    weights: Mapping[str, float]  # by the names of `SCORES`
    margin: float  # nine of ten estimates were off by less


@dataclass(frozen=True)
class Estimate:
    """An estimated accuracy and its range."""

    value: float
    low: float
    high: float
    method: str  # how it was computed

    @property
    def sentence(self) -> str:
        """The estimate for the log."""
        return (
            f"Estimated accuracy on the target: {self.value:.0%}, probably between {self.low:.0%} and {self.high:.0%}; "
            "without labels this is a guess."
        )

    def describe(self) -> dict[str, Any]:
        """The entry in `summary.json`."""
        return asdict(self)


FORMULAS = {
    "pretrained": Formula(bias=-0.554, weights={"neighbor_information": 0.913, "first_agreement": 0.672}, margin=0.067),
    "from scratch": Formula(bias=-0.219, weights={"agreement": 0.459, "class_ami": 0.266}, margin=0.161),
}  # by whether features mean something before training: only then do neighbors and clusters from the start count


def estimate_accuracy(record: Mapping[str, float | int], *, starts_at_random: bool, doubtful: bool) -> Estimate | None:
    """Estimate from the scores in a round's record, `score_NAME`; None if it lacks one that the formula needs.

    If the alarm raised a warning, the result is `doubtful`: agreement then proves little, and the range starts at 0.
    """
    kind = "from scratch" if starts_at_random else "pretrained"
    formula = FORMULAS[kind]
    if any(record.get(f"score_{name}") is None for name in formula.weights):
        return None
    total = formula.bias + sum(weight * log_odds(record[f"score_{name}"]) for name, weight in formula.weights.items())
    value = 1 / (1 + math.exp(-total))
    low = 0.0 if doubtful else max(0.0, value - formula.margin)
    method = f"weighted log odds of {', '.join(formula.weights)}; calibrated on Office-31 ({kind})"
    return Estimate(value, low, min(1.0, value + formula.margin), method)


def log_odds(share: float) -> float:
    """Log odds of a share; it is clamped away from 0 and 1, where they are infinite.

    >>> log_odds(0.5)
    0.0
    """
    share = min(max(share, 0.02), 0.995)
    return math.log(share / (1 - share))
