"""The command line: each command is a function with a parser of its own."""

import argparse
import logging
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser, Namespace, set_parsing_settings

from candapt import commands
from candapt.console import console, show_log
from candapt.errors import UserError, trouble
from candapt.evaluation.scores import SCORES
from candapt.evaluation.selection import LAST
from candapt.interruption import Interrupted, Interruption
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS, for_family
from candapt.runs import RunFolder, versions
from candapt.settings import ImageChoice, NetworkSettings, Settings, TrainingSettings
from candapt.training.checkpoint import MINUTES
from candapt.untrusted import printable, read_yaml, shortened

set_parsing_settings(docstring_parse_attribute_docstrings=True)
log = logging.getLogger(__name__)
CHOICES = f"{LAST}, or the best by one of {', '.join(SCORES)}"

BARE = ("-h", "--help", "--print_config", "--resume", "--force")
"""Flags of `adapt` that no value follows."""
NOT_IN_FILES = {"config", "out", "cache", "resume", "force"}
"""Flags that a configuration, which may come from a stranger, has no say in: where to write and what to make of it."""
OF_ONE_RUN = ("source", "target", "target_labels", "strict", "baseline", "report", "method", "seed", "preset")
"""What a run's config.yaml holds and a suite decides itself."""
MAX_SENTENCE = 2000
"""Letters of an error; it may name files, and names may be long."""


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
        if any("\0" in word for word in arguments):
            raise UserError("A name with a null character cannot be that of a file.")
        if arguments[0] not in COMMANDS:
            raise UserError(f"There is no command {arguments[0]!r}: choose one of {', '.join(COMMANDS)}.")
        COMMANDS[arguments[0]](arguments[1:])
    except (UserError, ArgumentError) as error:
        sentence = str(error) if isinstance(error, UserError) else explain(error, arguments[0])
        _say(sentence)
        return 2
    except (OSError, MemoryError, RuntimeError) as error:  # a full disk, a vanished file: what is written stays
        if (reason := trouble(error)) is None:
            raise
        _say(f"{reason}; {_advice(error) or 'then start again'}.")
        return 2
    except KeyboardInterrupt as error:
        _say("; ".join(filter(None, ("stopped", _advice(error)))) + ".")
        return error.exit_code if isinstance(error, Interrupted) else 130
    return 0


def _say(sentence: str) -> None:
    """Say what went wrong; what the sentence repeats of names and files cannot steer the terminal."""
    text = f"candapt: {printable(shortened(sentence, MAX_SENTENCE))}"
    console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def _advice(error: BaseException) -> str:
    """How to go on, which the command may have noted on what ended it."""
    return "; ".join(getattr(error, "__notes__", ()))


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
    arguments = _with_config_of_run(_paths_first(_strict_last(_spelled_out(arguments))))
    config, parser, arguments = _adapt_parser(arguments)
    options = parser.parse_args(arguments)
    labels = options.target_labels or config.get("target_labels")
    job = commands.Job(
        source=_path(options.source or config.get("source"), "SOURCE", "a labelled folder or .npz file"),
        target=_path(options.target or config.get("target"), "TARGET", "an unlabelled folder or .npz file"),
        settings=settings_from(parser, options),
        images=parser.instantiate(options).images,
        target_labels=_path(labels, "--target-labels", "a CSV or .npz file") if labels is not None else None,
        strict=options.strict,
        baseline=options.baseline,
        cache=options.cache,
        report=options.report,
    )
    if options.checkpoint_minutes < 0:
        raise UserError(f"--checkpoint-minutes is {options.checkpoint_minutes}, but must be at least 0.")
    if options.resume:
        commands.resume(job, options.out, checkpoint_minutes=options.checkpoint_minutes, force=options.force)
    else:
        commands.adapt(job, options.out, checkpoint_minutes=options.checkpoint_minutes)


def demo(arguments: list[str]) -> None:
    """See it work: from rendered digits to handwritten ones, source-only beside CAN, in about a minute."""
    parser = _parser("demo", demo)
    parser.add_argument("--out", type=_file, default=Path("demo"), help="Folder for the two runs and their summary.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of every random draw.")
    parser.add_argument("--report", type=bool, default=True, help="Write report.html for each run and for both.")
    options = parser.parse_args(arguments)
    from candapt.demo import demo as run_demo  # matplotlib and its fonts take seconds to import

    run_demo(options.out, options.seed, report=options.report)


