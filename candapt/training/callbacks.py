"""Callbacks follow a training, such as a progress bar or checkpoints. They may raise to end it, but cannot steer it."""

import logging
from typing import TYPE_CHECKING, Self

from rich.progress import TaskID

from candapt.console import progress_bar
from candapt.training.state import Record

if TYPE_CHECKING:
    from candapt.training.loop import Training

log = logging.getLogger(__name__)


class Callback:
    """Does nothing; subclasses override what they need."""

    def on_embedded(self, done: int, total: int) -> None:
        """Called while frozen layers process the images: how many views are done."""

    def on_start(self, training: "Training") -> None:
        """Called before the first step, or before the first one after a checkpoint."""

    def on_step(self, training: "Training", done: int, planned: int) -> None:
        """Called after every step: steps done and planned in this round."""

    def on_round(self, training: "Training", record: Record) -> None:
        """Called after every round with its record."""


class TrainingBar(Callback):
    """A progress bar in a terminal, and a log line after every round."""

    def __init__(self, title: str, rounds: int) -> None:
        self.title, self.rounds, self.round = title, rounds, 0
        self.bar = progress_bar()
        self.task = self.bar.add_task(title, total=rounds)
        self.embedding: TaskID | None = None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def on_embedded(self, done: int, total: int) -> None:
        """Show how many views have passed through the frozen layers, on a bar of its own."""
        if self.embedding is None:
            self.embedding = self.bar.add_task("features", total=total)
        self.bar.update(self.embedding, completed=done, visible=done < total)

    def on_step(self, training: "Training", done: int, planned: int) -> None:
        """Move the bar; a round counts as one."""
        self.bar.update(self.task, completed=self.round + done / planned)

    def on_round(self, training: "Training", record: Record) -> None:
        """Log the round."""
        self.round = int(record["round"]) + 1
        log.info("%s", describe_round(self.title, self.rounds, record))


def describe_round(title: str, rounds: int, record: Record) -> str:
    """One line of plain text for a round."""
    formats = {
        "classification": "classification {:.3f}",
        "discrepancy": "discrepancy {:.3f}",
        "kept_samples": "kept {:.0f} samples",
        "kept_classes": "of {:.0f} classes",
        "label_change": "labels changed {:.1%}",
        "center_shift": "centers moved {:.4f}",
        "learning_rate": "learning rate {:.2g}",
        "oracle_accuracy": "oracle accuracy {:.1%}",
        "seconds": "{:.1f} s",
    }
    figures = [text.format(record[name]) for name, text in formats.items() if name in record]
    return f"{title} round {int(record['round']) + 1}/{rounds}: {', '.join(figures)}"
