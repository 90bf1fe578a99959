"""What is searched for each method."""

from dataclasses import fields
from typing import Any

import pytest

from candapt.errors import UserError
from candapt.evaluation.scores import RETIRED, SCORES
from candapt.methods import METHODS
from candapt.presets import make_settings
from candapt.settings import Range
from candapt.tuning.space import DEFAULT_SCORE, check_score, comparable_scores, search_space

OF_SOURCE = [name for name, score in SCORES.items() if score.needs_held_out]
INCOMPARABLE = {name: score.incomparable for name, score in SCORES.items() if score.incomparable}


def own_ranges(method: str) -> dict[str, Range]:
    """The ranges that a method's own settings carry."""
    searched = {field.name: field.metadata.get("search") for field in fields(METHODS[method].Settings)}
    return {name: limits for name, limits in searched.items() if limits is not None}


def test_every_method_but_source_only_has_something_of_its_own_to_search() -> None:
    assert [method for method in METHODS if not own_ranges(method)] == ["source-only"]


@pytest.mark.parametrize("method", METHODS)
class TestMethods:
    def test_own_ranges_hold_their_defaults(self, method: str) -> None:
        defaults = {field.name: field.default for field in fields(METHODS[method].Settings)}
        for name, limits in own_ranges(method).items():
            assert limits.low < defaults[name] <= limits.high or limits.low <= defaults[name] < limits.high
            assert isinstance(defaults[name], int) is limits.whole

    def test_limits_are_settings_that_can_be_trained(self, method: str) -> None:
        settings = make_settings(method)
        space = search_space(settings, (), 31)
        assert "training.learning_rate" in space
        for values in ({n: r.low for n, r in space.items()}, {n: r.high for n, r in space.items()}):
            changed = settings.changed(values)  # which checks the limits
            assert {name: changed.value(name) for name in space} == values


class TestSearchSpace:
    def test_what_can_does(self) -> None:
        assert list(search_space(make_settings("can"), (), 31)) == [
            *("can.weight", "can.start_share", "can.max_distance", "can.min_samples", "can.classes", "can.samples"),
            "training.learning_rate",
        ]

    @pytest.mark.parametrize(
        ("fixed", "left"),
        [
            ({"can.weight"}, {"training.learning_rate", "can.samples"}),
            ({"training.learning_rate"}, {"can.weight"}),
            ({"training.steps", "rounds"}, {"can.weight", "training.learning_rate"}),
        ],
    )
    def test_fixed_settings_are_left_out(self, fixed: set[str], left: set[str]) -> None:
        space = search_space(make_settings("can"), fixed, 31)
        assert left <= space.keys()
        assert not fixed & space.keys()

    def test_ranges_grow_to_hold_the_start(self) -> None:
        changes = {"can.weight": 5.0, "can.max_distance": 0.01, "training.learning_rate": 0.0}
        space = search_space(make_settings("can", changes=changes), (), 31)
        assert space["can.weight"] == Range(0.03, 5, log=True)
        assert space["can.max_distance"] == Range(0.01, 1, log=True)
        assert space["training.learning_rate"] == Range(0, 0.01)  # there is no logarithm of 0

    @pytest.mark.parametrize(("classes", "limits"), [(31, (5, 20)), (12, (5, 12)), (10, None), (3, None)])
    def test_a_batch_has_no_more_classes_than_the_task(self, classes: int, limits: Any) -> None:
        searched = search_space(make_settings("can"), (), classes).get("can.classes")
        assert (searched and (searched.low, searched.high)) == limits


@pytest.mark.parametrize(
    ("value", "held"), [(1, True), (6, True), (7, False), (0, False), (2.5, False), (True, False), ("2", False)]
)
def test_whole_numbers(value: object, held: bool) -> None:
    assert Range(1, 6, whole=True).holds(value) is held


class TestScores:
    def test_each_is_good_or_refused_with_a_reason(self) -> None:
        assert INCOMPARABLE
        assert DEFAULT_SCORE in comparable_scores()
        assert comparable_scores() == [name for name in SCORES if name not in INCOMPARABLE]
        for name in SCORES.keys() - INCOMPARABLE.keys() - set(OF_SOURCE):
            check_score(name, make_settings())
        good = ", ".join(comparable_scores())
        for name, reason in INCOMPARABLE.items():
            with pytest.raises(UserError, match=f"cannot be compared by {name}, since {reason}: use one of {good}"):
                check_score(name, make_settings())

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("accuracy", "choose one of neighbor_information, agreement, "),
            ("class-ami", r"did you mean 'class_ami'\?"),
            ("", "choose one of neighbor_information, agreement, "),
        ],
    )
    def test_unknown_ones(self, name: str, advice: str) -> None:
        with pytest.raises(UserError, match=f"There is no score for --score named '{name}': {advice}"):
            check_score(name, make_settings())

    @pytest.mark.parametrize("name", RETIRED)
    def test_removed_ones(self, name: str) -> None:
        with pytest.raises(UserError, match=f"--score is '{name}', a score that was removed: use {RETIRED[name]} inst"):
            check_score(name, make_settings())

    @pytest.mark.parametrize("name", OF_SOURCE)
    def test_those_of_the_source_need_some_that_was_not_trained_on(self, name: str) -> None:
        with pytest.raises(UserError, match=r"give --training.held_out 0.1"):
            check_score(name, make_settings())
        check_score(name, make_settings(changes={"training.held_out": 0.1}))
