"""Trials, and the folder that keeps them: whatever ends the process, trials that have ended are there."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from candapt.errors import UserError
from candapt.files import write_atomically
from candapt.locks import NAME as LOCK
from candapt.locks import locked, refuse_if_locked
from candapt.runs import LEFT_OUT, TUNING, refuse_links, write_json
from candapt.tuning.objective import is_better
from candapt.tuning.space import Range, Values
from candapt.untrusted import from_plain, read_json, shortened

TRIALS = "trials.json"
TABLE = "trials.csv"
CONFIG = "config.yaml"
LOG = "log.txt"
FILES = {TUNING, TRIALS, TABLE, CONFIG, LOG, LEFT_OUT, LOCK}
"""What the folder may hold."""


@dataclass(frozen=True)
class Trial:
    """One training with settings of its own, and what came of it."""

    number: int
    """From 0, which is the one with the settings to start from."""
    state: Literal["complete", "pruned", "failed"]
    """Pruned: ended early, since it did worse than most. Failed: no numbers came of it."""
    settings: Values
    scores: tuple[float | None, ...]
    """Of each round; None of one that is not judged."""
    seconds: float
    score: float | None = None
    """Of the round that is kept, if complete."""
    round: int | None = None
    """That round."""
    reason: str = ""
    """Why it failed."""


def best_of(trials: Sequence[Trial], score: str) -> Trial | None:
    """The complete trial with the best score, of equals the first; None if there is none."""
    best: Trial | None = None
    for trial in trials:
        if trial.score is not None and (
            best is None or best.score is None or is_better(trial.score, best.score, score)
        ):
            best = trial
    return best


class TuningFolder:
    """The files of one search. `trials.json` is written anew after each trial, beside the old one and then renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def claimed(cls, path: Path, *, resume: bool) -> Iterator["TuningFolder"]:
        """A new folder, or one to go on with, that no other process writes to meanwhile."""
        cls.check(path, resume=resume)
        with suppress(OSError):  # said in a sentence when it is locked
            path.mkdir(parents=True, exist_ok=True)
        with locked(path):
            cls.check_content(path, resume=resume)
            yield cls(path)

    @staticmethod
    def check(path: Path, *, resume: bool) -> None:
        """Refuse a folder that cannot be used, without touching anything."""
        if path.exists() and not path.is_dir():
            raise UserError(f"{str(path)!r} is not a folder: give another one by --out; nothing was changed.")
        if resume and not path.is_dir():
            raise UserError(f"There is nothing to resume in {str(path)!r}: check --out, or start without --resume.")
        refuse_if_locked(path)
        TuningFolder.check_content(path, resume=resume)

    @staticmethod
    def check_content(path: Path, *, resume: bool) -> None:
        """Refuse what no search made, and without `resume` what one made."""
        names = {entry.name.removesuffix(".part") for entry in path.iterdir()} if path.is_dir() else set()
        if foreign := sorted(names - FILES):
            raise UserError(f"{str(path)!r} holds {foreign[0]!r}, which no tuning made: give another folder by --out.")
        if names - {LOCK} and not resume:
            raise UserError(
                f"{str(path)!r} already holds a search: give --resume to go on with it, or another folder by --out; "
                "nothing was changed."
            )
        refuse_links(path)

    def read_origin(self) -> dict[str, Any] | None:
        """What the search was started with; None if it was stopped before that was written."""
        return self._read(TUNING) if (self.path / TUNING).exists() else None

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Keep what the search was started with."""
        write_json(self.path / TUNING, origin)

    def read_trials(self, space: Mapping[str, Range]) -> list[Trial]:
        """The trials that have ended, each checked against what is searched."""
        if not (self.path / TRIALS).exists():
            return []
        try:
            told = self._read(TRIALS).get("trials")
            if not isinstance(told, list):
                raise ValueError("it has no list of trials")
            trials = [from_plain(Trial, each) for each in told]
            for number, trial in enumerate(trials):
                _check(trial, number, space)
        except UserError:
            raise
        except (ValueError, TypeError) as error:  # TypeError: something is missing
            raise self._damaged(TRIALS, error) from None
        return trials

    def write_trials(self, trials: Sequence[Trial]) -> None:
        """Keep the trials, all that is known of them for programs, and a table for people."""
        write_json(self.path / TRIALS, {"trials": [asdict(trial) for trial in trials]})
        names = list(trials[0].settings)
        with write_atomically(self.path / TABLE) as part, part.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["trial", "state", "score", "round", "rounds", "seconds", *names])
            for trial in trials:
                told = (trial.number, trial.state, trial.score, trial.round, len(trial.scores), trial.seconds)
                rows.writerow([*told, *(trial.settings[name] for name in names)])

    def write_config(self, config: Mapping[str, Any], comment: str) -> None:
        """The settings of the best trial, for `candapt adapt --config`."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        with write_atomically(self.path / CONFIG) as part:
            part.write_text(f"# {comment}\n{text}", encoding="utf-8")

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return read_json(self.path / name)
        except (OSError, ValueError) as error:
            raise self._damaged(name, error) from None

    def _damaged(self, name: str, error: Exception) -> UserError:
        return UserError(
            f"{str(self.path / name)!r} is not what a tuning writes ({shortened(str(error))}): "
            "give another folder by --out to begin anew; nothing was changed."
        )


def _check(trial: Trial, number: int, space: Mapping[str, Range]) -> None:
    """Refuse a trial that this search cannot have made."""
    if trial.number != number:
        raise ValueError(f"trial {number} is called {trial.number}")
    if trial.settings.keys() != space.keys():
        raise ValueError(f"trial {number} searched other settings")
    for name, value in trial.settings.items():
        if not space[name].holds(value):
            raise ValueError(f"{name} of trial {number} is {shortened(repr(value), 40)}")
    if number == 0 and trial.state != "complete":
        raise ValueError("the first trial has not come to its end")
    if (trial.score is None) == (trial.state == "complete"):
        raise ValueError(f"trial {number} is {trial.state}, but its score is {trial.score}")
