"""Which round is chosen."""

from dataclasses import FrozenInstanceError

import pytest

from candapt.errors import UserError
from candapt.evaluation.scores import (
    RETIRED,
    SCORES,
    Choice,
    check_score_name,
    check_selection,
    choose_round,
    describe_rule,
    merit,
    value_of,
)


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


def test_what_can_be_selected() -> None:
    for name in ("last", *SCORES):
        check_selection(name)


def test_a_name_that_an_option_takes_is_no_removed_one() -> None:
    check_score_name("kept", "score", ["kept", "snd"])
    with pytest.raises(
        UserError, match=r"^score is 'kept', a score that was removed: use neighbor_information instead\.$"
    ):
        check_score_name("kept", "score", ["snd"])
    with pytest.raises(UserError, match=r"^There is no score for score named 'last': choose one of snd\.$"):
        check_score_name("last", "score", ["snd"])


def test_the_merit_of_a_round() -> None:
    record = {"round": 3, "score_snd": 2.0, "score_dev": 0.5}
    assert [merit(record, name) for name in ("snd", "dev", "last", "agreement")] == [2.0, -0.5, 3.0, None]
    assert isinstance(merit(record, "last"), float)
    assert [value_of(record, name) for name in ("snd", "dev", "agreement")] == [2.0, 0.5, None]
    assert merit(record | {"warmup": 0}, "snd") == 2.0
    assert merit(record | {"warmup": 1}, "snd") is merit(record | {"warmup": 1}, "last") is None


def test_a_choice_is_described_with_the_round_it_was_made_against() -> None:
    choice = Choice("snd", 4, 1.5, 7, 1.25, 0.125)
    last = {"round": 7, "value": 1.25, "differing_predictions": 0.125}
    with pytest.raises(FrozenInstanceError):
        choice.round = 5  # type: ignore[misc]
    assert choice.describe() == {"score": "snd", "round": 4, "value": 1.5, "last": last}


def test_the_rule_in_words() -> None:
    assert describe_rule("last") == "last round"
    assert describe_rule("neighbor_information") == "best neighbor information"
