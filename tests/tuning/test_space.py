"""What is searched for each method."""

from dataclasses import fields
from typing import Any

import pytest

from candapt.adaptation import check_settings
from candapt.errors import UserError
from candapt.evaluation.scores import SCORES
from candapt.methods import METHODS
from candapt.presets import make_settings, read_setting
from candapt.tuning.objective import DEFAULT, INCOMPARABLE, OF_SOURCE, check_score, is_better
from candapt.tuning.space import OWN, Range, apply, search_space


def test_there_is_a_space_for_each_method() -> None:
    assert OWN.keys() == METHODS.keys()


@pytest.mark.parametrize("method", METHODS)
class TestMethods:
    def test_own_settings_exist_and_hold_their_defaults(self, method: str) -> None:
        defaults = {field.name: field.default for field in fields(METHODS[method].Settings)}
        for name, limits in OWN[method].items():
            assert limits.low < defaults[name] <= limits.high or limits.low <= defaults[name] < limits.high
            assert isinstance(defaults[name], int) is limits.whole

    def test_limits_are_settings_that_can_be_trained(self, method: str) -> None:
        settings = make_settings(method)
        space = search_space(settings, (), 31)
        assert "training.learning_rate" in space
        for values in ({n: r.low for n, r in space.items()}, {n: r.high for n, r in space.items()}):
            made = apply(settings, values)
            check_settings(made)
            assert {name: read_setting(made, name) for name in space} == values


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
            ({"can"}, {"training.learning_rate"}),
            ({"training"}, {"can.weight"}),
            ({"training.steps", "rounds"}, {"can.weight", "training.learning_rate"}),
        ],
    )
    def test_fixed_settings_are_left_out(self, fixed: set[str], left: set[str]) -> None:
        space = search_space(make_settings("can"), fixed, 31)
        assert left <= space.keys()
        assert not fixed & space.keys()
        assert "can" not in fixed or not any(name.startswith("can.") for name in space)

    def test_ranges_grow_to_hold_the_start(self) -> None:
        changes = {"can.weight": 5.0, "can.max_distance": 0.01, "training.learning_rate": 0.0}
        space = search_space(make_settings("can", changes=changes), (), 31)
        assert space["can.weight"] == Range(0.03, 5, log=True)
        assert space["can.max_distance"] == Range(0.01, 1, log=True)
        assert space["training.learning_rate"] == Range(0, 0.01)  # there is no logarithm of 0

    @pytest.mark.parametrize(("classes", "limits"), [(31, (5, 20)), (12, (5, 12)), (10, None), (3, None)])
    def test_a_batch_has_no_more_classes_than_the_task(self, classes: int, limits: Any) -> None:
        found = search_space(make_settings("can"), (), classes).get("can.classes")
        assert (found and (found.low, found.high)) == limits


@pytest.mark.parametrize(
    ("value", "held"), [(1, True), (6, True), (7, False), (0, False), (2.5, False), (True, False), ("2", False)]
)
def test_whole_numbers(value: object, held: bool) -> None:
    assert Range(1, 6, whole=True).holds(value) is held


class TestScores:
    def test_each_is_good_or_refused_with_a_reason(self) -> None:
        assert INCOMPARABLE.keys() | set(OF_SOURCE) | {DEFAULT} <= SCORES.keys()
        for name in SCORES.keys() - INCOMPARABLE.keys() - set(OF_SOURCE):
            check_score(name, make_settings())
        for name, reason in INCOMPARABLE.items():
            with pytest.raises(UserError, match=f"cannot be compared by {name}, since {reason}: take information, "):
                check_score(name, make_settings())

    @pytest.mark.parametrize("name", ["accuracy", "classification", ""])
    def test_unknown_ones(self, name: str) -> None:
        with pytest.raises(UserError, match=f"--score is '{name}', but must be one of information, bnm"):
            check_score(name, make_settings())

    @pytest.mark.parametrize("name", OF_SOURCE)
    def test_those_of_the_source_need_some_that_was_not_trained_on(self, name: str) -> None:
        with pytest.raises(UserError, match=r"give --training.held_out 0.1"):
            check_score(name, make_settings())
        check_score(name, make_settings(changes={"training.held_out": 0.1}))

    def test_better_is_not_as_good(self) -> None:
        assert is_better(2, 1, "class_ami")
        assert not is_better(1, 1, "class_ami")
        assert is_better(1, 2, "dev")
        assert not is_better(1, 1, "dev")
