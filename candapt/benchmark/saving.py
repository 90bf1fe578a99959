"""A cell that takes long is saved on its way, so that a kill costs minutes and not the whole cell."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from candapt.benchmark.examiner import Examiner
from candapt.benchmark.results import are_rounds
from candapt.errors import UserError
from candapt.origin import code_digest
from candapt.runs import versions, write_json
from candapt.training.checkpoint import MINUTES, Checkpoints
from candapt.training.loop import Training
from candapt.untrusted import read_json

log = logging.getLogger(__name__)

FILE = "measured.json"
"""What the examiner knows, and what the cell is of."""


class CellCheckpoints(Checkpoints):
    """Checkpoints of a cell, with what was measured so far beside them. A cell of a few minutes writes none."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], examiner: Examiner) -> None:
        """Look after a folder.

        Args:
            folder: of this cell alone; it is made when there is something to save.
            identity: what the cell is of; another one's checkpoints are thrown away.
            examiner: what it has measured is kept and given back.
        """
        super().__init__(folder, minutes=MINUTES, every_round=False)
        self.told = {**identity, "versions": versions(), "code": code_digest()}
        self.examiner = examiner

    def restore(self, training: Training) -> None:
        """Go on from the newest good checkpoint, if there is one of this cell."""
        rounds = self._measured()
        if rounds is None:
            self.remove()
            return
        super().restore(training)
        if len(rounds) < training.state.round:
            raise UserError(f"{str(self.folder)!r} is damaged: remove it to start the cell anew.")
        self.examiner.rounds = rounds[: training.state.round]

    def save(self, training: Training) -> None:
        """Write a checkpoint; what was measured is written before, so that it is never behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, self.told | {"rounds": self.examiner.rounds})
        super().save(training)

    def remove(self) -> None:
        """Clear away what is no longer needed."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _measured(self) -> list[dict[str, Any]] | None:
        """What was measured after each round; None if there is nothing to go on from."""
        if not self.folder.exists():
            return None
        try:
            found = read_json(self.folder / FILE)
            rounds = found.pop("rounds")
        except (OSError, LookupError, ValueError):  # killed before the first checkpoint
            return None
        if found != self.told or not are_rounds(rounds):
            log.warning("%s was saved with other versions, settings or data: the cell starts anew.", self.folder)
            return None
        return list(rounds)
