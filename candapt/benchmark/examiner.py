"""Measures a training with labels that the training does not have."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from candapt.data.domains import Domain, Side
from candapt.evaluation import metrics
from candapt.evaluation.predict import outputs_of
from candapt.evaluation.selection import LAST, choose_round, describe_choice
from candapt.training.loop import Record, Training

RULE = "neighbor_information"
"""The score that shows what a label-free choice would give where the settings keep the last round."""
DIGITS = 6
"""Decimal places of stored scores."""


class Examiner:
    """Measures each round with true labels. It watches the training, which has no way to see what it finds."""

    def __init__(
        self, truth: Tensor, measured: Domain | None, classes: Sequence[str], advance: Callable[[float], None]
    ) -> None:
        self.known = truth >= 0
        self.truth = truth[self.known]
        self.measured = measured
        self.classes = classes
        self.advance = advance
        self.rounds: list[dict[str, Any]] = []

    @property
    def samples(self) -> int:
        """How many samples are measured: those of a class that the source has."""
        return len(self.truth)

    def on_step(self, done: int, planned: int) -> None:
        """Nothing is measured within a round."""

    def on_round(self, training: Training, record: Record) -> None:
        """Measure, after the target's statistics have been taken."""
        logits = training.embed(Side.TARGET).logits
        if self.measured is not None:
            batch_size = training.settings.training.evaluation_batch
            logits = outputs_of(training.method, self.measured, Side.TARGET, batch_size=batch_size).logits
        found = {name: value for name, value in record.items() if name.startswith("score_")}
        told = {"round": record["round"], "warmup": record["warmup"]}
        told |= {name: round(value, DIGITS) for name, value in found.items()}
        self.rounds.append(told | self.measure(logits.argmax(1)[self.known]))
        self.advance((int(record["round"]) + 1) / training.settings.rounds)

    def measure(self, predicted: Tensor) -> dict[str, Any]:
        """Accuracies of one round; with classes that of each which occurs."""
        told: dict[str, Any] = {
            "accuracy": metrics.accuracy(self.truth, predicted),
            "mean_class_accuracy": metrics.mean_class_accuracy(self.truth, predicted),
        }
        if self.classes:
            each = metrics.per_class_accuracy(self.truth, predicted, num_classes=len(self.classes)).tolist()
            pairs = zip(self.classes, each, strict=True)
            told["class_accuracies"] = {name: value for name, value in pairs if not math.isnan(value)}
        return told

    def outcome(self) -> dict[str, Any]:
        """The last round, the best one by labels, which is the oracle's, and all that is known of each."""
        score = "mean_class_accuracy" if self.classes else "accuracy"
        curve = [told[score] for told in self.rounds]
        best = max(range(len(curve)), key=curve.__getitem__)
        return {
            "last": _accuracies(self.rounds[-1]),
            "oracle": _accuracies(self.rounds[best]),
            "oracle_curve": curve,
            "each_round": self.rounds,
        }


def choose(each_round: Sequence[Mapping[str, Any]], select: str) -> dict[str, Any]:
    """The accuracies of the round that is chosen without labels, and by which rule."""
    rule = RULE if select == LAST else select
    return {"rule": describe_choice(rule), **_accuracies(each_round[choose_round(each_round, rule)])}


def _accuracies(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name != "warmup" and not name.startswith("score_")}
