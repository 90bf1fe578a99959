"""Flags from dataclasses, in one pass: the fields of a command's options are its flags, their docstrings the help.

A flag is `--name value` or `--name=value`; a switch is `--name`, `--no-name` or `--name true`. Only flags that the user
gave get a value: what a configuration file, a preset or the code says of the others is decided in one place, by the
command. Nothing is read from a file but settings.
"""

import inspect
import math
import os
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import numpy as np

from candapt.commands import COMMANDS
from candapt.errors import UserError, nearest_name
from candapt.storage.safe_reading import fitted, read_yaml, shortened

_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
WIDTH = 110  # columns of the help


def positional(default: Any = MISSING, *, many: bool = False) -> Any:
    """A field that is given without a name; without a default it is required."""
    metadata = {"positional": True, "many": many}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def required() -> Any:
    """A field whose flag must be given."""
    return field()


def switch() -> Any:
    """A field that is false unless its flag is given."""
    return field(default=False, metadata={"switch": True})


@dataclass(frozen=True)
class Flag:
    """One option of a command."""

    name: str  # as configuration files have it, for instance training.learning_rate
    hint: Any
    help: str
    default: Any = None
    aliases: tuple[str, ...] = ()
    is_switch: bool = False
    is_positional: bool = False
    takes_many: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return get_origin(self.hint) is tuple

    @property
    def spellings(self) -> set[str]:
        """What it may be called on the command line, without dashes in front."""
        given = {self.name, *self.aliases}
        return {other for name in given for other in (name, name.replace("_", "-"), name.replace("-", "_"))}

    @property
    def keyword(self) -> str:
        """What a Python program calls it: `can__weight` for `can.weight`."""
        return (self.aliases[0] if self.aliases else self.name).replace(".", "__").replace("-", "_")

    @property
    def shown(self) -> str:
        """What errors and the help call it."""
        if self.is_positional:
            return self.name.upper()
        name = self.name if "." in self.name else self.name.replace("_", "-")
        return f"--{self.aliases[0] if self.aliases else name}"


@dataclass(frozen=True)
class Given:
    """What the user gave: values by flag name, and whether the help was asked for."""

    values: dict[str, Any]
    wants_help: bool = False


def flags_of(options: type, prefix: str = "", skip: Collection[str] = ()) -> list[Flag]:
    """The flags of a dataclass, each with the prefix, such as `network.`, but for the fields to skip."""
    hints, helps = get_type_hints(options), _field_docs(options)
    return [_flag(item, hints[item.name], prefix, helps) for item in fields(options) if item.name not in skip]


def _flag(item: Field[Any], hint: Any, prefix: str, helps: Mapping[str, str]) -> Flag:
    text, get = " ".join(helps.get(item.name, "").split()), item.metadata.get
    aliases: tuple[str, ...] = (get("alias", ""),) if get("alias") else ()
    kinds = (get("switch", False), get("positional", False), get("many", False))
    return Flag(f"{prefix}{item.name}", hint, text, item.default, aliases, *kinds)


@cache
def _field_docs(options: type) -> dict[str, str]:
    """The docstring below each field, of the class and those that it inherits from."""
    docs: dict[str, str] = {}
    for kind in reversed([kind for kind in inspect.getmro(options) if is_dataclass(kind)]):
        parsed = docstring_parser.parse_from_object(kind)
        docs |= {item.arg_name: item.description or "" for item in parsed.params}
    return docs


