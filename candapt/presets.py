"""Presets: published settings by name. Values that a method or a network does not have are passed over."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.methods.can import CAN
from candapt.settings import Settings

DEFAULT = "default"

PRESETS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    # The text of the paper (section 4.1). It filters only on two tasks of Office-31, see `configs/`.
    "paper": {
        "rounds": 50,
        "network.bottleneck": None,
        "network.dropout": 0.0,
        "training.optimizer": "sgd",
        "training.new_layers": 10.0,
        "training.steps": None,
        "training.schedule": "progress",
        "training.slope": 10.0,
        "training.power": 0.75,
        "training.statistics": "running",
        "training.head_rounds": 0,
        "can.weight": 0.3,
        "can.divisor": "task",
        "can.max_distance": 1.0,
        "can.start_share": 1.0,
        "can.min_samples": 1,
        "can.classes": 10,
        "can.samples": 3,
        "can.unit_centers": True,
        "can.align_centers": False,
        "can.warmup": 0,
    },
    # The authors' released code, its configuration for Office-31.
    "official": {
        "rounds": 50,
        "network.bottleneck": None,
        "network.dropout": 0.0,
        "training.optimizer": "sgd",
        "training.new_layers": 10.0,
        "training.steps": None,
        "training.schedule": "iteration",
        "training.slope": 0.001,
        "training.power": 0.75,
        "training.statistics": "running",
        "training.head_rounds": 0,
        "can.weight": 0.3,
        "can.divisor": "task",
        "can.max_distance": 1.0,
        "can.start_share": 1.0,
        "can.min_samples": 3,
        "can.classes": 10,
        "can.samples": 3,
        "can.unit_centers": False,
        "can.align_centers": True,
        "can.warmup": 0,
    },
}


def make_settings(
    method: str = "can", *, preset: str = DEFAULT, seed: int = 0, changes: Mapping[str, Any] | None = None
) -> Settings:
    """Settings from a preset and changes to it.

    Args:
        method: a name in `METHODS`.
        preset: a name in `PRESETS`.
        seed: seed of every random draw.
        changes: values by the names of the command line's flags, for instance {"rounds": 5, "can.weight": 0.5}.
    """
    for name, table in ((method, METHODS), (preset, PRESETS)):
        if name not in table:
            raise UserError(f"There is no {name!r}: choose one of {', '.join(table)}.")
    settings = Settings(method=method, seed=seed, adaptation=METHODS[method].Settings())
    for name, value in for_family(PRESETS[preset], [method]).items():
        if _has(settings, name):
            settings = change_setting(settings, name, value)
    for name, value in (changes or {}).items():
        if not _has(settings, name):
            raise UserError(f"There is no setting {name!r} for {method}: `candapt adapt --help` lists them.")
        settings = change_setting(settings, name, value)
    return settings


def for_family(changes: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Any]:
    """Changes to CAN's settings made to its ablations too, since a fair ablation differs in one thing only.

    A setting that a relative uses otherwise, and so starts from another default, is left as it is: the weight of the
    pseudo-label methods.
    """
    spread = dict(changes)
    for name, value in changes.items():
        group, _, setting = name.rpartition(".")
        if group == "can":
            related = [method for method in methods if _shares(method, setting)]
            spread |= {f"{method}.{setting}": value for method in related if f"{method}.{setting}" not in changes}
    return spread


def _shares(method: str, setting: str) -> bool:
    """Whether a relative of CAN has the setting with the same default."""
    own, theirs = ({f.name: f.default for f in fields(METHODS[name].Settings)} for name in ("can", method))
    return issubclass(METHODS[method], CAN) and setting in theirs and theirs[setting] == own.get(setting)


def _parts(settings: Settings, name: str) -> tuple[str, str]:
    """Group and field of a dotted name; a method's own group is the field `adaptation`."""
    group, _, field = name.rpartition(".")
    return ("adaptation" if group == settings.method else group), field


def _has(settings: Settings, name: str) -> bool:
    group, field = _parts(settings, name)
    owner = getattr(settings, group, None) if group else settings
    return owner is not None and field in {f.name for f in fields(owner)} - {"network", "training", "adaptation"}


def read_setting(settings: Settings, name: str) -> Any:
    """The value of a setting by its flag's name."""
    group, field = _parts(settings, name)
    return getattr(getattr(settings, group) if group else settings, field)


def change_setting(settings: Settings, name: str, value: Any) -> Settings:
    """The settings with another value of one, by its flag's name."""
    group, field = _parts(settings, name)
    if not group:
        return replace(settings, **{field: value})
    return replace(settings, **{group: replace(getattr(settings, group), **{field: value})})
