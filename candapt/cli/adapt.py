"""The words of `candapt adapt`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from candapt.cli.config import read_config, settings_from_file
from candapt.cli.flags import add_cache, add_strict, make_parser, path_type
from candapt.cli.settings import add_common, add_groups, settings_from
from candapt.cli.words import given_path, look_ahead, one_of, paths_first, spelled_out, strict_last
from candapt.commands import adapt as work
from candapt.commands.job import Job
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS
from candapt.runs import RunFolder
from candapt.settings import Settings
from candapt.training.checkpoint import MINUTES


def adapt(arguments: list[str]) -> None:
    """Train on a labelled source and an unlabelled target; write model and predictions to a run folder."""
    arguments = _with_config_of_run(paths_first(strict_last(spelled_out(arguments))))
    config, parser, arguments = _parser(arguments)
    options = parser.parse_args(arguments)
    labels = options.target_labels or config.get("target_labels")
    job = Job(
        source=given_path(options.source or config.get("source"), "SOURCE", "a labelled folder or .npz file"),
        target=given_path(options.target or config.get("target"), "TARGET", "an unlabelled folder or .npz file"),
        settings=settings_from(parser, options, options.method, options.seed),
        images=parser.instantiate(options).images,
        target_labels=given_path(labels, "--target-labels", "a CSV or .npz file") if labels is not None else None,
        strict=options.strict,
        baseline=options.baseline,
        cache=options.cache,
        report=options.report,
    )
    if options.checkpoint_minutes < 0:
        raise UserError(f"--checkpoint-minutes is {options.checkpoint_minutes}, but must be at least 0.")
    if options.resume:
        work.resume(job, options.out, checkpoint_minutes=options.checkpoint_minutes, force=options.force)
    else:
        work.adapt(job, options.out, checkpoint_minutes=options.checkpoint_minutes)


def _parser(arguments: Sequence[str]) -> tuple[dict[str, Any], ArgumentParser, list[str]]:
    """The configuration file's content, the parser for the chosen method, and what that parser is to parse."""
    chosen, flags = look_ahead(arguments, "method", "preset", "config")
    config = read_config(Path(chosen.config)) if chosen.config else {}
    method = one_of(chosen.method or config.get("method", "can"), METHODS, "--method")
    preset = one_of(chosen.preset or config.get("preset", DEFAULT), PRESETS, "--preset")

    parser = make_parser("adapt", adapt)
    parser.add_argument("source", nargs="?", help="Labelled: a folder with one sub-folder a class, .txt list or .npz.")
    parser.add_argument("target", nargs="?", help="Unlabelled: any folder of images, .txt list or .npz with x.")
    parser.add_argument(
        "--out", type=path_type, required=True, help="New folder for the run; with --resume its folder."
    )
    parser.add_argument("--resume", action="store_true", help="Go on with the run in --out, which needs no more words.")
    parser.add_argument("--force", action="store_true", help="Resume though data, settings or versions have changed.")
    parser.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=MINUTES,
        help="Time between two checkpoints within a round; 0 for one after every step.",
    )
    parser.add_argument("--method", default=method, help=f"One of {', '.join(METHODS)}.")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="Seed of every random draw.")
    add_common(parser, preset)
    parser.add_argument(
        "--target-labels", type=path_type, help="CSV (path,label) or .npz (y): for reports marked oracle only."
    )
    parser.add_argument(
        "--baseline", type=bool, default=True, help="Train source-only beside, to warn where adaptation did not help."
    )
    parser.add_argument("--report", type=bool, default=True, help="Write report.html, with a map of both domains.")
    add_strict(parser)
    add_cache(parser)
    add_groups(parser, [method], PRESETS[preset])
    flags = ["--method", method, "--preset", preset, *flags]
    # Settings of methods that were not chosen stay out.
    foreign = {"source", "target", "target_labels", *METHODS} - {method}
    return config, parser, [*settings_from_file(config, parser, foreign), *flags]


def _with_config_of_run(arguments: list[str]) -> list[str]:
    """With `--resume` the run's own configuration tells what is not said, unless another one or a preset is named."""
    chosen, rest = look_ahead(arguments, "out", "config", "preset", bare=["resume"])
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
