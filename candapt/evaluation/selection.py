"""Which round to keep, by a label-free score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from candapt.errors import UserError
from candapt.evaluation.scores import SCORES

LAST = "last"
"""The choice that looks at no score."""


@dataclass(frozen=True)
class Choice:
    """The round that was kept, beside the last one."""

    select: str
    """The score that chose, or `LAST`."""
    round: int
    value: float | None
    """Its score; None if nothing was scored."""
    last_round: int
    last_value: float | None
    differing: float
    """Share of the target that the last round predicts otherwise."""

    def describe(self) -> dict[str, Any]:
        """As it stands in `summary.json`."""
        return {
            "score": self.select,
            "round": self.round,
            "value": self.value,
            "last": {"round": self.last_round, "value": self.last_value, "differing_predictions": self.differing},
        }


def check_choice(select: str) -> None:
    """Refuse a score that there is not."""
    if select != LAST and select not in SCORES:
        raise UserError(f"select is {select!r}, but must be one of {', '.join([LAST, *SCORES])}.")


def merit(record: Mapping[str, float | int], select: str) -> float | None:
    """How good a round is, the more the better; None for one that cannot be chosen.

    That is a round which only prepares the alignment, or has no such score. The last rule prefers later rounds.
    """
    if record.get("warmup"):
        return None
    if select == LAST:
        return float(record["round"])
    value = value_of(record, select)
    return value if value is None or SCORES[select].higher_is_better else -value


def value_of(record: Mapping[str, float | int], select: str) -> float | None:
    """A round's score as it is."""
    return record.get(f"score_{select}")


def choose_round(history: Sequence[Mapping[str, float | int]], select: str) -> int:
    """Place of the best round in the history; of equals the later one, and the last one if none can be chosen."""
    merits = [(value, place) for place, record in enumerate(history) if (value := merit(record, select)) is not None]
    return max(merits)[1] if merits else len(history) - 1


def describe_choice(select: str) -> str:
    """The rule in a few words."""
    return "last round" if select == LAST else f"best {select.replace('_', ' ')}"