def predict(arguments: list[str]) -> None:
    """Predict new images or features with the model of a run."""
    parser = _parser("predict", predict)
    parser.add_argument("run", type=_file, help="Run folder.")
    parser.add_argument("input", type=_file, help="Folder of images, .txt file that lists images, or .npz with x.")
    parser.add_argument("--out", type=_file, required=True, help="File to write.")
    parser.add_argument(
        "--format",
        type=commands.Format,
        default="csv",
        help="csv: a table; visda: class numbers in the order of the challenge's image_list.txt.",
    )
    _add_strict(parser)
    options = parser.parse_args(_strict_last(arguments))
    commands.predict(options.run, options.input, options.out, format=options.format, strict=options.strict)


def evaluate(arguments: list[str]) -> None:
    """Measure the model of a run on labelled data."""
    parser = _parser("evaluate", evaluate)
    parser.add_argument("run", type=_file, help="Run folder.")
    parser.add_argument("labeled", type=_file, help="Folder with one sub-folder a class, .txt list, or .npz with x, y.")
    parser.add_argument("--out", type=_file, default=None, help="JSON file for all figures.")
    _add_strict(parser)
    options = parser.parse_args(_strict_last(arguments))
    commands.evaluate(options.run, options.labeled, options.out, strict=options.strict)


def embed(arguments: list[str]) -> None:
    """Write the features that a frozen backbone gives of images to an .npz file, to adapt later without them."""
    parser = _parser("embed", embed)
    parser.add_argument("input", type=_file, help="Folder of images.")
    parser.add_argument(
        "--out", type=_file, required=True, help=".npz file to write: x, names; with labels y, classes."
    )
    parser.add_argument("--labeled", action="store_true", help="INPUT has one sub-folder a class; write y and classes.")
    parser.add_class_arguments(NetworkSettings, "network", skip=_HEAD_SETTINGS)
    parser.add_class_arguments(ImageChoice, "images", skip={"augmentation"})
    options = parser.parse_args(_spelled_out(arguments))
    made = parser.instantiate(options)
    commands.embed(options.input, options.out, made.network, made.images, labeled=options.labeled)


def cache(arguments: list[str]) -> None:
    """List what frozen layers made of images and is kept on disk, or clear it."""
    parser = _parser("cache", cache)
    parser.add_argument("action", nargs="?", type=str, default="list", help="list, or clear: all, or the KEY alone.")
    parser.add_argument("key", nargs="?", type=str | None, default=None, help="First column of the list, or its start.")
    _add_cache(parser)
    options = parser.parse_args(arguments)
    actions = {"list": commands.list_cache, "clear": commands.clear_cache}
    actions[_known(options.action, actions, "The action")](options.cache, options.key)


_HEAD_SETTINGS = {"finetune", "views", "head", "bottleneck", "dropout"}
"""What only a training needs to know of the network."""


def report(arguments: list[str]) -> None:
    """Make the page of a run again, or one page that compares several runs."""
    parser = _parser("report", report)
    parser.add_argument("runs", type=_file, nargs="+", help="Run folders.")
    parser.add_argument("--out", type=_file, default=None, help="HTML file; one run has its own: report.html.")
    parser.add_argument(
        "--pictures",
        type=bool,
        default=True,
        help="Show images from where the run says that they are; false reads nothing outside of its folder.",
    )
    options = parser.parse_args(arguments)
    commands.report(options.runs, options.out, pictures=options.pictures)


def benchmark(arguments: list[str]) -> None:
    """Run tasks × methods × seeds of a suite into the paper's tables; what is stored already is not run again."""
    # matplotlib and its fonts, for the demonstration's suite, take seconds to import
    from candapt.benchmark.plan import make_plan
    from candapt.benchmark.runner import run
    from candapt.benchmark.tables import to_terminal

    parser, methods, arguments = _benchmark_parser(_spelled_out(arguments))
    options = parser.parse_args(arguments)
    made = parser.instantiate(options)
    settings = {
        method: Settings(
            method=method,
            rounds=options.rounds,
            select=options.select,
            network=made.network,
            training=made.training,
            adaptation=made.get(_key(method)) or METHODS[method].Settings(),
        )
        for method in methods
    }
    plan = make_plan(
        options.suite,
        options.data,
        settings,
        seeds=_seeds(options.seeds),
        tasks=_listed(options.tasks),
        images=made.images,
        cache=options.cache,
    )
    with Interruption():
        try:
            results = run(plan, options.out, jobs=options.jobs)
        except (KeyboardInterrupt, OSError, MemoryError, RuntimeError) as error:
            error.add_note("the same command goes on with the cells that are missing")
            raise
    commands.output.print(to_terminal(results))
    commands.output.print(f"Tables: {options.out / 'results.md'} and results.tex; page: {options.out / 'report.html'}")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "adapt": adapt,
    "predict": predict,
    "evaluate": evaluate,
    "report": report,
    "embed": embed,
    "cache": cache,
    "benchmark": benchmark,
}


