"""One review: what each reviewer is shown next, and what becomes of the answers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from candapt.errors import UserError
from candapt.review.answers import Answer, AnswerFile, Verdict, current, now
from candapt.review.measurement import Measurement, measure_answers
from candapt.review.sampling import Population, Stratify, drawing_order

Picture = Callable[[str], bytes | None]
"""The picture of a sample as a JPEG file; None if there is none."""


@dataclass(frozen=True)
class Plan:
    """How the samples are drawn."""

    number: int = 50  # answers after which the outcome is shown
    stratify: Stratify = "none"
    seed: int = 0


class Session:
    """A review of a run, for any number of reviewers at the same time; other processes may review the same run.

    Args:
        population: the predictions.
        classes: names of all classes, to choose the true one from.
        answers: where answers are stored.
        plan: how samples are drawn.
        title: what is reviewed, for the page.
        estimate: the label-free estimate of the accuracy, `value`, `low` and `high`, to show beside; may be empty.
        picture: gives the picture of a sample.
    """

    def __init__(
        self,
        population: Population,
        classes: Sequence[str],
        answers: AnswerFile,
        plan: Plan,
        *,
        title: str = "",
        estimate: dict[str, float] | None = None,
        picture: Picture = lambda name: None,
    ) -> None:
        self.population, self.classes, self.answers, self.plan = population, tuple(classes), answers, plan
        self.title, self.estimate, self.picture = title, estimate or {}, picture
        self.order = list(drawing_order(population, plan.stratify, plan.seed))
        self._measured: tuple[int, Measurement] | None = None

    def measure(self, lines: Sequence[Answer] | None = None) -> Measurement:
        """The accuracy by all answers so far."""
        lines = self.answers.read() if lines is None else lines
        if self._measured is None or self._measured[0] != len(lines):  # lines are only ever added
            self._measured = len(lines), measure_answers(self.population, lines)
        return self._measured[1]

    def show(self, reviewer: str) -> dict[str, Any]:
        """What the page shows a reviewer: a sample to judge, which nobody else is shown meanwhile, and the outcome."""
        with self.answers.exclusive():
            return self._state(reviewer, self.answers.read())

    def answer(self, reviewer: str, row: int, verdict: str, label: str | None) -> dict[str, Any]:
        """Store an answer; what is shown next."""
        sample = self._sample(row)
        if verdict not in ("right", "wrong", "other", "unsure") or (label is not None and label not in self.classes):
            raise UserError("That is no answer.")
        if verdict == "wrong" and label == sample.prediction:
            raise UserError(f"The prediction is {label!r}: that is right.")
        label = sample.prediction if verdict == "right" else label if verdict == "wrong" else None
        with self.answers.exclusive():
            self._store(Answer(sample.name, cast(Verdict, verdict), label, sample.prediction), reviewer)
            return self._state(reviewer, self.answers.read())

    def undo(self, reviewer: str) -> dict[str, Any]:
        """Withdraw the reviewer's last answer that counts, and show its sample again."""
        with self.answers.exclusive():
            lines = self.answers.read()
            own = [each for each in current(lines).values() if each.reviewer == reviewer]
            if own and own[-1].path in self.population.row_of:
                last = own[-1]
                self._store(Answer(last.path, "undone", None, last.prediction), reviewer)
                self._claim(last.path, reviewer)
                lines = self.answers.read()
            return self._state(reviewer, lines)

    def _sample(self, row: int) -> Any:
        if not 0 <= row < len(self.population.samples) or self.population.samples[row].name in self.population.known:
            raise UserError("There is no such sample to judge.")
        return self.population.samples[row]

    def _store(self, answer: Answer, reviewer: str) -> None:
        where = {"stratify": self.plan.stratify, "seed": self.plan.seed, "reviewer": reviewer, "time": now()}
        self.answers.append(Answer(**{**vars(answer), **where}))
        self.answers.write_table()

    def _claim(self, name: str | None, reviewer: str) -> None:
        """Keep a sample for a reviewer, in place of the one before."""
        others = {each: who for each, who in self.answers.read_claims(time.time()).items() if who != reviewer}
        self.answers.write_claims(others | ({name: reviewer} if name is not None else {}), time.time())

    def _next_rows(self, reviewer: str, lines: Sequence[Answer]) -> list[int]:
        """The sample to show and the one after it, as far as there are any."""
        answered, claims = current(lines).keys(), self.answers.read_claims(time.time())
        names = [sample.name for sample in self.population.samples]
        open_rows = [row for row in self.order if names[row] not in answered]
        own = [row for row in open_rows if claims.get(names[row]) == reviewer][:1]
        free = (row for row in open_rows if names[row] not in claims)
        return [*own, *(row for row, _ in zip(free, range(2 - len(own)), strict=False))]

    def _state(self, reviewer: str, lines: Sequence[Answer]) -> dict[str, Any]:
        rows, answers = self._next_rows(reviewer, lines), current(lines)
        shown = self.population.samples[rows[0]] if rows else None
        self._claim(shown.name if shown else None, reviewer)
        measured = self.measure(lines)
        return {
            "sample": shown and {"row": rows[0], "name": shown.name, "prediction": shown.prediction},
            "following": rows[1] if len(rows) > 1 else None,
            "answered": measured.judged + measured.unsure,
            "can_undo": any(each.reviewer == reviewer for each in answers.values()),
            "reviewers": len({each.reviewer for each in answers.values()} | {reviewer}),
            "measured": measured.describe(),
        }
