"""Flags that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import ActionYesNo, ArgumentParser, set_parsing_settings

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class _PathType:
    """A path as it was given. What the parser knows as one is read as YAML first, which not every name of a file is."""

    def __call__(self, value: Any) -> Path | None:
        """The path, or None if there is none."""
        if not isinstance(value, str | Path | None):
            raise ValueError("not a path")
        return None if value is None else Path(value)

    def __repr__(self) -> str:
        return "path"  # as the help shows it


path_type = _PathType()


def make_parser(name: str, command: Callable[..., None]) -> ArgumentParser:
    """A parser that tells what the docstring of the command does, and raises its errors."""
    return ArgumentParser(prog=f"candapt {name}", description=command.__doc__, exit_on_error=False)


def add_strict(parser: ArgumentParser) -> None:
    """Whether files and classes that cannot be used are left out, or are an error."""
    parser.add_argument(
        "--strict",
        action=ActionYesNo(),
        nargs="?",
        default=False,
        help="Stop at files that do not decode, classes without an image and unknown classes; else they are left out.",
    )


def add_cache(parser: ArgumentParser) -> None:
    """The folder of the activation cache, for all commands that use it."""
    text = "Folder that keeps what frozen layers make of images; default: CANDAPT_CACHE, else the user's cache folder."
    parser.add_argument("--cache", type=path_type, default=None, help=text)
