"""How far a benchmark is: a bar in a terminal, plain lines elsewhere."""

import logging
from typing import Any

from candapt.benchmark.plan import Cell
from candapt.console import SeriesBar, console
from candapt.errors import UserError

log = logging.getLogger(__name__)


class SuiteBar(SeriesBar):
    """One bar over all cells in a terminal; elsewhere a line for each cell."""

    def __init__(self, total: int, done: int) -> None:
        super().__init__("cells", total, done)

    def finish(self, cell: Cell, outcome: dict[str, Any] | UserError) -> None:
        """Count a cell and say how it went."""
        self.count(cell.name)
        if isinstance(outcome, UserError):
            log.warning("%s failed: %s", cell.name, outcome)
        elif not console.is_terminal:
            log.info("%s", self.describe(cell, outcome))

    def describe(self, cell: Cell, stored: dict[str, Any]) -> str:
        """One line of plain text for a finished cell."""
        score = "mean_class_accuracy" if "class_accuracies" in stored["last"] else "accuracy"
        return (
            f"{self.done}/{self.total} {cell.name}: last {stored['last'][score]:.1%}, "
            f"oracle {stored['oracle'][score]:.1%}, {stored['seconds']:.0f} s; {self.time_left}"
        )
