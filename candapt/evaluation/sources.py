"""Which of several sources help: judged without target labels, by features that no adaptation has touched."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from candapt.evaluation.reference import Reference, fit_classifier

LEAST = 0.5  # a source helps if its agreement is at least this share of the best source's


@dataclass(frozen=True)
class Contribution:
    """What one source says of the target, beside what all of them together led to."""

    name: str
    agreement: float  # share of the target on which a plain classifier of this source alone gives the final label
    helps: bool

    @property
    def sentence(self) -> str:
        """Advice for the log and the page; empty for a source that helps."""
        if self.helps:
            return ""
        return (
            f"The source {self.name!r} does not seem to help: a plain classifier trained on it alone agrees with only "
            f"{self.agreement:.0%} of the predictions; try a run without it."
        )

    def describe(self) -> dict[str, Any]:
        """The entry in `summary.json`."""
        return asdict(self) | {"sentence": self.sentence}


def contributions(
    reference: Reference, origins: Tensor, predictions: Tensor, names: Sequence[str]
) -> list[Contribution]:
    """How far each source by itself agrees with the predictions for the target.

    Args:
        reference: both domains as untouched features show them.
        origins: number of the source of each sample in the reference's bank of source samples, shape (s,).
        predictions: predicted class of each target sample, shape (n,).
        names: of the sources.
    """
    final, classes = predictions[reference.target_rows], reference.weights.shape[1]
    agreements = []
    for number in range(len(names)):
        own = origins == number
        weights, bias = fit_classifier(reference.source[own], reference.source_labels[own], classes)
        alone = (reference.target @ weights * reference.target.shape[1] ** 0.5 + bias).argmax(1)
        agreements.append(float((alone == final).float().mean()))
    least = LEAST * max(agreements)
    return [Contribution(name, each, each >= least) for name, each in zip(names, agreements, strict=True)]
