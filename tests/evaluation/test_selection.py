"""Which round is chosen."""

import pytest

from candapt.errors import UserError
from candapt.evaluation.selection import check_choice, choose_round


def rounds(*values: float | None, name: str = "snd") -> list[dict[str, float]]:
    return [{"round": i} | ({} if v is None else {f"score_{name}": v}) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("name", "values", "chosen"),
    [
        ("snd", (1, 3, 2), 1),
        ("snd", (1, 3, 3, 2), 2),
        ("entropy", (1, 3, 0.5, 2), 2),
        ("entropy", (1, 1), 1),
        ("label_change", (None, 0.4, 0.6), 1),
        ("kept", (None, None, None), 2),
    ],
)
def test_the_best_round_is_chosen_and_of_equals_the_later(name: str, values: tuple[float, ...], chosen: int) -> None:
    assert choose_round(rounds(*values, name=name), name) == chosen


def test_warm_up_rounds_are_no_candidates() -> None:
    history = rounds(9, 1, 2)
    history[0]["warmup"] = 1
    assert choose_round(history, "snd") == 2
    for record in history:
        record["warmup"] = 1
    assert choose_round(history, "snd") == 2
    assert choose_round(rounds(3, 2, 1), "last") == 2


def test_unknown_scores_are_refused() -> None:
    with pytest.raises(UserError, match="select is 'luck', but must be one of last, entropy"):
        check_choice("luck")
