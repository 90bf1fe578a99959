"""Configuration files, which may come from strangers: what they may say, and how it reaches the parser."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from candapt.cli.settings import group_name
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.untrusted import read_yaml, shortened

NOT_IN_FILES = {"config", "out", "cache", "resume", "force"}
"""Flags that a configuration, which may come from a stranger, has no say in: where to write and what to make of it."""


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file with settings."""
    try:
        return read_yaml(path)
    except (OSError, ValueError) as error:
        raise UserError(f"The configuration {str(path)!r} cannot be read ({error}).") from None


def settings_from_file(config: Mapping[str, Any], parser: ArgumentParser, foreign: Collection[str]) -> list[str]:
    """The file's settings as first arguments, so that a flag wins wherever it stands.

    Only settings get through: a text where a group of settings belongs would be opened as another file, and where to
    write is not for a file to say, which may come from a stranger.
    """
    kept: dict[str, Any] = {}
    known = set(parser.get_defaults().keys()) - NOT_IN_FILES
    for name, value in config.items():
        if name in foreign:
            continue
        group = group_name(name) if name in METHODS else name
        settings = (
            {f"{group}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {group: value}
        )
        if value is None and group not in known:
            continue  # a group without settings
        if unknown := settings.keys() - known:
            named = shortened(min(unknown), 80)
            raise UserError(f"{named!r} is not understood: `{parser.prog} --help` lists what a configuration may hold.")
        kept |= settings
    return ["--config", yaml.safe_dump(kept)] if kept else []
