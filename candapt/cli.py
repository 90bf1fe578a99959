"""The command line: each command is a function with a parser of its own."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings

from candapt import commands
from candapt.console import console, show_log
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS
from candapt.runs import versions
from candapt.settings import ImageChoice, NetworkSettings, Settings, TrainingSettings

set_parsing_settings(docstring_parse_attribute_docstrings=True)
log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, or 2 after one sentence that says what to put right."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"candapt {versions()['candapt']}")
        return 0
    show_log()
    try:
        if arguments[0] not in COMMANDS:
            raise UserError(f"There is no command {arguments[0]!r}: choose one of {', '.join(COMMANDS)}.")
        COMMANDS[arguments[0]](arguments[1:])
    except (UserError, ArgumentError) as error:
        console.print(f"candapt: {' '.join(str(error).split())}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("candapt: stopped.", style="red")
        return 130
    return 0


def overview() -> str:
    """The help of the bare command."""
    lines = [f"  {name:<10} {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: candapt COMMAND [options]",
            "",
            "Move an image classifier to a new domain that has no labels.",
            "",
            *lines,
            "",
            "candapt COMMAND --help tells more.",
        ]
    )


def adapt(arguments: list[str]) -> None:
    """Train on a labelled source and an unlabelled target; write model and predictions to a run folder."""
    config, parser = _adapt_parser(arguments)
    options = parser.parse_args(arguments)
    job = commands.Job(
        source=_path(options.source or config.get("source"), "SOURCE", "a labelled folder or .npz file"),
        target=_path(options.target or config.get("target"), "TARGET", "an unlabelled folder or .npz file"),
        settings=settings_from(parser, options),
        images=parser.instantiate(options).images,
        target_labels=options.target_labels,
        strict=options.strict,
    )
    commands.adapt(job, options.out)


def demo(arguments: list[str]) -> None:
    """See it work: from rendered digits to handwritten ones, source-only beside CAN, in about a minute."""
    parser = _parser("demo", demo)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="Folder for the two runs and their summary.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of every random draw.")
    options = parser.parse_args(arguments)
    from candapt.demo import demo as run_demo  # matplotlib and its fonts take seconds to import

    run_demo(options.out, options.seed)


def predict(arguments: list[str]) -> None:
    """Predict new images or features with the model of a run."""
    parser = _parser("predict", predict)
    parser.add_argument("run", type=Path, help="Run folder.")
    parser.add_argument("input", type=Path, help="Folder of images, or .npz file with x.")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write.")
    options = parser.parse_args(arguments)
    commands.predict(options.run, options.input, options.out)


def evaluate(arguments: list[str]) -> None:
    """Measure the model of a run on labelled data."""
    parser = _parser("evaluate", evaluate)
    parser.add_argument("run", type=Path, help="Run folder.")
    parser.add_argument("labeled", type=Path, help="Folder with one sub-folder a class, or .npz file with x and y.")
    parser.add_argument("--out", type=Path | None, default=None, help="JSON file for all figures.")
    options = parser.parse_args(arguments)
    commands.evaluate(options.run, options.labeled, options.out)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "adapt": adapt,
    "predict": predict,
    "evaluate": evaluate,
}


def _parser(name: str, command: Callable[..., None]) -> ArgumentParser:
    return ArgumentParser(prog=f"candapt {name}", description=command.__doc__, exit_on_error=False)


def _adapt_parser(arguments: Sequence[str]) -> tuple[dict[str, Any], ArgumentParser]:
    """The parser of `adapt`, with the settings of the chosen method, and the configuration file's content.

    Which settings there are depends on the method, and their defaults on the preset, so these are looked up first.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("method", "preset", "config"):
        first.add_argument(f"--{name}")
    chosen, _ = first.parse_known_args(arguments)
    config = read_config(Path(chosen.config)) if chosen.config else {}
    method = _known(chosen.method or config.get("method", "can"), METHODS, "--method")
    preset = _known(chosen.preset or config.get("preset", DEFAULT), PRESETS, "--preset")

    parser = _parser("adapt", adapt)
    parser.add_argument("source", nargs="?", help="Labelled: a folder with one sub-folder a class, or .npz with x, y.")
    parser.add_argument("target", nargs="?", help="Unlabelled: any folder of images, or .npz with x.")
    parser.add_argument("--out", type=Path, required=True, help="New folder for the run.")
    parser.add_argument("--config", action="config", help="YAML file with settings, such as a run's config.yaml.")
    parser.add_argument("--method", default=method, help=f"One of {', '.join(METHODS)}.")
    parser.add_argument("--preset", default=preset, help=f"Where defaults come from: {', '.join(PRESETS)}.")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="Seed of every random draw.")
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="Rounds at most.")
    parser.add_argument(
        "--target-labels", type=Path | None, help="CSV (path,label) or .npz (y): for reports marked oracle only."
    )
    parser.add_argument("--strict", type=bool, default=False, help="Refuse folders with files that do not decode.")
    parser.add_class_arguments(ImageChoice, "images")
    parser.add_class_arguments(NetworkSettings, "network")
    parser.add_class_arguments(TrainingSettings, "training")
    parser.add_class_arguments(METHODS[method].Settings, method)
    known = parser.get_defaults()
    parser.set_defaults({key: value for key, value in PRESETS[preset].items() if key in known})
    return config, parser


def settings_from(parser: ArgumentParser, options: Namespace) -> Settings:
    """The settings that the flags and files say."""
    made = parser.instantiate(options)
    return Settings(
        method=options.method,
        seed=options.seed,
        rounds=options.rounds,
        network=made.network,
        training=made.training,
        adaptation=made[options.method],
    )


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file with settings."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"The configuration {str(path)!r} cannot be read ({' '.join(str(error).split())}).") from None
    if not isinstance(content, dict):
        raise UserError(f"The configuration {str(path)!r} must hold settings by name, as a run's config.yaml does.")
    return content


def _known(name: Any, table: dict[str, Any], flag: str) -> str:
    if name not in table:
        raise UserError(f"{flag} is {name!r}, but must be one of {', '.join(table)}.")
    return str(name)


def _path(value: Any, name: str, what: str) -> Path:
    if value is None:
        raise UserError(f"{name} is missing: give {what}, or a --config that names it.")
    return Path(value)
