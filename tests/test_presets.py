"""Presets, and settings by the names of the flags."""

from typing import Any

import pytest

from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.methods.can import CAN
from candapt.presets import DEFAULT, FORMER, PRESETS, make_settings
from candapt.settings import Settings, TrainingSettings


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_of_a_preset_arrives_in_can(preset: str) -> None:
    settings = make_settings("can", preset=preset)
    for name, value in PRESETS[preset].items():
        owner, field = settings, name
        if "." in name:
            group, field = name.split(".")
            owner = settings.method_settings if group == "can" else getattr(settings, group)
        assert getattr(owner, field) == value, name


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_every_preset(method: str, preset: str) -> None:
    settings = make_settings(method, preset=preset)
    assert isinstance(settings.method_settings, METHODS[method].Settings)
    assert settings.rounds == PRESETS[preset].get("rounds", Settings.rounds)


def test_the_default_is_what_the_classes_say() -> None:
    assert make_settings("mcc") == Settings(method="mcc", method_settings=METHODS["mcc"].Settings())
    plain = Settings(method_settings=METHODS["can"].Settings()).changed(FORMER)
    assert make_settings(recipe=False) == plain
    assert PRESETS[DEFAULT] == {}


@pytest.mark.parametrize("method", [name for name in METHODS if issubclass(METHODS[name], CAN)])
def test_a_recipe_changes_what_nothing_else_names(method: str) -> None:
    """It is CAN's, and so that of its ablations; a preset and explicit changes come before it."""
    plain, own = make_settings(method, recipe=False), make_settings(method)
    for name, value in CAN.recipe.items():
        name = name.replace("can.", f"{method}.")
        assert not own.has(name) or (own.value(name) == value != plain.value(name))
    assert make_settings(method, changes={"network.heads": 2}).network.heads == 2
    paper = make_settings("can", preset="paper")
    assert (paper.network.heads, paper.network.bottleneck) == (1, None)
    assert (paper.method_settings.labels, paper.method_settings.selection) == ("clusters", "distance")


@pytest.mark.parametrize(
    ("preset", "expected"),
    [  # methods.md 1: the paper's text against the authors' code
        ("paper", {"schedule": "progress", "slope": 10, "power": 0.75, "steps": None, "statistics": "running"}),
        ("official", {"schedule": "iteration", "slope": 0.001, "power": 0.75, "steps": None, "statistics": "running"}),
    ],
)
def test_published_trainings(preset: str, expected: dict[str, Any]) -> None:
    settings = make_settings("can", preset=preset)
    assert {name: getattr(settings.training, name) for name in expected} == expected
    assert (settings.training.learning_rate, settings.training.new_layers, settings.training.momentum) == (
        1e-3,
        10,
        0.9,
    )
    assert (settings.training.weight_decay, settings.training.batch_size, settings.rounds) == (5e-4, 30, 50)
    own = settings.method_settings
    assert (own.weight, own.classes, own.samples) == (0.3, 10, 3)
    assert own.unit_centers is (preset == "paper")
    assert own.align_centers is (preset == "official")


def test_changes_come_last() -> None:
    changes = {"rounds": 7, "network.bottleneck": 9, "training.steps": 11, "can.weight": 0.5}
    settings = make_settings("can", preset="paper", seed=3, changes=changes)
    assert (settings.rounds, settings.seed) == (7, 3)
    assert settings.network.bottleneck == 9
    assert settings.training.steps == 11
    assert settings.training.schedule == "progress"
    assert settings.method_settings.weight == 0.5


def test_settings_are_compared_by_value_and_cannot_be_changed() -> None:
    assert make_settings() == make_settings()
    assert make_settings() != make_settings(seed=1)
    with pytest.raises(AttributeError):
        make_settings().training.steps = 3  # type: ignore[misc]
    assert TrainingSettings() == make_settings().training


def test_settings_are_read_and_changed_by_flag_name() -> None:
    settings = make_settings("can-intra", seed=3)
    changes = {"rounds": 7, "network.views": 1, "training.steps": 11, "can-intra.weight": 0.5}
    changed = settings.changed(changes)
    assert {name: changed.value(name) for name in changes} == changes
    assert (changed.method, changed.seed, changed.training.momentum) == ("can-intra", 3, settings.training.momentum)
    assert settings == make_settings("can-intra", seed=3)  # the original stays
    assert all(settings.has(name) for name in (*changes, "seed", "select"))
    assert not any(settings.has(name) for name in ("can.weight", "training", "training.nope", "nope.steps", "", "."))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 0}, "rounds is 0, but must be at least 1."),
        ({"training.held_out": 1.0}, "training.held_out is 1.0, but must be less than 1."),
        ({"network.dropout": 1.5}, "network.dropout is 1.5, but must be at most 1."),
        ({"can.samples": 0}, "can.samples is 0, but must be at least 1."),
        ({"training.nesterov": True, "training.optimizer": "adam"}, "leave one of them out."),
    ],
)
def test_values_outside_their_limits_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_settings().changed(changes)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"method": "nope"}, "There is no method 'nope': choose one of .*can"),
        ({"preset": "nope"}, "There is no preset 'nope': choose one of default, paper, official"),
        ({"changes": {"stepz": 3}}, "There is no setting 'stepz' for can"),
        ({"changes": {"training.stepz": 3}}, "There is no setting 'training.stepz' for can"),
        ({"changes": {"nope.steps": 3}}, "There is no setting 'nope.steps' for can"),
        ({"changes": {"training": TrainingSettings()}}, "There is no setting 'training' for can"),
        ({"changes": {"method_settings": None}}, "There is no setting 'method_settings' for can"),
        ({"method": "cna"}, "There is no method 'cna': did you mean 'can'\\?"),
        ({"preset": "oficial"}, "There is no preset 'oficial': did you mean 'official'\\?"),
        ({"method": "source-only", "changes": {"can.weight": 1.0}}, "There is no setting 'can.weight' for source-only"),
        ({"changes": {"": 3}}, "There is no setting ''"),
        ({"changes": {"training.steps.more": 3}}, "There is no setting 'training.steps.more'"),
    ],
)
def test_names_that_do_not_exist(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_settings(**arguments)
