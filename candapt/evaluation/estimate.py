"""An estimate of the accuracy on the target without labels: the mean of the calibrated confidence, with a range."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from candapt.evaluation.confidence import Kind, margins


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


def estimate_accuracy(confidence: Tensor, kind: Kind, *, doubtful: bool) -> Estimate:
    """The mean of the confidence, shape (n,); nine of ten measured runs of its kind were within the range.

    If there is a warning or a note, the result is `doubtful`: the range is that of such runs.
    """
    value, margin = float(confidence.mean()), margins()[kind]["doubtful" if doubtful else "good"]
    method = "mean of the calibrated confidence"
    return Estimate(value, max(0.0, value - margin), min(1.0, value + margin), method)
