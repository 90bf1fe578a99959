"""Trials, and the folder that stores them: finished trials survive whatever ends the process."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from candapt.errors import UserError
from candapt.evaluation.scores import SCORES
from candapt.settings import Range
from candapt.storage.files import write_atomically, write_json
from candapt.storage.folders import OutputFolder, names_in
from candapt.storage.runs import LEFT_OUT, TUNING
from candapt.storage.safe_reading import from_plain, read_json, shortened
from candapt.tuning.space import Values

TRIALS = "trials.json"
TABLE = "trials.csv"
CONFIG = "config.yaml"
LOG = "log.txt"
FILES = {TUNING, TRIALS, TABLE, CONFIG, LOG, LEFT_OUT}  # what the folder may hold


@dataclass(frozen=True)
class Trial:
    """One training with its own settings, and its outcome."""

    number: int  # in the order of finishing, from 0, which is the one with the settings to start from
    state: Literal["complete", "pruned", "failed"]  # pruned: worse than most, so ended early; failed: no longer finite
    settings: Values
    scores: tuple[float | None, ...]  # of each round; None in the warm-up, or where there is none
    seconds: float
    score: float | None = None  # of the round that is kept, if complete
    round: int | None = None  # that round
    reason: str = ""  # why it failed
    begun: int | None = None  # where it was in the order of starting, if several ran at the same time


def best_of(trials: Sequence[Trial], score: str) -> Trial | None:
    """The complete trial with the best score, of equals the first; None if there is none."""
    complete = [trial for trial in trials if trial.score is not None]
    best = max if SCORES[score].higher_is_better else min
    return best(complete, key=attrgetter("score"), default=None)


class TuningFolder(OutputFolder):
    """The files of one search. `trials.json` is replaced atomically after each trial."""

    maker = "candapt tune"

    @classmethod
    def check_content(cls, path: Path, *, resume: bool) -> None:
        """Raise a `UserError` for files that no search made, and without `resume` for those of a search."""
        names = names_in(path)
        if foreign := sorted(names - FILES):
            raise UserError(f"{str(path)!r} holds {foreign[0]!r}, which no tuning made: give another folder by --out.")
        if names and not resume:
            advice = "give --resume to continue it, or another folder by --out; nothing was changed."
            raise UserError(f"{str(path)!r} already holds a search: {advice}")

    def read_provenance(self) -> dict[str, Any] | None:
        """What the search was started with; None if it was stopped before that was written."""
        return self._read(TUNING) if (self.path / TUNING).exists() else None

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Store what the search was started with."""
        write_json(self.path / TUNING, provenance)

    def read_trials(self, space: Mapping[str, Range]) -> list[Trial]:
        """The finished trials, each checked against the search space."""
        if not (self.path / TRIALS).exists():
            return []
        entries = self._read(TRIALS).get("trials")
        try:
            if not isinstance(entries, list):
                raise ValueError("it has no list of trials")
            trials = [from_plain(Trial, each) for each in entries]
            for number, trial in enumerate(trials):
                _check(trial, number, space)
        except (ValueError, TypeError) as error:  # TypeError: something is missing
            raise self._damaged(TRIALS, error) from None
        return trials

    def write_trials(self, trials: Sequence[Trial]) -> None:
        """Store the trials: JSON for programs, and a table for people."""
        entries = [asdict(trial) for trial in trials]
        for entry in entries:
            if entry["begun"] is None:  # one after the other: the order of starting is that of finishing
                del entry["begun"]
        write_json(self.path / TRIALS, {"trials": entries})
        names = list(trials[0].settings)
        with write_atomically(self.path / TABLE) as part, part.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["trial", "state", "score", "round", "rounds", "seconds", *names])
            for trial in trials:
                facts = (trial.number, trial.state, trial.score, trial.round, len(trial.scores), trial.seconds)
                rows.writerow([*facts, *(trial.settings[name] for name in names)])

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return read_json(self.path / name)
        except (OSError, ValueError) as error:
            raise self._damaged(name, error) from None

    def _damaged(self, name: str, error: Exception) -> UserError:
        damage = f"{str(self.path / name)!r} is not what a tuning writes ({shortened(str(error))})"
        return UserError(f"{damage}: give another folder by --out to start over; nothing was changed.")


def _check(trial: Trial, number: int, space: Mapping[str, Range]) -> None:
    """Raise a `ValueError` for a trial that this search cannot have made."""
    if trial.number != number:
        raise ValueError(f"trial {number} is called {trial.number}")
    if trial.settings.keys() != space.keys():
        raise ValueError(f"trial {number} searched other settings")
    for name, value in trial.settings.items():
        if not space[name].holds(value):
            raise ValueError(f"{name} of trial {number} is {shortened(repr(value), 40)}")
    if number == 0 and trial.state != "complete":
        raise ValueError("the first trial is not complete")
    if (trial.score is None) == (trial.state == "complete"):
        raise ValueError(f"trial {number} is {trial.state}, but its score is {trial.score}")
