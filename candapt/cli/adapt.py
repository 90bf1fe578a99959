"""The words of `candapt adapt`."""

from pathlib import Path

from jsonargparse import ArgumentParser

from candapt.cli.flags import add_cache, add_strict, make_parser, path_type
from candapt.cli.settings import settings_from
from candapt.cli.training import add_paths, choose
from candapt.cli.words import given_path, look_ahead, paths_first, spelled_out, strict_last
from candapt.commands import adapt as work
from candapt.commands.job import Job
from candapt.errors import UserError
from candapt.runs import RunFolder
from candapt.training.checkpoint import MINUTES


def adapt(arguments: list[str]) -> None:
    """Train on a labelled source and an unlabelled target; write model and predictions to a run folder."""
    chosen = choose(_with_config_of_run(paths_first(strict_last(spelled_out(arguments)))))
    parser = make_parser("adapt", adapt)
    _add_flags(parser)
    chosen.add_settings(parser)
    options = parser.parse_args(chosen.words(parser))
    source, target = chosen.paths(options)
    labels = options.target_labels or chosen.config.get("target_labels")
    job = Job(
        source=source,
        target=target,
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


def _add_flags(parser: ArgumentParser) -> None:
    add_paths(parser)
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
    parser.add_argument(
        "--target-labels", type=path_type, help="CSV (path,label) or .npz (y): for reports marked oracle only."
    )
    parser.add_argument(
        "--baseline", type=bool, default=True, help="Train source-only beside, to warn where adaptation did not help."
    )
    parser.add_argument("--report", type=bool, default=True, help="Write report.html, with a map of both domains.")
    add_strict(parser)
    add_cache(parser)


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
