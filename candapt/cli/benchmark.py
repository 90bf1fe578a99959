"""The words of `candapt benchmark`."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from candapt.cli.config import read_config, settings_from_file
from candapt.cli.flags import add_cache, add_strict, make_parser, path_type
from candapt.cli.settings import add_common, add_groups, settings_from
from candapt.cli.words import listed, look_ahead, one_of, spelled_out, strict_last
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS

OF_ONE_RUN = ("source", "target", "target_labels", "strict", "baseline", "report", "method", "seed", "preset")
"""What a run's config.yaml holds and a suite decides itself."""


def benchmark(arguments: list[str]) -> None:
    """Run tasks × methods × seeds of a suite into the paper's tables; what is stored already is not run again."""
    # matplotlib and its fonts, for the demonstration's suite, take seconds to import
    from candapt.benchmark.plan import make_plan
    from candapt.commands.benchmark import benchmark as run_benchmark

    parser, methods, arguments = _parser(strict_last(spelled_out(arguments)))
    options = parser.parse_args(arguments)
    plan = make_plan(
        options.suite,
        options.data,
        {method: settings_from(parser, options, method) for method in methods},
        seeds=_seeds(options.seeds),
        tasks=listed(options.tasks),
        images=parser.instantiate(options).images,
        cache=options.cache,
        strict=options.strict,
    )
    run_benchmark(plan, options.out, jobs=options.jobs)


def _parser(arguments: Sequence[str]) -> tuple[ArgumentParser, list[str], list[str]]:
    """The parser with the settings of all methods that are run, these methods, and what is to be parsed.

    Defaults come from the preset and then the suite, before the file and the flags.
    """
    from candapt.benchmark.suites import SUITES

    chosen, flags = look_ahead(arguments, "methods", "preset", "config")
    if {"-h", "--help"} & set(flags):
        flags = ["office31", *flags]
    if not flags or flags[0].startswith("-"):
        raise UserError(f"SUITE is missing: name one of {', '.join(SUITES)}, before any other option.")
    suite = SUITES[one_of(flags[0], SUITES, "SUITE")]
    config = read_config(Path(chosen.config)) if chosen.config else {}
    named = suite.methods if chosen.methods is None else listed(chosen.methods)
    wanted = {one_of(name, METHODS, "--methods") for name in named}
    methods = [name for name in METHODS if name in wanted]
    preset = one_of(chosen.preset or config.get("preset", DEFAULT), PRESETS, "--preset")

    parser = make_parser("benchmark", benchmark)
    parser.add_argument("suite", help=f"One of {', '.join(SUITES)}.")
    parser.add_argument("--data", type=path_type, help="Where the suite's data is; the demo brings its own.")
    parser.add_argument("--methods", default=",".join(methods), help=f"With commas between: {','.join(METHODS)}.")
    parser.add_argument("--seeds", type=str, default="0,1,2", help="With commas between; one run of all for each.")
    parser.add_argument("--tasks", type=str, default="", help="With commas between, such as A->W,D->A; default: all.")
    parser.add_argument(
        "--out", type=path_type, required=True, help="Folder for results and tables; may hold some already."
    )
    parser.add_argument("--resume", action="store_true", help="Changes nothing: what is stored is never run again.")
    parser.add_argument("--jobs", type=int, default=1, help="Trainings at the same time, each in its own process.")
    add_strict(parser)
    add_cache(parser)
    add_common(parser, preset)
    add_groups(parser, methods, {**PRESETS[preset], **suite.changes})
    # What a run's config.yaml says of its data, its method and its seed is the suite's business.
    foreign = {*OF_ONE_RUN, *METHODS} - set(methods)
    return parser, methods, [*settings_from_file(config, parser, foreign), *flags]


def _seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in listed(text)))
    except ValueError:
        raise UserError(f"--seeds is {text!r}, but must be whole numbers with commas between, as 0,1,2.") from None
