"""The search: Optuna proposes settings, a training tries them.

Optuna keeps nothing between two trials. For each one it gets all finished trials and a seed derived from the search's
seed and the trial's number, so a search that was killed resumes exactly as if it had not been.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from candapt.adaptation import adapt
from candapt.data.domains import Task
from candapt.errors import DivergedError
from candapt.evaluation.scores import SCORES, value_of
from candapt.network.build import NetworkParts
from candapt.randomness import derive_seed
from candapt.settings import Range, Settings
from candapt.training.callbacks import Callback
from candapt.training.loop import Training
from candapt.training.state import Record
from candapt.tuning.folder import Trial

STARTUP = 5  # trials before settings are proposed by the results of others, and before any is pruned
PRUNED_AFTER = 1 / 3  # share of the rounds in which no trial is pruned: early rounds say little

_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


@dataclass(frozen=True)
class Search:
    """What is searched, and by which score."""

    settings: Settings  # what the search starts from, and what stays
    space: Mapping[str, Range]
    score: str

    @property
    def start(self) -> dict[str, float]:
        """The values of the first trial."""
        return {name: self.settings.value(name) for name in self.space}

    def describe(self) -> dict[str, object]:
        """As plain values, to check that a resumed search is the same one."""
        return {"score": self.score, "searched": {name: [r.low, r.high, r.log] for name, r in self.space.items()}}


def propose(search: Search, trials: Sequence[Trial], number: int | None = None) -> optuna.Trial:
    """The next trial: first the settings to start from, then at random, then what looks promising.

    Its number is that of the finished trials, unless others are still running.
    """
    number = len(trials) if number is None else number
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # our progress bar shows it
    seed = derive_seed(search.settings.seed, "trial", number) % 2**32
    study = optuna.create_study(
        direction="maximize" if SCORES[search.score].higher_is_better else "minimize",
        sampler=optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=seed),
        pruner=optuna.pruners.MedianPruner(STARTUP, int(search.settings.rounds * PRUNED_AFTER)),
    )
    distributions = {name: _distribution(limits) for name, limits in search.space.items()}
    for trial in trials:
        scores = {at: value for at, value in enumerate(trial.scores) if value is not None}
        state, values = _STATES[trial.state], trial.settings
        finished = create_trial(
            state=state, value=trial.score, params=values, distributions=distributions, intermediate_values=scores
        )
        study.add_trial(finished)
    if not trials:
        study.enqueue_trial(search.start)
    return study.ask(distributions)


def _distribution(limits: Range) -> BaseDistribution:
    if limits.whole:
        return IntDistribution(int(limits.low), int(limits.high), log=limits.log)
    return FloatDistribution(limits.low, limits.high, log=limits.log)


def run_trial(
    search: Search,
    trials: Sequence[Trial],
    task: Task,
    parts: NetworkParts,
    advance: Callable[[float], None] = lambda share: None,
    number: int | None = None,
) -> Trial:
    """The next trial after the finished ones: the network is trained once with proposed settings.

    The task is that after the frozen layers; `advance` is called with the share of the rounds that is done.
    """
    number = len(trials) if number is None else number
    proposed = propose(search, trials, number)
    values = {name: proposed.params[name] for name in search.space}
    settings, reporter = search.settings.changed(values), _Reporter(search, proposed, advance)
    own, started = replace(parts, network=copy.deepcopy(parts.network), frozen=None), time.perf_counter()
    outcome: dict[str, Any]
    try:
        outcome = _outcome(adapt(task, settings, parts=own, callbacks=[reporter]).record, search.score)
    except optuna.TrialPruned:
        outcome = {"state": "pruned"}
    except DivergedError as error:
        outcome = {"state": "failed", "reason": str(error)}
    seconds = round(time.perf_counter() - started, 2)
    return Trial(number, settings=values, scores=tuple(reporter.scores), seconds=seconds, **outcome)


def _outcome(record: Record, score: str) -> dict[str, Any]:
    """The outcome of a finished training, by the record of the round that it keeps."""
    value = value_of(record, score)
    if value is None:
        return {"state": "failed", "reason": f"there is no score {score} of it."}
    return {"state": "complete", "score": value, "round": int(record["round"])}


class _Reporter(Callback):
    """Reports the score of each round to Optuna, and ends a trial that does worse than most."""

    def __init__(self, search: Search, proposed: optuna.Trial, advance: Callable[[float], None]) -> None:
        self.search, self.proposed, self.advance = search, proposed, advance
        self.scores: list[float | None] = []

    def on_step(self, training: Training, done: int, planned: int) -> None:
        """Move the bar."""
        self.advance((len(self.scores) + done / planned) / self.search.settings.rounds)

    def on_round(self, training: Training, record: Record) -> None:
        """Report; warm-up rounds are not judged."""
        value = None if record.get("warmup") else value_of(record, self.search.score)
        self.scores.append(value)
        if value is not None:
            self.proposed.report(value, len(self.scores) - 1)
            if len(self.scores) < self.search.settings.rounds and self.proposed.should_prune():
                raise optuna.TrialPruned
