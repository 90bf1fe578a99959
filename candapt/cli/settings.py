"""The settings of a training as flags: which ones there are depends on the method, their defaults on the preset."""

from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from candapt.evaluation.scores import SCORES
from candapt.evaluation.selection import LAST
from candapt.methods import METHODS
from candapt.presets import PRESETS, for_family
from candapt.settings import ImageChoice, NetworkSettings, Settings, TrainingSettings


def add_common(parser: ArgumentParser, preset: str) -> None:
    """What every training may be told, whatever its method."""
    parser.add_argument("--config", action="config", help="YAML file with settings, such as a run's config.yaml.")
    parser.add_argument("--preset", default=preset, help=f"Where defaults come from: {', '.join(PRESETS)}.")
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="Rounds at most.")
    choices = f"{LAST}, or the best by one of {', '.join(SCORES)}"
    parser.add_argument("--select", type=str, default=Settings.select, help=f"Round to keep: {choices}.")


def add_groups(parser: ArgumentParser, methods: Sequence[str], defaults: Mapping[str, Any]) -> None:
    """The groups of settings, with other defaults where there is a flag for them."""
    parser.add_class_arguments(ImageChoice, "images")
    parser.add_class_arguments(NetworkSettings, "network")
    parser.add_class_arguments(TrainingSettings, "training")
    for method in methods:
        parser.add_class_arguments(METHODS[method].Settings, method)
    values, known = for_family(defaults, methods), parser.get_defaults()
    keys = {".".join([*map(group_name, name.split(".")[:-1]), name.split(".")[-1]]): name for name in values}
    parser.set_defaults({key: values[name] for key, name in keys.items() if key in known})


def group_name(method: str) -> str:
    """What the parser calls a method's group of settings."""
    return method.replace("-", "_")


def settings_from(parser: ArgumentParser, options: Namespace, method: str, seed: int = 0) -> Settings:
    """The settings that the flags and files say, for one of the parser's methods."""
    made = parser.instantiate(options)
    return Settings(
        method=method,
        seed=seed,
        rounds=options.rounds,
        select=options.select,
        network=made.network,
        training=made.training,
        adaptation=made.get(group_name(method)) or METHODS[method].Settings(),  # none if it has no settings
    )