class Parser:
    """Parses the arguments of one command."""

    def __init__(self, command: str, flags: Iterable[Flag]) -> None:
        self.command = command
        self.flags = {flag.name: flag for flag in flags}
        self.positionals = [flag for flag in self.flags.values() if flag.is_positional]
        self._by_spelling = {name: flag for flag in self.flags.values() for name in flag.spellings}

    def parse(self, arguments: Sequence[str]) -> Given:
        """Values of the flags and paths that were given, in any order."""
        values: dict[str, Any] = {}
        words, wants_help, rest = list[str](), False, list(arguments)
        while rest:
            argument = rest.pop(0)
            if argument in ("-h", "--help"):
                wants_help = True
            elif argument.startswith("-") and argument != "-":
                flag, text = self._value(argument, rest, values)
                value = convert(text, flag.hint, flag.shown)
                if flag.is_list:
                    value = (*values.get(flag.name, ()), *value, *self._following(flag, rest))
                values[flag.name] = value
            else:
                words.append(argument)
        return Given(values if wants_help else values | self._assign(words), wants_help)

    def from_keywords(self, keywords: Mapping[str, Any]) -> Given:
        """What a Python program gave by name: the names of the flags, in which `__` may stand for a dot."""
        values: dict[str, Any] = {}
        for keyword, value in keywords.items():
            flag = self._by_spelling.get(keyword.replace("__", "."))
            if flag is None:
                raise self.unknown(keyword.replace("__", "."), keywords, as_keyword=True)
            plain = os.fspath(value) if isinstance(value, os.PathLike) else value
            plain = plain.item() if isinstance(plain, np.generic) else plain
            values[flag.name] = convert(plain, flag.hint, keyword)
        return Given(values)

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Arguments that give these values, by flag name, for another process."""
        words = [str(values[flag.name]) for flag in self.positionals if values.get(flag.name) is not None]
        flags = [(name, value) for name, value in values.items() if not self.flags[name].is_positional]
        each = [(name, item) for name, value in flags for item in (value if isinstance(value, tuple) else (value,))]
        return [*words, *(f"--{name}={show(item)}" for name, item in each)]

    def _value(self, argument: str, rest: list[str], values: Mapping[str, Any]) -> tuple[Flag, str]:
        """The flag of an argument and the text of its value, which is taken from the rest where it follows."""
        name, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in self._by_spelling:
            negated = self._by_spelling.get(name.removeprefix("no-").removeprefix("no_"))
            if negated is None or not negated.is_switch or equals:
                raise self.unknown(argument.partition("=")[0], values)
            return negated, "false"
        flag = self._by_spelling[name]
        if flag.is_positional:
            raise UserError(f"{f'--{name}'!r} is not an option: give {flag.shown} without a flag before it.")
        if equals:
            return flag, text
        if flag.is_switch and (not rest or rest[0].lower() not in _TRUTH):
            return flag, "true"
        if not rest or rest[0].startswith("--"):
            raise UserError(f"{flag.shown} needs a value; `candapt {self.command} --help` explains it.")
        return flag, rest.pop(0)

    @staticmethod
    def _following(flag: Flag, rest: list[str]) -> tuple[Any, ...]:
        """Further values of a flag that takes several, up to the next flag."""
        more: tuple[Any, ...] = ()
        while rest and not rest[0].startswith("--"):
            more += convert(rest.pop(0), flag.hint, flag.shown)
        return more

    def _assign(self, words: list[str]) -> dict[str, Any]:
        """Values of the positional arguments."""
        values: dict[str, Any] = {}
        for flag in self.positionals:
            if flag.takes_many and words:
                values[flag.name], words = tuple(map(Path, words)), []
            elif words:
                values[flag.name] = convert(words.pop(0), flag.hint, flag.shown)
            elif flag.default is MISSING:
                raise UserError(f"{flag.shown} is missing; `candapt {self.command} --help` explains it.")
        if words:
            listed = f"`candapt {self.command} --help` lists them"
            raise UserError(f"{shortened(words[0], 80)!r} is one argument too many: {listed}.")
        return values

    def unknown(self, name: str, values: Mapping[str, Any], *, as_keyword: bool = False) -> UserError:
        """An error that names the nearest option; of a setting that several methods have, the chosen method's."""
        plain, shown = name.lstrip("-").replace("-", "_"), shortened(name, 80)
        method = values.get("method") or (self.flags["method"].default if "method" in self.flags else "")
        flags = [flag for flag in self.flags.values() if not flag.is_positional]
        flags.sort(key=lambda flag: flag.name.startswith(f"{method}."))  # the last one of a name counts
        names = {flag.name if "." in plain else flag.name.rpartition(".")[2]: flag for flag in flags}
        near = nearest_name(plain, names)
        if near is None:
            return UserError(f"{shown!r} is not an option: `candapt {self.command} --help` lists them.")
        suggestion = names[near].keyword if as_keyword else names[near].shown
        return UserError(f"{shown!r} is not an option: did you mean `{suggestion}`?")

    def from_config(self, config: Mapping[str, Any], ignored: Callable[[str], bool]) -> dict[str, Any]:
        """Values by flag name from the content of a configuration file, without settings and groups to ignore."""
        values: dict[str, Any] = {}
        groups = {flag.name.rpartition(".")[0] for flag in self.flags.values()}
        for key, content in config.items():
            key = key if key in groups or key.replace("_", "-") not in groups else key.replace("_", "-")
            branches = content if isinstance(content, dict) else {"": content}
            for item, value in branches.items():
                name = f"{key}.{item}" if item else key
                is_empty_group = value is None and not item and key not in self.flags
                if ignored(key) or ignored(name) or is_empty_group:
                    continue
                if name not in self.flags:
                    listed = f"`candapt {self.command} --help` lists them"
                    raise UserError(f"{shortened(name, 80)!r} in the configuration is not a setting: {listed}.")
                values[name] = convert(value, self.flags[name].hint, name)
        return values

    def help(self, defaults: Mapping[str, Any], hidden: Callable[[str], bool] = lambda name: False) -> str:
        """The help text, with other defaults by flag name, without flags that are hidden."""
        shown = [flag for flag in self.flags.values() if not flag.is_positional and not hidden(flag.name)]
        usage = " ".join(["usage: candapt", self.command, *map(_usage, self.positionals), "[options]"])
        lines = [usage, "", *textwrap.wrap(COMMANDS[self.command], WIDTH), ""]
        for flag in self.positionals:
            lines += _entry(flag.shown, flag.help)
        for group in dict.fromkeys(flag.name.rpartition(".")[0] for flag in shown):
            lines += ["", f"{group or 'options'}:"]
            for flag in (each for each in shown if each.name.rpartition(".")[0] == group):
                default = defaults.get(flag.name, flag.default)
                known = default not in (None, "", (), MISSING) and not flag.is_switch
                note = f" (default: {show(default)})" if known else ""
                names = ", ".join(dict.fromkeys([flag.shown, *([f"--{flag.name}"] if flag.aliases else [])]))
                lines += _entry(names if flag.is_switch else f"{names} {_metavar(flag.hint)}", f"{flag.help}{note}")
        return "\n".join([*lines, "", "  --help", f"{' ' * 6}Show this text."])