def _file(value: Any) -> Path | None:
    """A path as it was given. What the parser knows as one is read as YAML first, which not every name of a file is."""
    if not isinstance(value, str | Path | None):
        raise ValueError("not a path")
    return None if value is None else Path(value)


def _parser(name: str, command: Callable[..., None]) -> ArgumentParser:
    return ArgumentParser(prog=f"candapt {name}", description=command.__doc__, exit_on_error=False)


def _add_strict(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--strict",
        action=ActionYesNo(),
        nargs="?",
        default=False,
        help="Stop at files that do not decode, classes without an image and unknown classes; else they are left out.",
    )


def _strict_last(arguments: Sequence[str]) -> list[str]:
    """A bare `--strict` behind everything else, where no path can be taken for its value.

    >>> _strict_last(["--strict", "run", "photos"])
    ['run', 'photos', '--strict']
    """
    words: list[str] = []
    bare: list[str] = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        alone = word in ("--strict", "--no_strict") and following.lower() not in ("true", "false", "yes", "no")
        (bare if alone else words).append(word)
    return words + bare


def _adapt_parser(arguments: Sequence[str]) -> tuple[dict[str, Any], ArgumentParser, list[str]]:
    """The configuration file's content, the parser of `adapt` for the chosen method, and what that parser is to parse.

    Which settings there are depends on the method, and their defaults on the preset, so these are looked up first.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("method", "preset", "config"):
        first.add_argument(f"--{name}")
    chosen, flags = first.parse_known_args(arguments)
    config = read_config(Path(chosen.config)) if chosen.config else {}
    method = _known(chosen.method or config.get("method", "can"), METHODS, "--method")
    preset = _known(chosen.preset or config.get("preset", DEFAULT), PRESETS, "--preset")

    parser = _parser("adapt", adapt)
    parser.add_argument("source", nargs="?", help="Labelled: a folder with one sub-folder a class, .txt list or .npz.")
    parser.add_argument("target", nargs="?", help="Unlabelled: any folder of images, .txt list or .npz with x.")
    parser.add_argument("--out", type=_file, required=True, help="New folder for the run; with --resume its folder.")
    parser.add_argument("--resume", action="store_true", help="Go on with the run in --out, which needs no more words.")
    parser.add_argument("--force", action="store_true", help="Resume though data, settings or versions have changed.")
    parser.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=MINUTES,
        help="Time between two checkpoints within a round; 0 for one after every step.",
    )
    parser.add_argument("--config", action="config", help="YAML file with settings, such as a run's config.yaml.")
    parser.add_argument("--method", default=method, help=f"One of {', '.join(METHODS)}.")
    parser.add_argument("--preset", default=preset, help=f"Where defaults come from: {', '.join(PRESETS)}.")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="Seed of every random draw.")
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="Rounds at most.")
    parser.add_argument("--select", type=str, default=Settings.select, help=f"Round to keep: {CHOICES}.")
    parser.add_argument(
        "--target-labels", type=_file, help="CSV (path,label) or .npz (y): for reports marked oracle only."
    )
    parser.add_argument(
        "--baseline", type=bool, default=True, help="Train source-only beside, to warn where adaptation did not help."
    )
    parser.add_argument("--report", type=bool, default=True, help="Write report.html, with a map of both domains.")
    _add_strict(parser)
    _add_cache(parser)
    parser.add_class_arguments(ImageChoice, "images")
    parser.add_class_arguments(NetworkSettings, "network")
    parser.add_class_arguments(TrainingSettings, "training")
    parser.add_class_arguments(METHODS[method].Settings, method)
    _set_known_defaults(parser, for_family(PRESETS[preset], [method]))
    flags = ["--method", method, "--preset", preset, *flags]
    # Settings of methods that were not chosen stay out.
    foreign = {"source", "target", "target_labels", *METHODS} - {method}
    return config, parser, [*_from_file(config, parser, foreign), *flags]


def _benchmark_parser(arguments: Sequence[str]) -> tuple[ArgumentParser, list[str], list[str]]:
    """The parser of `benchmark` with the settings of all methods that are run, these methods, and what is to be parsed.

    Defaults come from the preset and then the suite, before the file and the flags.
    """
    from candapt.benchmark.suites import SUITES

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("methods", "preset", "config"):
        first.add_argument(f"--{name}")
    chosen, flags = first.parse_known_args(arguments)
    if {"-h", "--help"} & set(flags):
        flags = ["office31", *flags]
    if not flags or flags[0].startswith("-"):
        raise UserError(f"SUITE is missing: name one of {', '.join(SUITES)}, before any other option.")
    suite = SUITES[_known(flags[0], SUITES, "SUITE")]
    config = read_config(Path(chosen.config)) if chosen.config else {}
    named = suite.methods if chosen.methods is None else _listed(chosen.methods)
    wanted = {_known(name, METHODS, "--methods") for name in named}
    methods = [name for name in METHODS if name in wanted]
    preset = _known(chosen.preset or config.get("preset", DEFAULT), PRESETS, "--preset")

    parser = _parser("benchmark", benchmark)
    parser.add_argument("suite", help=f"One of {', '.join(SUITES)}.")
    parser.add_argument("--data", type=_file, help="Where the suite's data is; the demo brings its own.")
    parser.add_argument("--methods", default=",".join(methods), help=f"With commas between: {','.join(METHODS)}.")
    parser.add_argument("--seeds", type=str, default="0,1,2", help="With commas between; one run of all for each.")
    parser.add_argument("--tasks", type=str, default="", help="With commas between, such as A->W,D->A; default: all.")
    parser.add_argument(
        "--out", type=_file, required=True, help="Folder for results and tables; may hold some already."
    )
    parser.add_argument("--resume", action="store_true", help="Changes nothing: what is stored is never run again.")
    parser.add_argument("--jobs", type=int, default=1, help="Trainings at the same time, each in its own process.")
    _add_cache(parser)
    parser.add_argument("--config", action="config", help="YAML file with settings, such as a run's config.yaml.")
    parser.add_argument("--preset", default=preset, help=f"Where defaults come from: {', '.join(PRESETS)}.")
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="Rounds at most.")
    parser.add_argument("--select", type=str, default=Settings.select, help=f"Round to keep: {CHOICES}.")
    parser.add_class_arguments(ImageChoice, "images")
    parser.add_class_arguments(NetworkSettings, "network")
    parser.add_class_arguments(TrainingSettings, "training")
    for method in methods:
        parser.add_class_arguments(METHODS[method].Settings, method)
    _set_known_defaults(parser, for_family({**PRESETS[preset], **suite.changes}, methods))
    # What a run's config.yaml says of its data, its method and its seed is the suite's business.
    foreign = {*OF_ONE_RUN, *METHODS} - set(methods)
    return parser, methods, [*_from_file(config, parser, foreign), *flags]


def _from_file(config: Mapping[str, Any], parser: ArgumentParser, foreign: Collection[str]) -> list[str]:
    """The file's settings as first arguments, so that a flag wins wherever it stands.

    Only settings get through: a text where a group of settings belongs would be opened as another file, and where to
    write is not for a file to say, which may come from a stranger.
    """
    kept: dict[str, Any] = {}
    known = set(parser.get_defaults().keys()) - NOT_IN_FILES
    for name, value in config.items():
        if name in foreign:
            continue
        group = _key(name) if name in METHODS else name
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


def _add_cache(parser: ArgumentParser) -> None:
    """The folder of the activation cache, for all commands that use it."""
    text = "Folder that keeps what frozen layers make of images; default: CANDAPT_CACHE, else the user's cache folder."
    parser.add_argument("--cache", type=_file, default=None, help=text)


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """Short names of much used flags in full.

    >>> _spelled_out(["--finetune", "last-stage", "--weights=a.safetensors"])
    ['--network.finetune', 'last-stage', '--network.weights=a.safetensors']
    """
    groups = {"network": "backbone|weights|finetune", "training": "on-nonfinite"}
    full = {name: f"{group}.{name.replace('-', '_')}" for group, names in groups.items() for name in names.split("|")}
    return [re.sub(r"^--([a-z-]+)(?==|$)", lambda flag: f"--{full.get(flag[1], flag[1])}", word) for word in arguments]


def _paths_first(arguments: Sequence[str]) -> list[str]:
    """SOURCE and TARGET before all flags: the parser, for which both are optional, overlooks one that comes later.

    >>> _paths_first(["photos", "--out", "run", "webcam"])
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


