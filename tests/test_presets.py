"""Presets, and settings by the names of the flags."""

from typing import Any

import pytest

from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS, make_settings
from candapt.settings import Settings, TrainingSettings


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_of_a_preset_arrives_in_can(preset: str) -> None:
    settings = make_settings("can", preset=preset)
    for name, value in PRESETS[preset].items():
        owner, field = settings, name
        if "." in name:
            group, field = name.split(".")
            owner = settings.adaptation if group == "can" else getattr(settings, group)
        assert getattr(owner, field) == value, name


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_every_preset(method: str, preset: str) -> None:
    settings = make_settings(method, preset=preset)
    assert isinstance(settings.adaptation, METHODS[method].Settings)
    assert settings.rounds == PRESETS[preset].get("rounds", Settings.rounds)


def test_the_default_is_what_the_classes_say() -> None:
    assert make_settings() == Settings(adaptation=METHODS["can"].Settings())
    assert PRESETS[DEFAULT] == {}


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
    assert (settings.adaptation.weight, settings.adaptation.classes, settings.adaptation.samples) == (0.3, 10, 3)
    assert settings.adaptation.unit_centers is (preset == "paper")
    assert settings.adaptation.align_centers is (preset == "official")


def test_changes_come_last() -> None:
    changes = {"rounds": 7, "network.bottleneck": 9, "training.steps": 11, "can.weight": 0.5}
    settings = make_settings("can", preset="paper", seed=3, changes=changes)
    assert (settings.rounds, settings.seed) == (7, 3)
    assert settings.network.bottleneck == 9
    assert settings.training.steps == 11
    assert settings.training.schedule == "progress"
    assert settings.adaptation.weight == 0.5


def test_settings_are_compared_by_value_and_cannot_be_changed() -> None:
    assert make_settings() == make_settings()
    assert make_settings() != make_settings(seed=1)
    with pytest.raises(AttributeError):
        make_settings().training.steps = 3  # type: ignore[misc]
    assert TrainingSettings() == make_settings().training


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"method": "nope"}, "There is no 'nope': choose one of .*can"),
        ({"preset": "nope"}, "There is no 'nope': choose one of default, paper, official"),
        ({"changes": {"stepz": 3}}, "There is no setting 'stepz' for can"),
        ({"changes": {"training.stepz": 3}}, "There is no setting 'training.stepz' for can"),
        ({"changes": {"nope.steps": 3}}, "There is no setting 'nope.steps' for can"),
        ({"changes": {"training": TrainingSettings()}}, "There is no setting 'training' for can"),
        ({"changes": {"adaptation": None}}, "There is no setting 'adaptation' for can"),
        ({"method": "source-only", "changes": {"can.weight": 1.0}}, "There is no setting 'can.weight' for source-only"),
        ({"changes": {"": 3}}, "There is no setting ''"),
        ({"changes": {"training.steps.more": 3}}, "There is no setting 'training.steps.more'"),
    ],
)
def test_names_that_do_not_exist(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_settings(**arguments)
