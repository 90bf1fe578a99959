"""The content of a run folder as plain data. Nothing outside the folder is read."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import UndefinedError

from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.report.domain_map import DomainMap, read_map
from candapt.review import Answer, AnswerFile, Measurement, Population, Sample, known_samples, measure_answers
from candapt.storage import safe_reading as safe

DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, UndefinedError, ValueError)
"""Errors that come up where a file of a run holds what no training writes."""


class Prediction(NamedTuple):
    """One line of `predictions.csv`."""

    name: str
    label: str  # name of the predicted class
    confidence: float
    unknown: float | None = None  # probability of being none of the classes, where something tells it


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]  # the lines of `metrics.jsonl`
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # shape of one sample
    predictions: tuple[Prediction, ...]
    map: DomainMap | None
    pictures: bool = True  # whether images may be shown from where the configuration says that they are
    answers: tuple[Answer, ...] = ()  # what people said of the predictions in `candapt review`

    def place(self, side: Side) -> Path:
        """Folder or file that a domain was read from."""
        return Path(self.config[side.name.lower()])

    @property
    def task(self) -> str:
        """The names of both domains; `images` alone, as in Office-31, would mean nothing."""
        places = [self.place(side) for side in Side]
        names = [each.parent.name if each.name == "images" and each.parent.name else each.stem for each in places]
        return " → ".join(names)

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.summary["method"])

    def section(self, name: str) -> dict[str, Any]:
        """An object in the summary; empty if it is missing or something else."""
        section = self.summary.get(name)
        return section if isinstance(section, dict) else {}

    @property
    def oracle(self) -> dict[str, Any]:
        """What was measured with true labels; empty if there were none."""
        return self.section("oracle")

    @cached_property
    def population(self) -> Population:
        """The predictions as a review draws from them, without samples whose labels steered the training.

        Raises:
            UserError: labels steered, but which cannot be read.
        """
        known = known_samples(self.folder, self.config, outside=self.pictures)
        return Population(tuple(Sample(*each[:3]) for each in self.predictions), known)

    @cached_property
    def review(self) -> tuple[Measurement | None, str]:
        """The accuracy by the answers of a review, and else why they cannot be counted, if there are any."""
        try:
            measured = measure_answers(self.population, self.answers) if self.answers else None
        except UserError as error:
            return None, str(error)
        return (measured, "") if measured is not None and measured.interval is not None else (None, "")

    @property
    def measured(self) -> Measurement | None:
        """The accuracy by the answers of a review; None without any that count."""
        return self.review[0]


def read_run(folder: Path, *, pictures: bool = True) -> Run:
    """Everything that a page shows of a run; a folder without a finished and undamaged one raises a `UserError`."""
    if not (folder / "summary.json").is_file():
        reason = "holds no finished run (no summary.json)"
        raise UserError(f"{str(folder)!r} {reason}: give a folder made by `candapt adapt`.")
    with damage_explained(folder, errors=(*DAMAGE, OSError, csv.Error)):
        model = safe.read_json(safe.contained(folder, "model.json"))
        run = Run(
            folder,
            safe.read_yaml(safe.contained(folder, "config.yaml")),
            safe.read_json(safe.contained(folder, "summary.json")),
            _read_rounds(safe.contained(folder, "metrics.jsonl")),
            safe.fitted(model["classes"], tuple[str, ...], "classes"),
            safe.fitted(model["shape"], tuple[int, ...], "shape"),
            _read_predictions(safe.contained(folder, "predictions.csv")),
            read_map(folder),
            pictures,
            tuple(AnswerFile(folder).read()),
        )
        if not run.method or not run.task or not run.predictions:
            raise UserError(f"The run in {str(folder)!r} has no prediction to show.")
    return run


@contextmanager
def damage_explained(*runs: Path, errors: tuple[type[Exception], ...] = DAMAGE) -> Iterator[None]:
    """Turn these errors into a `UserError` that names the first run folder."""
    try:
        yield
    except UserError:
        raise
    except errors as error:
        reason = safe.shortened(f"{type(error).__name__}: {error}", 160)
        others = ", or one beside it," if len(runs) > 1 else ""
        raise UserError(f"The run in {str(runs[0])!r}{others} is damaged ({reason}).") from error


def _read_rounds(path: Path) -> list[dict[str, Any]]:
    safe.check_file(path, safe.MAX_JSON)
    lines = path.read_text(encoding="utf-8").splitlines()
    return [safe.fitted(json.loads(line), dict, "a round") for line in lines if line.strip()]


def _read_predictions(path: Path) -> tuple[Prediction, ...]:
    safe.check_file(path, safe.MAX_TABLE)
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return tuple(
            Prediction(
                row["path"],
                row["label"],
                float(row["confidence"]),
                float(row["unknown"]) if row.get("unknown") else None,
            )
            for row in csv.DictReader(file)
        )
