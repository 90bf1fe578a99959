"""Measures a training with labels that the training does not have, and keeps the figures with its checkpoints."""

import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from candapt.benchmark.results import are_rounds
from candapt.data.domains import Domain, Side
from candapt.errors import UserError
from candapt.evaluation import metrics
from candapt.evaluation.scores import choose_round, describe_rule
from candapt.settings import LAST
from candapt.storage.files import write_json
from candapt.storage.provenance import code_digest
from candapt.storage.runs import versions
from candapt.storage.safe_reading import read_json
from candapt.training.callbacks import Callback
from candapt.training.checkpoint import MINUTES, Checkpoints
from candapt.training.loop import Training
from candapt.training.outputs import outputs_of
from candapt.training.state import Record

log = logging.getLogger(__name__)

RULE = "neighbor_information"  # the score that makes the label-free choice if the settings keep the last round
DIGITS = 6  # decimal places of stored scores
FILE = "measured.json"  # the measurements so far, and the identity of the cell


class Examiner(Callback):
    """Measures each round with true labels, which the training cannot see."""

    def __init__(
        self, truth: Tensor, measured: Domain | None, classes: Sequence[str], advance: Callable[[float], None]
    ) -> None:
        self.known = truth >= 0
        self.truth = truth[self.known]
        self.measured, self.classes, self.advance = measured, classes, advance
        self.rounds: list[dict[str, Any]] = []

    def on_round(self, training: Training, record: Record) -> None:
        """Measure the round."""
        logits = training.outputs.of(Side.TARGET).logits
        if self.measured is not None:
            batch_size = training.settings.training.evaluation_batch
            logits = outputs_of(training.method, self.measured, Side.TARGET, batch_size=batch_size).logits
        scores = {name: round(value, DIGITS) for name, value in record.items() if name.startswith("score_")}
        accuracies = self.measure(logits.argmax(1)[self.known])
        self.rounds.append({"round": record["round"], "warmup": record["warmup"], **scores, **accuracies})
        self.advance((int(record["round"]) + 1) / training.settings.rounds)

    def measure(self, predicted: Tensor) -> dict[str, Any]:
        """Accuracies of one round; with classes that of each class that occurs."""
        accuracies: dict[str, Any] = {
            "accuracy": metrics.accuracy(self.truth, predicted),
            "mean_class_accuracy": metrics.mean_class_accuracy(self.truth, predicted),
        }
        if self.classes:
            each = metrics.per_class_accuracy(self.truth, predicted, num_classes=len(self.classes)).tolist()
            pairs = zip(self.classes, each, strict=True)
            accuracies["class_accuracies"] = {name: value for name, value in pairs if not math.isnan(value)}
        return accuracies

    def outcome(self) -> dict[str, Any]:
        """The last round, the oracle's choice (the best one by true labels), and everything measured of each."""
        score = "mean_class_accuracy" if self.classes else "accuracy"
        curve = [measured[score] for measured in self.rounds]
        return {
            "last": _accuracies(self.rounds[-1]),
            "oracle": _accuracies(self.rounds[curve.index(max(curve))]),
            "oracle_curve": curve,
            "each_round": self.rounds,
        }


def choose(each_round: Sequence[Mapping[str, Any]], select: str) -> dict[str, Any]:
    """The accuracies of the round that is chosen without labels, and by which rule."""
    rule = RULE if select == LAST else select
    return {"rule": describe_rule(rule), **_accuracies(each_round[choose_round(each_round, rule)])}


def _accuracies(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in measured.items() if name != "warmup" and not name.startswith("score_")}


class CellCheckpoints(Checkpoints):
    """Checkpoints of a cell in a folder of its own, with the measurements so far. A cell of a few minutes has none."""

    every_round = False

    def __init__(self, folder: Path, identity: Mapping[str, Any], examiner: Examiner) -> None:
        super().__init__(folder, minutes=MINUTES)
        self.identity = {**identity, "versions": versions(), "code": code_digest()}
        self.examiner = examiner

    def restore(self, training: Training) -> None:
        """Restore from the latest good checkpoint of this cell, if there is one; those of another are deleted."""
        rounds = self._measured()
        if rounds is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        super().restore(training)
        if len(rounds) < training.state.round:
            raise UserError(f"{str(self.folder)!r} is damaged: remove it to start the cell over.")
        self.examiner.rounds = rounds[: training.state.round]

    def save(self, training: Training) -> None:
        """Write a checkpoint; the measurements are written first, so that they are never behind it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, self.identity | {"rounds": self.examiner.rounds})
        super().save(training)

    def _measured(self) -> list[dict[str, Any]] | None:
        """The measurements of each round; None if there is nothing to resume from."""
        try:
            content = read_json(self.folder / FILE)
            rounds: list[dict[str, Any]] = content.pop("rounds")
        except (OSError, LookupError, ValueError):  # not begun, or killed before the first checkpoint
            return None
        if content != self.identity or not are_rounds(rounds):
            log.warning("%s was saved with other versions, settings or data: the cell starts over.", self.folder)
            return None
        return rounds
