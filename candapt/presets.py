"""Presets: published settings by name. A preset's values for settings that a method does not have are ignored."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from candapt.errors import UserError, known_name, nearest_name
from candapt.methods import METHODS
from candapt.methods.can import CAN
from candapt.settings import NetworkSettings, Settings, TrainingSettings

DEFAULT = "default"

_COMMON = {
    "rounds": 50,
    "network.bottleneck": None,
    "network.heads": 1,
    "network.dropout": 0.0,
    "network.views": 2,
    "training.optimizer": "sgd",
    "training.new_layers": 10.0,
    "training.steps": None,
    "training.power": 0.75,
    "training.statistics": "running",
    "training.head_rounds": 0,
    "training.proportions": "off",
    "training.unknown": "off",
    "can.weight": 0.3,
    "can.divisor": "task",
    "can.max_distance": 1.0,
    "can.start_share": 1.0,
    "can.classes": 10,
    "can.samples": 3,
    "can.warmup": 0,
    "can.labels": "clusters",
    "can.selection": "distance",
    "can.confusion": 0.0,
}  # what the paper's text and the authors' code have in common

FORMER: dict[str, Any] = {
    "training.proportions": "off",
    "training.unknown": "off",
}  # settings of version 0.1 that have another default now

PRESETS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    # The text of the paper (section 4.1). It filters only on two tasks of Office-31: `benchmark/suites.py`, `configs/`.
    "paper": {
        **_COMMON,
        "network.frozen_stem": False,
        "training.schedule": "progress",
        "training.slope": 10.0,
        "can.min_samples": 0,
        "can.min_samples_rule": "more-than",
        "can.unit_centers": True,
        "can.align_centers": False,
    },
    # The authors' released code, its configuration for Office-31.
    "official": {
        **_COMMON,
        "network.frozen_stem": True,
        "training.schedule": "iteration",
        "training.slope": 0.001,
        "training.clustering_views": "training",
        "can.min_samples": 3,
        "can.min_samples_rule": "at-least",
        "can.unit_centers": False,
        "can.align_centers": True,
    },
}


def make_settings(
    method: str = "can",
    *,
    preset: str = DEFAULT,
    seed: int = 0,
    defaults: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    recipe: bool = True,
) -> Settings:
    """Settings from the method's recipe, a preset, other defaults and explicit changes; each overrides the one before.

    Defaults and changes are values by flag name, for instance {"rounds": 5, "can.weight": 0.5}; a default for a setting
    that the method does not have is ignored, such a change raises a `UserError`, as does a value outside its limits.
    Without the recipe, settings that nothing else names are as in version 0.1.
    """
    known_name(method, METHODS, "method")
    known_name(preset, PRESETS, "preset")
    settings = Settings(method=method, seed=seed, method_settings=METHODS[method].Settings())
    own = METHODS[method].recipe if recipe else FORMER
    inherited = for_family({**own, **PRESETS[preset], **(defaults or {})}, method)
    values = {name: value for name, value in inherited.items() if settings.has(name)}
    for name, value in (changes or {}).items():
        if not settings.has(name):
            near = nearest_name(name, settings.names())
            hint = f"did you mean {near!r}?" if near else "`candapt adapt --help` lists them."
            raise UserError(f"There is no setting {name!r} for {method}: {hint}")
        values[name] = value
    return settings.changed(values)


def retired_settings() -> set[str]:
    """Flag names of settings that older versions wrote to their files; they had no effect."""
    kinds = {"network": NetworkSettings, "training": TrainingSettings, **{m: METHODS[m].Settings for m in METHODS}}
    return {f"{group}.{name}" for group, kind in kinds.items() for name in getattr(kind, "RETIRED", ())}


def for_family(changes: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Changes to CAN's settings applied to a relative of it too, since a fair ablation differs in one thing only.

    A setting for which the relative has another default stays as it is: the weight of the pseudo-label methods.
    """
    own = {f.name: f.default for f in fields(METHODS["can"].Settings)}
    theirs = {f.name: f.default for f in fields(METHODS[method].Settings)}
    spread = dict(changes)
    for name, value in changes.items():
        group, _, item = name.rpartition(".")
        shared = item in theirs and theirs[item] == own.get(item)
        if group == "can" and shared and issubclass(METHODS[method], CAN):
            spread.setdefault(f"{method}.{item}", value)
    return spread