def _with_config_of_run(arguments: list[str]) -> list[str]:
    """With `--resume` the run's own configuration tells what is not said, unless another one or a preset is named."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("out", "config", "preset"):
        first.add_argument(f"--{name}")
    first.add_argument("--resume", action="store_true")
    chosen, rest = first.parse_known_args(arguments)
    if not chosen.resume or not chosen.out:
        return arguments
    RunFolder.check_resumable(Path(chosen.out))
    config = Path(chosen.out, "config.yaml")
    if chosen.config or chosen.preset:
        return arguments
    if config.is_file():
        return [*arguments, "--config", str(config)]
    if not rest or rest[0].startswith("-"):
        raise UserError(f"The run in {chosen.out!r} was stopped before it began: give SOURCE and TARGET once more.")
    return arguments


def _set_known_defaults(parser: ArgumentParser, values: Mapping[str, Any]) -> None:
    """Set those defaults that the parser has flags for."""
    known = parser.get_defaults()
    keys = {".".join([*map(_key, name.split(".")[:-1]), name.split(".")[-1]]): name for name in values}
    parser.set_defaults({key: values[name] for key, name in keys.items() if key in known})


def _listed(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in _listed(text)))
    except ValueError:
        raise UserError(f"--seeds is {text!r}, but must be whole numbers with commas between, as 0,1,2.") from None


def _key(method: str) -> str:
    """What the parser calls a method's group of settings."""
    return method.replace("-", "_")


