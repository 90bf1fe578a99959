"""Which round is chosen."""

import pytest

from candapt.errors import UserError
from candapt.evaluation.scores import RETIRED, SCORES, check_selection, choose_round


def rounds(*values: float | None, name: str = "snd") -> list[dict[str, float]]:
    return [{"round": i} | ({} if v is None else {f"score_{name}": v}) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("name", "values", "chosen"),
    [
        ("snd", (1, 3, 2), 1),
        ("snd", (1, 3, 3, 2), 2),
        ("dev", (1, 3, 0.5, 2), 2),
        ("dev", (1, 1), 1),
        ("protocol", (None, 0.4, 0.6), 1),
        ("first_agreement", (None, None, None), 2),
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
    names = ", ".join(["last", *SCORES])
    with pytest.raises(UserError, match=f"There is no score for select named 'luck': choose one of {names}."):
        check_selection("luck")
    with pytest.raises(UserError, match=r"named 'informations': did you mean 'information'\?"):
        check_selection("informations")


@pytest.mark.parametrize("name", RETIRED)
def test_a_removed_score_names_its_successor(name: str) -> None:
    assert RETIRED[name] in SCORES
    with pytest.raises(UserError, match=f"select is '{name}', a score that was removed: use {RETIRED[name]} instead."):
        check_selection(name)
