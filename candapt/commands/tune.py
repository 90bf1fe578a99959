"""`candapt tune`: trials with other settings, stored in a folder, and the configuration of the best one."""

import logging
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from candapt.adaptation import prepare
from candapt.cluster import connected, for_all_machines, require
from candapt.commands.parser import read_config, switch
from candapt.commands.training import Inputs, TrainingOptions, parse_training, read_inputs, training_parser
from candapt.console import SeriesBar, console, counting, log_to, output
from candapt.data.inventory import describe_data, sentences
from candapt.errors import UserError, advice_on_failure
from candapt.evaluation.scores import SCORES
from candapt.storage.interruption import Interruption
from candapt.storage.provenance import Provenance, require_same
from candapt.storage.runs import write_config, write_left_out
from candapt.training.batches import make_fabric
from candapt.tuning.folder import CONFIG, LOG, TABLE, Trial, TuningFolder, best_of
from candapt.tuning.space import DEFAULT_SCORE, check_score, comparable_scores, search_space

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from candapt.tuning.search import Search

log = logging.getLogger(__name__)

SHOWN = 10  # trials in the table at the end
NOT_SEARCHED = ("target_labels", "strict", "baseline", "report")
"""Entries of a run's config.yaml that a search does not use."""


@dataclass(frozen=True)
class TuneOptions(TrainingOptions):
    """Options of `candapt tune`."""

    out: Path | None = None
    """New folder for the search; with --resume its folder."""
    trials: int = 20
    """Trainings in all; the first one uses the defaults."""
    score: str = DEFAULT_SCORE
    """Score to compare settings by."""
    cluster: str | None = None
    """Address of the scheduler of a Dask cluster, such as tcp://host:8786, whose workers run trials at the same time.
    A trial then knows only those that ended before it began, so the search differs from a serial one."""
    resume: bool = switch()
    """Resume the search in --out until it has enough trials."""
    force: bool = switch()
    """Resume even if data, settings, versions or code have changed."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = training_parser("tune", TuneOptions, skip=("target_labels", "baseline", "report"))
    score = parser.flags["score"]
    parser.flags["score"] = replace(score, help=f"{score.help.rstrip('.')}: {', '.join(comparable_scores())}.")
    given = parser.parse(arguments)
    options = parse_training(parser, TuneOptions, given, read_config(given.values.get("config")), NOT_SEARCHED)
    resuming = [*(argument for argument in arguments if argument != "--resume"), "--resume"]
    run(options, fixed=set(given.values), command=shlex.join(["candapt", "tune", *resuming]))


def run(options: TuneOptions, *, fixed: Collection[str] = (), command: str = "") -> Trial:
    """Search settings, and write those of the best trial, which is returned, to `config.yaml`.

    Settings whose flag names are `fixed` stay as they are; `command` resumes the search, for messages.
    """
    out, settings = options.out, options.settings
    if out is None:
        raise UserError("--out is missing: give a new folder for the search.")
    if options.trials < 1:
        raise UserError(f"--trials is {options.trials}, but must be at least 1.")
    check_score(options.score, settings)
    _require_optuna()
    from candapt.tuning.search import Search

    TuningFolder.check(out, resume=options.resume)
    require(options.cluster)
    if options.cluster is not None:
        paths = {
            name: for_all_machines(getattr(options, name)) for name in ("source", "target", "more_sources", "cache")
        }
        options = replace(options, **paths)
    fabric = make_fabric(settings.training)
    with Interruption():
        inputs = read_inputs(options)  # before the folder is claimed: files or weights may be missing or not fit
        options = replace(options, settings=inputs.settings, images=inputs.choice)
        settings = options.settings
        search = Search(settings, search_space(settings, fixed, inputs.task.num_classes), options.score)
        if not search.space:
            raise UserError("There is nothing to search: flags fix all settings that could be searched.")
        advice = advice_on_failure(f"continue with: {command}")
        with TuningFolder.open(out, resume=options.resume) as folder, advice, log_to(out / LOG):
            return _search(options, search, inputs, folder, fabric)


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError("`candapt tune` needs Optuna: install it with: pip install 'candapt[tune]'.") from None


def _search(options: TuneOptions, search: "Search", inputs: Inputs, folder: TuningFolder, fabric: "Fabric") -> Trial:
    """Run the trials that are missing; after each one the folder holds the best one so far."""
    from candapt.tuning.search import run_trial

    provenance = _provenance(options, search, inputs)
    require_same(folder.path, folder.read_provenance(), provenance, force=options.force)
    trials, wanted = folder.read_trials(search.space), options.trials
    folder.write_provenance(provenance)
    for sentence in sentences(inputs.task, describe_data(inputs.task, inputs.sources, inputs.target_check)):
        log.info("%s", sentence)
    write_left_out(folder.path, inputs.left_out)
    log.info("Searched by %s: %s.", search.score, ", ".join(search.space))
    if trials:
        log.info("%d of %d trials are finished already.", len(trials), wanted)
    with counting("features") as count:
        prepared = prepare(inputs.task, inputs.parts, fabric, inputs.cache, count)
    with SeriesBar("trials", wanted, min(len(trials), wanted)) as bar:
        run = partial(run_trial, search, task=prepared, parts=inputs.parts)
        for trial in _finished(run, trials, wanted, bar.advance, options.cluster):
            if trial.number == 0 and trial.state == "failed":
                raise UserError(f"The training with the settings to start from failed: {trial.reason}")
            trials.append(trial)
            best = _store(options, search, trials, folder)
            bar.count(f"trials, best {_figure(best.score)}")
            if not console.is_terminal:
                log.info("%d/%d %s; %s.", len(trials), wanted, describe(trial, search.score), bar.time_left)
    best = _store(options, search, trials, folder)  # a kill may have left files of different ages
    show(options, search, trials, best, folder)
    return best


def _finished(
    run: "partial[Trial]", trials: list[Trial], wanted: int, advance: Callable[[float], None], address: str | None
) -> Iterator[Trial]:
    """Trials as they are finished, until as many as wanted are; the caller adds them to the list."""
    while len(trials) < (wanted if address is None else min(1, wanted)):
        yield run(trials, advance=advance)
    if address is None or len(trials) >= wanted:
        return
    log.info(
        "Trials at the same time know only those finished before: their order is stored, and a repetition differs."
    )
    with connected(address) as cluster:
        begun = max(trial.number if trial.begun is None else trial.begun for trial in trials)
        running: dict[Any, int] = {}
        for _ in range(min(cluster.workers, wanted - len(trials))):
            begun += 1
            running[cluster.start(partial(run, list(trials), number=begun))] = begun
        for number, trial in cluster.finished(running):
            yield replace(trial, number=len(trials), begun=number)
            del running[next(each for each, own in running.items() if own == number)]
            if len(trials) + len(running) < wanted:
                begun += 1
                running[cluster.start(partial(run, list(trials), number=begun))] = begun


def _provenance(options: TuneOptions, search: "Search", inputs: Inputs) -> Provenance:
    """What the search is started with."""
    import optuna

    provenance = inputs.provenance(options.describe() | search.describe())
    provenance["versions"]["optuna"] = optuna.__version__
    return provenance


def _store(options: TuneOptions, search: "Search", trials: Sequence[Trial], folder: TuningFolder) -> Trial:
    """Write the trials and the settings of the best one, which exists: the first one is complete."""
    folder.write_trials(trials)
    best = best_of(trials, search.score) or trials[0]
    chosen = replace(options, settings=options.settings.changed(best.settings))
    origin = f"Trial {best.number}, the best of {len(trials)} by {search.score}."
    comment = f"{origin} Run it with: candapt adapt --config {CONFIG} --out RUN"
    write_config(folder.path / CONFIG, chosen.describe(), comment)
    return best


def describe(trial: Trial, score: str) -> str:
    """One line of plain text for a trial."""
    rounds = f"after {len(trial.scores)} rounds, {trial.seconds:.0f} s"
    if trial.score is None:
        return f"trial {trial.number}: {trial.state} {rounds}. {trial.reason}".rstrip(". ")
    return f"trial {trial.number}: {score} {trial.score:.4f} {rounds}"


def show(options: TuneOptions, search: "Search", trials: Sequence[Trial], best: Trial, folder: TuningFolder) -> None:
    """Print the best trials as a table, and what to do next."""
    table = table_of(search, trials)
    if not output.is_terminal:  # a file or a pipe has no width that the table must fit
        table.width = output.measure(table, options=output.options.update(width=1000)).maximum
    output.print(table)
    start = f"trial 0, the settings to start from ({_figure(trials[0].score)})"
    winner = start if best is trials[0] else f"trial {best.number} ({_figure(best.score)}), before {start}"
    pruned = sum(trial.state == "pruned" for trial in trials)
    output.print(
        f"Best by {search.score}: {winner}; {pruned} of {len(trials)} trials were pruned. "
        f"All of them: {folder.path / TABLE}",
        markup=False,
    )
    paths = shlex.join([str(options.source), str(options.target), "--config", str(folder.path / CONFIG)])
    output.print(f"Train with these settings: candapt adapt {paths} --out RUN", markup=False)


def table_of(search: "Search", trials: Sequence[Trial]) -> Table:
    """The best trials first, pruned ones last; the first trial, with the settings to start from, is always there."""
    sign = -1 if SCORES[search.score].higher_is_better else 1
    ranked = sorted(trials, key=lambda trial: (trial.score is None, sign * (trial.score or 0), trial.number))
    shown = ranked[:SHOWN] if trials[0] in ranked[:SHOWN] else [*ranked[: SHOWN - 1], trials[0]]
    names = [search.score, *(name.rpartition(".")[2] for name in search.space)]
    table = Table("trial", *(name.replace("_", "\n") for name in names), "rounds", box=None, padding=(0, 1, 0, 0))
    for trial in shown:
        values = (f"{value:.3g}" for value in map(trial.settings.__getitem__, search.space))
        state = "" if trial.state == "complete" else f" {trial.state}"
        table.add_row(str(trial.number), _figure(trial.score), *values, f"{len(trial.scores)}{state}")
    return table


def _figure(score: float | None) -> str:
    return "" if score is None else f"{score:.4f}"
