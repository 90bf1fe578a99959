"""The words of `candapt tune`."""

import shlex
from collections.abc import Sequence

from candapt.cli.flags import add_cache, add_strict, make_parser, path_type
from candapt.cli.settings import settings_from
from candapt.cli.training import add_paths, choose
from candapt.cli.words import paths_first, spelled_out, strict_last
from candapt.commands.job import Job
from candapt.errors import UserError
from candapt.evaluation.scores import SCORES
from candapt.tuning.objective import DEFAULT, INCOMPARABLE

NOT_SEARCHED = ("strict", "baseline", "report")
"""What a run's config.yaml holds beside settings."""


def tune(arguments: list[str]) -> None:
    """Search the settings that a label-free score likes best, and write them to a config.yaml for adapt."""
    words = paths_first(strict_last(spelled_out(arguments)))
    chosen = choose(words)
    parser = make_parser("tune", tune)
    add_paths(parser)
    parser.add_argument("--out", type=path_type, required=True, help="New folder; with --resume the one to go on in.")
    parser.add_argument("--trials", type=int, default=20, help="Trainings in all, the first one with the defaults.")
    scores = ", ".join(name for name in SCORES if name not in INCOMPARABLE)
    parser.add_argument("--score", type=str, default=DEFAULT, help=f"What settings are compared by: {scores}.")
    parser.add_argument("--resume", action="store_true", help="Go on with the trials in --out until there are enough.")
    parser.add_argument("--force", action="store_true", help="Resume though data, settings or versions have changed.")
    add_strict(parser)
    add_cache(parser)
    chosen.add_settings(parser)
    options = parser.parse_args(chosen.words(parser, NOT_SEARCHED))
    source, target = chosen.paths(options)
    job = Job(
        source,
        target,
        settings_from(parser, options, options.method, options.seed),
        parser.instantiate(options).images,
        strict=options.strict,
        cache=options.cache,
    )
    try:
        from candapt.commands import tune as work  # Optuna is optional, and takes seconds to import
    except ImportError as error:
        if error.name is None or not error.name.startswith("optuna"):
            raise
        raise UserError("`candapt tune` needs Optuna: install it with: pip install 'candapt[tune]'.") from None
    work.tune(
        job,
        options.out,
        trials=options.trials,
        score=options.score,
        fixed=_named(words, options.method),
        resume=options.resume,
        force=options.force,
        command=shlex.join(["candapt", "tune", *(word for word in arguments if word != "--resume"), "--resume"]),
    )


def _named(words: Sequence[str], method: str) -> set[str]:
    """The settings and groups that flags name, which are not searched then.

    >>> _named(["a.npz", "--can_intra.weight=1", "--rounds", "3"], "can-intra") == {"can-intra.weight", "rounds"}
    True
    """
    flags = {word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")}
    parts = (flag.partition(".") for flag in flags)
    same = method.replace("-", "_")
    return {(method if group.replace("-", "_") == same else group) + dot + field for group, dot, field in parts}
