"""`candapt tune`: trials with other settings, kept in a folder, and the configuration of the best one."""

import logging
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from rich.table import Table

from candapt.adaptation import check_settings, make_fabric, prepare
from candapt.commands.job import Inputs, Job, read_inputs
from candapt.console import SeriesBar, console, counting, log_to, output, quiet_trainings
from candapt.data.inventory import describe_data, sentences
from candapt.errors import UserError, advising
from candapt.evaluation.scores import SCORES
from candapt.interruption import Interruption
from candapt.origin import Origin, origin_of, refuse_changes, warn_of_other_machine
from candapt.runs import RunFolder
from candapt.tuning.objective import check_score
from candapt.tuning.search import Search, run_trial
from candapt.tuning.space import apply, search_space
from candapt.tuning.trials import CONFIG, LOG, TABLE, Trial, TuningFolder, best_of

log = logging.getLogger(__name__)

SHOWN = 10
"""Trials in the table at the end."""


def tune(
    job: Job,
    out: Path,
    *,
    trials: int,
    score: str,
    fixed: Collection[str] = (),
    resume: bool = False,
    force: bool = False,
    command: str = "",
) -> Trial:
    """Search settings, and write those of the best trial to `config.yaml`.

    Args:
        job: what to train on, and the settings to start from; it must have no target labels.
        out: folder of the search.
        trials: trainings in all, with those that are in the folder already.
        score: what settings are compared by.
        fixed: names of settings, or groups of them, that stay as they are.
        resume: go on with the trials in the folder.
        force: go on also if data, settings or code are not what the search was started with.
        command: goes on with the search, for who has interrupted it.

    Returns:
        The best trial.
    """
    if trials < 1:
        raise UserError(f"--trials is {trials}, but must be at least 1.")
    check_score(score, job.settings)
    check_settings(job.settings)
    TuningFolder.check(out, resume=resume)
    with Interruption():
        inputs = read_inputs(job)  # before the folder is claimed: files or weights may be missing or not fit
        search = Search(job.settings, search_space(job.settings, fixed, inputs.task.num_classes), score)
        if not search.space:
            raise UserError("There is nothing to search: all settings that could be are given by flags.")
        advice = f"continue with: {command}"
        with TuningFolder.claimed(out, resume=resume) as folder, advising(advice), log_to(out / LOG):
            return _go_on(job, search, inputs, folder, trials, force=force)


def _go_on(job: Job, search: Search, inputs: Inputs, folder: TuningFolder, wanted: int, *, force: bool) -> Trial:
    """Run what is missing; after each trial the folder holds the best one so far."""
    origin = _origin(job, search, inputs)
    if before := folder.read_origin():
        refuse_changes(folder.path, before, origin, force=force)
        warn_of_other_machine(before, origin)
    trials = folder.read_trials(search.space)
    folder.write_origin(origin)
    for sentence in sentences(inputs.task, describe_data(inputs.task, *inputs.checks)):
        log.info("%s", sentence)
    RunFolder(folder.path).write_broken(inputs.broken)
    log.info("Searched by %s: %s.", search.score, ", ".join(search.space))
    if trials:
        log.info("%d of %d trials have ended already.", len(trials), wanted)
    fabric = make_fabric(job.settings.training)
    with counting("features") as count:
        prepared = prepare(inputs.task, inputs.layers, fabric, inputs.cache, count)
    with quiet_trainings(), SeriesBar("trials", wanted, min(len(trials), wanted)) as bar:
        while len(trials) < wanted:
            trial = run_trial(search, trials, prepared, inputs.layers, bar.advance)
            if trial.number == 0 and trial.state == "failed":
                raise UserError(f"The training with the settings to start from failed: {trial.reason}")
            trials.append(trial)
            best = _keep(job, search, trials, folder)
            bar.count(f"trials, best {_figure(best.score)}")
            if not console.is_terminal:
                log.info("%d/%d %s; %s.", len(trials), wanted, describe(trial, search.score), bar.time_left)
    best = _keep(job, search, trials, folder)  # a kill may have left files of different ages
    show(job, search, trials, best, folder)
    return best


def _origin(job: Job, search: Search, inputs: Inputs) -> Origin:
    """What the search is started with."""
    origin = origin_of(job.describe() | search.describe(), inputs.task, inputs.checks, None, inputs.layers)
    origin["versions"]["optuna"] = optuna.__version__
    return origin


def _keep(job: Job, search: Search, trials: Sequence[Trial], folder: TuningFolder) -> Trial:
    """Write the trials and the settings of the best one, which there is: the first one is complete."""
    folder.write_trials(trials)
    best = best_of(trials, search.score) or trials[0]
    chosen = replace(job, settings=apply(job.settings, best.settings))
    told = f"Trial {best.number}, the best of {len(trials)} by {search.score}. Run it with: "
    folder.write_config(chosen.describe(), f"{told}candapt adapt --config {CONFIG} --out RUN")
    return best


def describe(trial: Trial, score: str) -> str:
    """One line of plain text for a trial."""
    rounds = f"after {len(trial.scores)} rounds, {trial.seconds:.0f} s"
    if trial.score is None:
        return f"trial {trial.number}: {trial.state} {rounds}. {trial.reason}".rstrip(". ")
    return f"trial {trial.number}: {score} {trial.score:.4f} {rounds}"


def show(job: Job, search: Search, trials: Sequence[Trial], best: Trial, folder: TuningFolder) -> None:
    """The best trials as a table, and what to do next."""
    table = table_of(search, trials)
    if not output.is_terminal:  # a file or a pipe has no width that the table must fit
        table.width = output.measure(table, options=output.options.update(width=1000)).maximum
    output.print(table)
    start = f"trial 0, the settings to start from ({_figure(trials[0].score)})"
    found = start if best is trials[0] else f"trial {best.number} ({_figure(best.score)}), before {start}"
    pruned = sum(trial.state == "pruned" for trial in trials)
    output.print(
        f"Best by {search.score}: {found}; {pruned} of {len(trials)} trials were pruned. "
        f"All of them: {folder.path / TABLE}",
        markup=False,
    )
    paths = shlex.join([str(job.source), str(job.target), "--config", str(folder.path / CONFIG)])
    output.print(f"Train with these settings: candapt adapt {paths} --out RUN", markup=False)


def table_of(search: Search, trials: Sequence[Trial]) -> Table:
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
