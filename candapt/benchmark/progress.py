"""How far a benchmark is: a bar in a terminal, plain lines elsewhere."""

import logging
import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from candapt.benchmark.plan import Cell
from candapt.console import console
from candapt.errors import UserError

log = logging.getLogger(__name__)


class SuiteBar:
    """One bar over all cells in a terminal; elsewhere a line for each cell."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done, self.begun = total, done, done
        self.started = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(
            *columns,
            console=console,
            disable=not console.is_terminal,
            transient=True,
            speed_estimate_period=3600,  # a cell may take minutes
        )
        self.task = self.bar.add_task("cells", total=total, completed=done)

    def __enter__(self) -> "SuiteBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def advance(self, share: float) -> None:
        """Move the bar within a cell."""
        self.bar.update(self.task, completed=self.done + share)

    def finish(self, cell: Cell, outcome: dict[str, Any] | UserError) -> None:
        """Count a cell and say how it went."""
        self.done += 1
        self.bar.update(self.task, completed=self.done, description=cell.name)
        if isinstance(outcome, UserError):
            log.warning("%s failed: %s", cell.name, outcome)
        elif not console.is_terminal:
            log.info("%s", self.describe(cell, outcome))

    def describe(self, cell: Cell, stored: dict[str, Any]) -> str:
        """One line of plain text for a finished cell."""
        score = "mean_class_accuracy" if "class_accuracies" in stored["last"] else "accuracy"
        left = (time.perf_counter() - self.started) / (self.done - self.begun) * (self.total - self.done)
        return (
            f"{self.done}/{self.total} {cell.name}: last {stored['last'][score]:.1%}, "
            f"oracle {stored['oracle'][score]:.1%}, {stored['seconds']:.0f} s; about {duration(left)} left"
        )


def duration(seconds: float) -> str:
    """A time for reading, to the second below two minutes and to the minute below two hours.

    >>> duration(100), duration(1000), duration(10000)
    ('100 s', '17 min', '2.8 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
