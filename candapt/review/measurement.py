"""The accuracy that answers measure, as a whole and by class."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from candapt.errors import UserError
from candapt.review.answers import Answer, current
from candapt.review.interval import LEVEL, Interval, Stratum, accuracy_interval
from candapt.review.sampling import STRATIFY, Population, Stratify
from candapt.storage.safe_reading import MAX_TABLE, check_file, contained, shortened

ENOUGH = 10  # fewest answers in a stratum, and for a class to get figures of its own
KNOWN_LABELS = "known_labels.csv"  # in the run folder: labels that steered the training


@dataclass(frozen=True)
class ClassAccuracy:
    """How many of the predictions of one class are right."""

    name: str
    size: int  # predictions of the class
    judged: int
    right: int
    interval: Interval


@dataclass(frozen=True)
class Measurement:
    """What the answers say of a run's predictions."""

    size: int  # predictions that could have been drawn
    judged: int
    right: int
    unsure: int  # answers "cannot say", which count in no accuracy
    steered: int  # answers for samples whose labels steered the training, which count in no accuracy either
    elsewhere: int  # answers for samples that the run does not have, or that do not tell whether it is right
    stratify: Stratify
    interval: Interval | None  # None if nothing was judged
    classes: tuple[ClassAccuracy, ...] = ()  # those with enough answers

    @property
    def sentence(self) -> str:
        """The outcome in a sentence."""
        if self.interval is None:
            return "No prediction has been judged yet."
        value, low, high = map(percent, self.interval)
        return f"{value} right, between {low} and {high} ({LEVEL:.0%} interval), by {plural(self.judged, 'answer')}."

    @property
    def remarks(self) -> list[str]:
        """What else to know of it, in sentences."""
        sentences = []
        if self.unsure:
            sentences.append(f"{plural(self.unsure, 'answer')} “cannot say”: left out of the accuracy.")
        if self.steered:
            sentences.append(f"{plural(self.steered, 'answer')} left out: these labels steered the training.")
        if self.elsewhere:
            sentences.append(
                f"{plural(self.elsewhere, 'answer')} left out: they say nothing of this run's predictions."
            )
        return sentences

    def describe(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            **{name: getattr(self, name) for name in ("size", "judged", "right", "unsure", "steered", "stratify")},
            "level": LEVEL,
            "interval": self.interval and self.interval._asdict(),
            "classes": [{**vars(each), "interval": each.interval._asdict()} for each in self.classes],
            "sentence": self.sentence,
            "remarks": self.remarks,
        }


def measure_answers(population: Population, answers: Sequence[Answer]) -> Measurement:
    """The accuracy by the last answer for each sample.

    Answers drawn by strata are read by these strata; where strata of both kinds were used, by confidence.
    """
    countable = set(population.rows)
    judged: dict[int, bool] = {}
    counts = {"unsure": 0, "steered": 0, "elsewhere": 0}
    used: set[Stratify] = set()
    for name, answer in current(answers).items():
        row = population.row_of.get(name)
        verdict = None if row is None else answer.is_right(population.samples[row].prediction)
        if row is not None and row not in countable:
            counts["steered"] += 1
        elif row is not None and verdict is not None:
            judged[row] = verdict
            used.add(answer.stratify)
        else:
            counts["unsure" if row is not None and answer.answer == "unsure" else "elsewhere"] += 1
    stratify = next((kind for kind in ("confidence", "class") if kind in used), STRATIFY[0])
    return Measurement(
        len(population.rows),
        len(judged),
        sum(judged.values()),
        **counts,
        stratify=stratify,
        interval=accuracy_interval(strata_of(population, stratify, judged)) if judged else None,
        classes=_by_class(population, judged),
    )


def _count(rows: Sequence[int], judged: Mapping[int, bool]) -> Stratum:
    verdicts = [judged[row] for row in rows if row in judged]
    return Stratum(len(rows), len(verdicts), sum(verdicts))


def strata_of(population: Population, stratify: Stratify, judged: Mapping[int, bool]) -> list[Stratum]:
    """The strata by which answers are read; `judged` says which rows were judged, and whether they are right."""
    return _with_enough([_count(rows, judged) for rows in population.groups(stratify)])


def _with_enough(strata: Sequence[Stratum]) -> list[Stratum]:
    """The strata, neighbors joined until each has enough answers; every stratum is drawn from at the same rate."""
    joined: list[Stratum] = []
    for each in strata:
        if joined and (joined[-1].judged < ENOUGH or each.judged < ENOUGH):
            joined[-1] = Stratum(*(sum(pair) for pair in zip(joined[-1], each, strict=True)))
        else:
            joined.append(each)
    return joined


def _by_class(population: Population, judged: Mapping[int, bool]) -> tuple[ClassAccuracy, ...]:
    """Classes with enough answers, the least accurate first."""
    counts = {name: _count(rows, judged) for name, rows in population.classes.items()}
    rated = [
        ClassAccuracy(name, *each, accuracy_interval([each])) for name, each in counts.items() if each.judged >= ENOUGH
    ]
    return tuple(sorted(rated, key=lambda each: (each.interval.value, each.name)))


def known_samples(run: Path, config: Mapping[str, Any], *, outside: bool = True) -> frozenset[str]:
    """Names of the samples whose labels steered the training; empty if none did.

    Args:
        run: run folder; its `known_labels.csv` lists them.
        config: the run's configuration; without the file, `known_labels` in it says where the labels came from.
        outside: whether a file outside of the run folder may be read.

    Raises:
        UserError: labels steered, but which cannot be read.
    """
    given = config.get("known_labels")
    try:
        if (run / KNOWN_LABELS).exists():
            return _names(contained(run, KNOWN_LABELS))
        if given is None:
            return frozenset()
        if not outside:
            raise ValueError("it is outside of the run folder")
        return _names(Path(str(given)))
    except (OSError, ValueError, csv.Error) as error:
        reason = shortened(str(error))
        raise UserError(
            f"Known labels steered the run in {str(run)!r}, but cannot be read ({reason}): put them into its folder as "
            f"{KNOWN_LABELS}, so that none of them is counted."
        ) from None


def _names(path: Path) -> frozenset[str]:
    check_file(path, MAX_TABLE)
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader = csv.DictReader(file)
        if not {"path", "label"} <= set(reader.fieldnames or ()):
            raise ValueError(f"{path.name} lacks the columns path and label")
        return frozenset(row["path"] for row in reader if row["label"])


def percent(share: float) -> str:
    """A share for people, in whole percents; only what is all or nothing is called so.

    >>> percent(0.924), percent(0.9976), percent(0.99991), percent(1)
    ('92%', '99.8%', '>99.9%', '100%')
    """
    if share in (0, 1) or 0.005 <= share < 0.995:
        return f"{share:.0%}"
    if min(share, 1 - share) < 0.0005:
        return "<0.1%" if share < 0.5 else ">99.9%"
    return f"{share:.1%}"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "answer"), plural(1200, "answer")
    ('1 answer', '1,200 answers')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
