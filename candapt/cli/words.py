"""The words of a command before its parser sees them: what must be known first, and in which order it wants them."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from candapt.errors import UserError
from candapt.untrusted import shortened

BARE = ("-h", "--help", "--print_config", "--resume", "--force")
"""Flags of commands with SOURCE and TARGET that no value follows."""


def look_ahead(arguments: Sequence[str], *names: str, bare: Sequence[str] = ()) -> tuple[argparse.Namespace, list[str]]:
    """The values of a few flags, on which it depends what else may be said, and all other words.

    >>> look_ahead(["a.npz", "--method", "can"], "method")
    (Namespace(method='can'), ['a.npz'])
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in names:
        first.add_argument(f"--{name}")
    for name in bare:
        first.add_argument(f"--{name}", action="store_true")
    return first.parse_known_args(arguments)


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """Short names of much used flags in full.

    >>> spelled_out(["--finetune", "last-stage", "--weights=a.safetensors"])
    ['--network.finetune', 'last-stage', '--network.weights=a.safetensors']
    """
    groups = {"network": "backbone|weights|finetune", "training": "on-nonfinite"}
    full = {name: f"{group}.{name.replace('-', '_')}" for group, names in groups.items() for name in names.split("|")}
    return [re.sub(r"^--([a-z-]+)(?==|$)", lambda flag: f"--{full.get(flag[1], flag[1])}", word) for word in arguments]


def strict_last(arguments: Sequence[str]) -> list[str]:
    """A bare `--strict` behind everything else, where no path can be taken for its value.

    >>> strict_last(["--strict", "run", "photos"])
    ['run', 'photos', '--strict']
    """
    words: list[str] = []
    bare: list[str] = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        alone = word in ("--strict", "--no_strict") and following.lower() not in ("true", "false", "yes", "no")
        (bare if alone else words).append(word)
    return words + bare


def paths_first(arguments: Sequence[str]) -> list[str]:
    """SOURCE and TARGET before all flags: the parser, for which both are optional, overlooks one that comes later.

    >>> paths_first(["photos", "--out", "run", "webcam"])
    ['photos', 'webcam', '--out', 'run']
    """
    paths, flags, rest = [], [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            paths.append(argument)
        else:
            has_value = argument not in BARE and "=" not in argument
            flags += [argument, *([rest.pop(0)] if has_value and rest else [])]
    return paths + flags


def one_of(name: Any, table: dict[str, Any], flag: str) -> str:
    """A name, if it is one of the table's."""
    if not isinstance(name, str) or name not in table:
        raise UserError(f"{flag} is {name!r}, but must be one of {', '.join(table)}.")
    return str(name)


def listed(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def given_path(value: Any, name: str, what: str) -> Path:
    """A path that is needed, from the flags or from a configuration."""
    if value is None:
        raise UserError(f"{name} is missing: give {what}, or a --config that names it.")
    if not isinstance(value, str | Path):
        raise UserError(f"{name} is {shortened(repr(value), 80)} in the configuration, but must be {what}.")
    return Path(value)
