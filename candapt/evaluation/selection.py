"""Which round to keep, by a label-free score."""

from collections.abc import Mapping, Sequence

from candapt.errors import UserError
from candapt.evaluation.scores import SCORES

LAST = "last"
"""The choice that looks at no score."""


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
    value = record.get(f"score_{select}")
    return None if value is None else float(value) if SCORES[select].higher_is_better else -float(value)


def choose_round(history: Sequence[Mapping[str, float | int]], select: str) -> int:
    """Place of the best round in the history; of equals the later one, and the last one if none can be chosen."""
    merits = [(value, place) for place, record in enumerate(history) if (value := merit(record, select)) is not None]
    return max(merits)[1] if merits else len(history) - 1


def describe_choice(select: str) -> str:
    """The rule in a few words."""
    return "last round" if select == LAST else f"best {select.replace('_', ' ')}"