def settings_from(parser: ArgumentParser, options: Namespace) -> Settings:
    """The settings that the flags and files say."""
    made = parser.instantiate(options)
    return Settings(
        method=options.method,
        seed=options.seed,
        rounds=options.rounds,
        select=options.select,
        network=made.network,
        training=made.training,
        adaptation=made.get(_key(options.method)) or METHODS[options.method].Settings(),  # none if it has no settings
    )


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file with settings."""
    try:
        return read_yaml(path)
    except (OSError, ValueError) as error:
        raise UserError(f"The configuration {str(path)!r} cannot be read ({error}).") from None


def explain(error: Exception, command: str) -> str:
    """One sentence for what the parser refuses; its own texts show Python's types."""
    text = " ".join(str(error).split())
    if wrong := re.search(r'Parser key "([^"]+)": (.*)(?:Got|Given) value: ?(.*)', text):
        return f"{wrong[1]} must be {_expected(wrong[2])}, not {wrong[3]!r}."
    if unknown := re.search(r"unrecognized arguments: (.+)|Option '(.+)' is not accepted", text):
        named = unknown[1] or unknown[2]
    elif unknown := re.search(r"Group '(.+)' does not accept option '(.+)'", text):
        named = f"{unknown[1]}.{unknown[2]}"
    else:
        return f"{text}; `candapt {command} --help` tells more."
    return f"{named!r} is not understood: `candapt {command} --help` lists what is."


def _expected(types: str) -> str:
    """Types as the parser's errors show them, in words."""
    named = {"<class 'int'>": "a whole number", "<class 'float'>": "a number", "<class 'bool'>": "true or false"}
    words = [word for kind, word in named.items() if kind in types]
    choices = [choice for listed in re.findall(r"Literal\[(.*?)\]", types) for choice in listed.split(", ")]
    return " or ".join([*words, *(choice.strip("'") for choice in choices)]) or "text"


def _known(name: Any, table: dict[str, Any], flag: str) -> str:
    if not isinstance(name, str) or name not in table:
        raise UserError(f"{flag} is {name!r}, but must be one of {', '.join(table)}.")
    return str(name)


def _path(value: Any, name: str, what: str) -> Path:
    if value is None:
        raise UserError(f"{name} is missing: give {what}, or a --config that names it.")
    if not isinstance(value, str | Path):
        raise UserError(f"{name} is {shortened(repr(value), 80)} in the configuration, but must be {what}.")
    return Path(value)