def _usage(flag: Flag) -> str:
    name = f"{flag.shown}…" if flag.takes_many else flag.shown
    return name if flag.default is MISSING else f"[{name}]"


def _entry(name: str, text: str) -> list[str]:
    indent = " " * 6
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [f"  {name}", *lines]


def _metavar(hint: Any) -> str:
    """What stands for the value of a flag in the help."""
    kinds = {bool: "true|false", int: "NUMBER", float: "NUMBER", Path: "PATH"}
    if get_origin(hint) is tuple:
        return f"{_metavar(get_args(hint)[0])}…"
    named = [kinds[kind] for kind in (get_args(hint) or (hint,)) if kind in kinds][:1]
    if options := _choices(hint):
        return "{" + ",".join([*named, *options]) + "}"
    return named[0] if named else "TEXT"


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(option) for option in get_args(hint)]
    return [option for member in get_args(hint) for option in _choices(member)] if get_args(hint) else []


def show(value: Any) -> str:
    """A value as YAML and the command line have it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def convert(value: Any, hint: Any, name: str) -> Any:
    """A text, or a value from YAML, as its type hint requires it; a `UserError` if it is of another type."""
    try:
        return _from_text(value, hint) if isinstance(value, str) else fitted(value, hint, name)
    except ValueError:
        shown = value if isinstance(value, str) else show(value)
        raise UserError(f"{name} must be {describe_hint(hint)}, not {shortened(repr(shown), 80)}.") from None


def _from_text(text: str, hint: Any) -> Any:
    kind, options = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        for option in sorted(options, key=lambda option: option is not type(None)):  # null first: a path takes any text
            try:
                return _from_text(text, option)
            except ValueError:
                continue
        raise ValueError(text)
    if kind is tuple:
        return (_from_text(text, options[0]),)
    if kind is type(None) and text.lower() == "null":
        return None
    if kind is bool and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if kind is Literal and text in options:
        return text
    if kind in (str, Path):
        return kind(text)
    if kind is int:
        return fitted(int(text), int, "")
    if kind is float and math.isfinite(number := float(text)):
        return number
    raise ValueError(text)


def describe_hint(hint: Any) -> str:
    """A type hint for people.

    >>> describe_hint(int | None), describe_hint(Literal["a", "b"])
    ('a whole number or null', 'a or b')
    """
    kind, options = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(map(describe_hint, sorted(options, key=lambda option: option is type(None))))
    if kind is Literal:
        return " or ".join(map(str, options))
    if kind is tuple:
        return f"a list, each {describe_hint(options[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path", type(None): "null"}
    return names.get(kind, "text")


def read_config(path: Path | None) -> dict[str, Any]:
    """The content of a YAML file with settings; empty without a file."""
    if path is None:
        return {}
    try:
        return read_yaml(path)
    except (OSError, ValueError) as error:
        raise UserError(f"The configuration {str(path)!r} cannot be read ({error}).") from None


def with_inputs(flags: Iterable[Flag], inputs: Mapping[str, str]) -> list[Flag]:
    """The flags, with what some of them take at the end of their help."""
    return [
        replace(flag, help=f"{flag.help.rstrip('.')}: {inputs[flag.name]}.") if flag.name in inputs else flag
        for flag in flags
    ]


def parse_options(
    kind: type[Any], command: str, arguments: Sequence[str], inputs: Mapping[str, str] | None = None
) -> Any:
    """The options of a command without settings of a training; prints the help and exits if it is asked for."""
    parser = Parser(command, with_inputs(flags_of(kind), inputs or {}))
    given = parser.parse(arguments)
    if given.wants_help:
        print_help(parser.help({}))
    for flag in parser.flags.values():
        if flag.default is MISSING and flag.name not in given.values:
            raise UserError(f"{flag.shown} is missing; `candapt {command} --help` explains it.")
    return kind(**given.values)


def print_help(text: str) -> None:
    """Print the help and exit; its reader may close the output early, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = None
    raise SystemExit(0)
