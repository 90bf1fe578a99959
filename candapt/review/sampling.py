"""Which samples a person is shown, and in which order.

Every prediction is equally likely to be drawn, whatever the strata: each gives as many samples as its size demands. So
answers of several reviews may be taken together, and read by other strata than those by which they were drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from candapt.randomness import derive_seed

Stratify = Literal["none", "confidence", "class"]
STRATIFY: tuple[Stratify, ...] = get_args(Stratify)
PARTS = 4  # parts of the target by confidence


class Sample(NamedTuple):
    """A prediction for one target sample."""

    name: str
    prediction: str  # name of the predicted class
    confidence: float


@dataclass(frozen=True, eq=False)
class Population:
    """The predictions of a run, and which of them may be counted: all whose labels have not steered the training."""

    samples: tuple[Sample, ...]
    known: frozenset[str] = frozenset()  # names of the samples whose labels steered

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of the predictions that may be counted."""
        return tuple(row for row, sample in enumerate(self.samples) if sample.name not in self.known)

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Row of each sample by its name."""
        return {sample.name: row for row, sample in reversed(list(enumerate(self.samples)))}

    @cached_property
    def classes(self) -> dict[str, list[int]]:
        """Rows that may be counted by predicted class, the class with the lowest mean confidence first."""
        rows: dict[str, list[int]] = {}
        for row in self.rows:
            rows.setdefault(self.samples[row].prediction, []).append(row)
        return dict(sorted(rows.items(), key=lambda item: (self._mean_confidence(item[1]), item[0])))

    def _mean_confidence(self, rows: Sequence[int]) -> float:
        return sum(self.samples[row].confidence for row in rows) / len(rows)

    def strata(self, stratify: Stratify) -> list[list[int]]:
        """The strata that samples are drawn from, as rows."""
        if stratify == "class":
            return list(self.classes.values())
        return self.quarters if stratify == "confidence" else [list(self.rows)] * bool(self.rows)

    @cached_property
    def quarters(self) -> list[list[int]]:
        """Rows that may be counted in four equal parts by confidence, the least confident first."""
        ranked = sorted(self.rows, key=lambda row: (self.samples[row].confidence, row))
        return [part.tolist() for part in np.array_split(np.array(ranked, dtype=np.int64), PARTS) if len(part)]

    def groups(self, stratify: Stratify) -> list[list[int]]:
        """The strata by which answers are read: the same, but for classes, which are joined to at most four groups.

        Few answers in each of many strata would make the interval too narrow.
        """
        strata = self.strata(stratify)
        if stratify != "class":
            return strata
        joined: list[list[int]] = [[] for _ in range(PARTS)]
        before = 0
        for rows in strata:
            middle = (before + len(rows) / 2) / len(self.rows)
            joined[int(PARTS * middle)] += rows
            before += len(rows)
        return [rows for rows in joined if rows]


def drawing_order(population: Population, stratify: Stratify, seed: int) -> Iterator[int]:
    """Rows in the order in which they are shown; the first n of them are a random sample for every n.

    Each stratum is shuffled by itself, and its samples are spread evenly over the order, from a random start.
    """
    random = np.random.default_rng(derive_seed(seed, "review"))
    place = dict(zip(population.rows, random.permutation(len(population.rows)).tolist(), strict=True))
    keys: list[tuple[float, int]] = []
    for rows in population.strata(stratify):
        start = random.random()
        shuffled = sorted(rows, key=place.__getitem__)
        keys += [((number + start) / len(rows), row) for number, row in enumerate(shuffled)]
    return (row for _, row in sorted(keys))
