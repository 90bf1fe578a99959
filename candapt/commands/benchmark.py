"""`candapt benchmark`: tasks × methods × seeds of a suite, into the paper's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from candapt.benchmark.plan import Plan, make_plan
from candapt.benchmark.runner import run as run_plan
from candapt.benchmark.suites import SUITES, Suite
from candapt.benchmark.tables import to_terminal
from candapt.cluster import for_all_machines
from candapt.commands.parser import Given, Parser, flags_of, positional, read_config, switch, with_inputs
from candapt.commands.training import (
    ignored_settings,
    require_own_settings,
    setting_changes,
    setting_flags,
    show_help,
)
from candapt.console import fitted, output
from candapt.errors import UserError, advice_on_failure, known_name
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS, make_settings
from candapt.settings import Settings, image_choice
from candapt.storage.interruption import Interruption

OF_ONE_RUN = ("source", "target", "target_labels", "strict", "baseline", "report", "method", "seed", "preset")
"""Entries of a run's config.yaml that a suite decides itself."""


@dataclass(frozen=True)
class BenchmarkOptions:
    """Options of `candapt benchmark`."""

    suite: str = positional(None)
    """The suite to run."""
    data: Path | None = None
    """The suite's data; the demo brings its own."""
    methods: str | None = None
    """Methods to run, separated by commas (default: all that the suite has)."""
    seeds: str = "0,1,2"
    """Seeds, separated by commas; everything runs once per seed."""
    tasks: str = ""
    """Tasks to run, separated by commas, such as A->W,D->A (default: all)."""
    out: Path | None = None
    """Folder for results and tables; it may hold some already."""
    resume: bool = switch()
    """Has no effect: stored results are never computed again."""
    jobs: int = 1
    """Trainings at the same time, each in its own process."""
    cluster: str | None = None
    """Address of the scheduler of a Dask cluster, such as tcp://host:8786, whose workers train in place of this
    machine; data, cache and --out must be at the same places on all machines."""
    strict: bool = switch()
    """Stop at files that do not decode and classes without an image, rather than leave them out."""
    cache: Path | None = None
    """Folder for cached outputs of frozen layers (default: CANDAPT_CACHE, else the user's cache folder)."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    options, plan = read_arguments(arguments)
    run(plan, options.out or Path(), jobs=options.jobs, cluster=options.cluster)


def read_arguments(arguments: Sequence[str]) -> tuple[BenchmarkOptions, Plan]:
    """Options and plan of a command line."""
    choices = {"suite": ", ".join(SUITES), "methods": ", ".join(METHODS)}
    own = with_inputs(flags_of(BenchmarkOptions), choices)
    parser = Parser("benchmark", [*own, *setting_flags()])
    given = parser.parse(arguments)
    return parse(parser, given, read_config(given.values.get("config")))


def parse(parser: Parser, given: Given, config: dict[str, Any]) -> tuple[BenchmarkOptions, Plan]:
    """Options and plan; flags override the configuration file, that the suite, and that the preset.

    Settings that the preset's source has for one task of the suite override the suite's.
    """
    names = {flag.name for flag in flags_of(BenchmarkOptions)}
    preset = known_name(given.values.get("preset") or config.get("preset", DEFAULT), PRESETS, "preset")
    if given.wants_help:
        methods = _methods(given.values.get("methods") or "can", "can")
        show_help(parser, make_settings(methods[0], preset=preset), methods)
    if given.values.get("suite") is None:
        raise UserError(f"SUITE is missing: give one of {', '.join(SUITES)}.")
    suite = SUITES[known_name(given.values["suite"], SUITES, "suite")]
    methods = _methods(given.values.get("methods"), ",".join(suite.methods or METHODS))
    require_own_settings(given, methods)
    is_ignored = ignored_settings(parser, [*OF_ONE_RUN, *given.values], methods)
    values = {**parser.from_config(config, is_ignored), **given.values}
    if values.get("cluster") is not None:
        values |= {name: for_all_machines(value) for name, value in values.items() if name != "out"}
    options = BenchmarkOptions(**{name: value for name, value in values.items() if name in names})
    if options.out is None:
        raise UserError("--out is missing: give a folder for the results.")
    changes = setting_changes(values)
    task_settings = suite.task_settings.get(preset, {})
    by_task = {
        method: {task: _settings(suite, method, preset, own, changes) for task, own in task_settings.items()}
        for method in methods
    }
    plan = make_plan(
        options.suite,
        options.data,
        {method: _settings(suite, method, preset, {}, changes) for method in methods},
        seeds=_seeds(options.seeds),
        tasks=listed(options.tasks),
        by_task=by_task,
        variant="" if preset == DEFAULT else preset,
        images=image_choice(values),
        cache=options.cache,
        strict=options.strict,
    )
    return options, plan


def _settings(suite: Suite, method: str, preset: str, of_task: Mapping[str, Any], changes: dict[str, Any]) -> Settings:
    """The settings of one method in a suite; changes to other methods' settings do not concern it."""
    own = {n: v for n, v in changes.items() if n.rpartition(".")[0] not in METHODS or n.startswith(f"{method}.")}
    defaults = {**suite.changes, **of_task}
    return make_settings(method, preset=preset, defaults=defaults, changes=own, recipe=suite.recipes)


def _methods(text: str | None, default: str) -> list[str]:
    """The methods to run, in the order of `METHODS`."""
    wanted = {known_name(name, METHODS, "method") for name in listed(default if text is None else text)}
    return [name for name in METHODS if name in wanted]


def _seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in listed(text)))
    except ValueError:
        raise UserError(f"--seeds is {text!r}, but must be whole numbers separated by commas, as 0,1,2.") from None


def listed(text: str) -> list[str]:
    """The parts of a text that is separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def run(plan: Plan, out: Path, *, jobs: int = 1, cluster: str | None = None) -> None:
    """Run what the folder lacks, and show the tables."""
    with Interruption(), advice_on_failure("repeat the command to run the cells that are missing"):
        results = run_plan(plan, out, jobs=jobs, cluster=cluster)
    output.print(fitted(to_terminal(results), to_terminal(results, turned=True)))
    output.print(f"Tables: {out / 'results.md'} and results.tex; page: {out / 'report.html'}")
