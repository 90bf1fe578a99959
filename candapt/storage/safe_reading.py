"""Reading files that strangers may have made: bounded in size, plain values only, nothing outside the given folder.

A `ValueError` holds the reason alone; the caller knows what the file is for and makes a sentence of it.
"""

import json
import os
import sys
import types
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

MAX_JSON = 16 * 2**20  # largest JSON file in bytes; a model with a thousand classes takes a thousandth of it
MAX_YAML = 64 * 2**10  # largest configuration in bytes; a run's own has about two thousand, and the YAML reader is slow
MAX_TABLE = 256 * 2**20  # largest CSV file in bytes: some four million lines
MAX_DEPTH = 16  # deepest nesting of a configuration or a JSON file
MAX_SHOWN = 200  # characters of foreign text that a message repeats

Kind = TypeVar("Kind")


def contained(folder: Path, name: str) -> Path:
    """A file of a folder that someone else may have filled; a `ValueError` for a link out of it or no plain file."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name} is a link that leads out of the folder")
    check_file(path)
    return path


def check_file(path: Path, limit: int | None = None) -> None:
    """Raise a `ValueError` for what is not a plain file, such as an endless pipe, or is larger than the limit."""
    if not path.exists():
        raise ValueError(f"there is no file {path.name}")
    if not path.is_file():
        raise ValueError(f"{path.name} is not a plain file")
    if limit is not None and path.stat().st_size > limit:
        raise ValueError(f"{path.name} is larger than the {format_size(limit)} that such a file may have")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    check_file(path, MAX_JSON)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no object")
    if _is_deep(content):
        raise ValueError(f"{path.name} is nested too deeply")
    return content


def _is_deep(tree: Any) -> bool:
    """Whether lists and mappings are nested deeper than any file of ours; computed without recursion."""
    level = [tree]
    for _ in range(MAX_DEPTH):
        level = [item for node in level for item in (node.values() if isinstance(node, dict) else node)]
        level = [item for item in level if isinstance(item, dict | list)]
    return bool(level)


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, through which a short file can expand without end, and without dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (as PyYAML has it)
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Raise a `ValueError` for an alias before it is resolved."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it uses aliases (*name), which are not read")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, which may hold text, numbers, true, false, null, lists and mappings."""
    check_file(path, MAX_YAML)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)  # a safe loader
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(shortened(str(error))) from None
    if not isinstance(content, dict):
        raise ValueError("it must hold settings by name, as a run's config.yaml does")
    _check_plain(content, "")
    return content


def _check_plain(value: Any, name: str, depth: int = 0) -> None:
    """Raise a `ValueError` for YAML values that settings do not have, such as dates or huge numbers."""
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{shortened(repr(key), 40)} is not the name of a setting")
            _check_plain(item, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, name, depth + 1)
    elif isinstance(value, str) and "\0" in value:
        raise ValueError(f"{shortened(name, 40)} holds a null character")
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{shortened(name, 40)} is a number with more than 18 digits")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"{shortened(name, 40)} is a {type(value).__name__}: write it in quotes")


def from_plain(kind: type[Kind], values: Any) -> Kind:
    """An instance of a dataclass from its fields as JSON has them, each checked against its type.

    Fields that older versions had, which the class lists as `RETIRED`, are ignored.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{kind.__name__} must be an object")
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    values = {name: value for name, value in values.items() if name not in getattr(kind, "RETIRED", ())}
    if unknown := sorted(values.keys() - known):
        raise ValueError(f"{kind.__name__} has no {shortened(unknown[0], 40)!r}")
    return kind(**{name: fitted(value, hints[name], name) for name, value in values.items()})


def fitted(value: Any, hint: Any, name: str) -> Any:
    """A plain value as the type hint requires it: lists become tuples, whole numbers floats, texts paths."""
    kind, options = get_origin(hint) or hint, get_args(hint)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind in (Union, types.UnionType):
        for option in options:
            with suppress(ValueError):
                return fitted(value, option, name)
    elif kind is Literal and isinstance(value, str) and value in options:
        return value
    elif kind is tuple and isinstance(value, list):
        return tuple(fitted(item, options[0], name) for item in value)
    elif kind is float and (is_whole or isinstance(value, float)) and abs(value) <= sys.float_info.max:
        return float(value)  # neither infinite nor NaN
    elif kind is int and is_whole and abs(value) < 2**63:
        return value
    elif kind is Path and isinstance(value, str):
        return Path(value)
    elif kind not in (Literal, tuple, float, int, Path) and isinstance(value, kind):
        return value
    raise ValueError(f"{name} is {shortened(repr(value), 40)}")


def memory() -> int:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # some systems do not say
        return 16 * 2**30


def format_size(count: int) -> str:
    """A number of bytes for people.

    >>> format_size(999), format_size(16 * 2**20), format_size(3_260_000_000), format_size(1_040_000)
    ('999 bytes', '16 MiB', '3.04 GiB', '1016 KiB')
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    step = min(len(units) - 1, max(0, count.bit_length() - 1) // 10)
    value = count / 1024**step
    return f"{value:.{3 if value < 100 else 4}g} {units[step]}"


def shortened(text: str, limit: int = MAX_SHOWN) -> str:
    """The text on one line, cut after `limit` characters."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else f"{line[:limit]}…"


def printable(text: str) -> str:
    r"""The text with control characters and invalid Unicode escaped, so that no name can control a terminal.

    >>> print(printable("a\x1b[2J\udce9b"))
    a\x1b[2J\udce9b
    """
    shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(shown)
