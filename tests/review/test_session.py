"""What reviewers are shown, alone and together."""

from pathlib import Path

import pytest

from candapt.errors import UserError
from candapt.review.answers import current
from candapt.review.measurement import measure_answers
from candapt.review.session import Plan, Session
from tests.review.made import TRUTH, session


def judge(reviewed: Session, reviewer: str, state: dict) -> dict:  # type: ignore[type-arg]
    """Answer as the truth says."""
    row, label = state["sample"]["row"], TRUTH[state["sample"]["row"]]
    is_right = state["sample"]["prediction"] == label
    return reviewed.answer(reviewer, row, "right" if is_right else "wrong", None if is_right else label)


def test_answers_follow_the_drawing_order(tmp_path: Path) -> None:
    reviewed = session(tmp_path, Plan(5, "confidence", 3))
    state, shown = reviewed.show("me"), []
    for _ in range(20):
        shown.append(state["sample"]["row"])
        state = judge(reviewed, "me", state)
    assert shown == reviewed.order[:20]
    assert state["answered"] == 20
    assert {(each.stratify, each.seed) for each in reviewed.answers.read()} == {("confidence", 3)}
    expected = measure_answers(reviewed.population, reviewed.answers.read())
    assert state["measured"] == expected.describe()


def test_it_goes_on_after_the_command_was_ended(tmp_path: Path) -> None:
    state = judge(session(tmp_path), "me", session(tmp_path).show("me"))
    again = session(tmp_path).show("me")
    assert again == state
    assert again["sample"]["row"] == session(tmp_path).order[1]


def test_two_reviewers_see_different_samples(tmp_path: Path) -> None:
    """One process or two: claims are in the run folder."""
    one, two = session(tmp_path), session(tmp_path)
    states = {"a": one.show("a"), "b": two.show("b")}
    for _ in range(6):
        assert states["a"]["sample"]["row"] != states["b"]["sample"]["row"]
        states = {"a": judge(one, "a", states["a"]), "b": judge(two, "b", states["b"])}
    assert len(current(one.answers.read())) == 12
    assert set(current(one.answers.read())) == {one.population.samples[row].name for row in one.order[:12]}


def test_a_sample_that_somebody_left_is_shown_to_others_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviewed = session(tmp_path)
    left = reviewed.show("a")["sample"]["row"]
    assert reviewed.show("b")["sample"]["row"] != left
    monkeypatch.setattr("candapt.review.answers.CLAIM_SECONDS", 0)
    assert reviewed.show("c")["sample"]["row"] == left


def test_undo_shows_the_sample_again(tmp_path: Path) -> None:
    reviewed = session(tmp_path)
    assert reviewed.undo("me")["answered"] == 0  # nothing to undo
    first = reviewed.show("me")
    second = judge(reviewed, "me", first)
    judge(reviewed, "you", reviewed.show("you"))
    undone = reviewed.undo("me")
    assert undone["sample"] == first["sample"]
    assert (undone["answered"], undone["can_undo"]) == (1, False)
    after = reviewed.answer("me", first["sample"]["row"], "unsure", None)
    assert after["sample"] == second["sample"]
    assert after["measured"]["unsure"] == 1
    assert len(reviewed.answers.read()) == 4  # nothing is ever removed


def test_everything_judged(tmp_path: Path) -> None:
    reviewed = session(tmp_path)
    reviewed.order = reviewed.order[:3]
    state = reviewed.show("me")
    for _ in range(3):
        state = judge(reviewed, "me", state)
    assert (state["sample"], state["following"]) == (None, None)


def test_labels_that_steered_are_not_shown_and_not_taken(tmp_path: Path) -> None:
    reviewed = session(tmp_path, known=["photos/7.jpg"])
    assert 7 not in reviewed.order
    with pytest.raises(UserError, match="no such sample"):
        reviewed.answer("me", 7, "right", None)


@pytest.mark.parametrize(
    ("row", "verdict", "label"),
    [
        (0, "maybe", None),
        (0, "undone", None),
        (0, "wrong", "unicorn"),
        (0, "wrong", "cat"),
        (300, "right", None),
        (-1, "right", None),
    ],
)
def test_what_is_no_answer_is_not_stored(tmp_path: Path, row: int, verdict: str, label: str | None) -> None:
    reviewed = session(tmp_path)
    with pytest.raises(UserError):
        reviewed.answer("me", row, verdict, label)
    assert reviewed.answers.read() == []
