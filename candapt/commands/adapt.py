"""`candapt adapt`: train on files, into a run folder."""

import logging
import shlex
from pathlib import Path

from torch import Tensor

from candapt.adaptation import Adapted, check_settings
from candapt.adaptation import adapt as adapt_task
from candapt.baseline import METHOD as BASELINE
from candapt.baseline import Baseline, baseline_of
from candapt.commands.job import Inputs, Job, read_inputs
from candapt.commands.report import report
from candapt.commands.summary import conclude, describe_baseline, summarize
from candapt.console import TrainingBar, log_to, noting
from candapt.data.domains import Side
from candapt.data.inventory import describe_data, sentences
from candapt.errors import advising
from candapt.evaluation.discrepancy import round_discrepancies
from candapt.evaluation.estimate import estimate_accuracy
from candapt.evaluation.metrics import accuracy, where_known
from candapt.interruption import Interruption
from candapt.origin import origin_of, refuse_changes, warn_of_other_machine
from candapt.runs import RunFolder
from candapt.training.checkpoint import MINUTES, Checkpoints
from candapt.training.loop import Record, Training

log = logging.getLogger(__name__)


def adapt(
    job: Job,
    out: Path,
    *,
    baseline: Baseline | None = None,
    checkpoint_minutes: float = MINUTES,
    resume: bool = False,
    force: bool = False,
) -> Adapted:
    """Read, train, and write the run folder.

    Args:
        job: what to do.
        out: folder of the run.
        baseline: what to compare with; without one it is trained, if the job wants it.
        checkpoint_minutes: time between two checkpoints within a round; 0 for one after every step.
        resume: go on with the unfinished run in the folder.
        force: go on also if data, settings or code are not what the run was started with.
    """
    if not resume:
        RunFolder.check(out)
    with Interruption() as interruption:
        check_settings(job.settings)
        with noting() as said:
            inputs = read_inputs(job)  # before the folder is claimed: files or weights may be missing or not fit
        origin = origin_of(job.describe(), inputs.task, inputs.checks, inputs.truth, inputs.layers)
        advice = f"continue with: candapt adapt --out {shlex.quote(str(out))} --resume"
        with RunFolder.claimed(out, resume=resume) as run, advising(advice), log_to(run.path / "log.txt", said):
            if before := run.read_origin():
                refuse_changes(out, before, origin, force=force)
                warn_of_other_machine(before, origin)
            run.write_origin(origin)
            run.write_config(job.describe())
            checkpoints = Checkpoints(run.path / "checkpoints", minutes=checkpoint_minutes, interruption=interruption)
            return train(job, inputs, run, checkpoints, baseline)


def resume(job: Job, out: Path, *, checkpoint_minutes: float = MINUTES, force: bool = False) -> None:
    """Go on with a run if it is not complete; the job must be the one that it was started with, unless forced."""
    RunFolder.check_resumable(out)
    run = RunFolder(out)
    if not force and (origin := run.read_origin()):  # what else may have changed needs the data to be read
        refuse_changes(out, {"settings": origin.get("settings")}, {"settings": job.describe()}, force=False)
    if run.complete:
        log.info("The run in %s is complete: %s", out, out / "predictions.csv")
        return
    adapt(job, out, checkpoint_minutes=checkpoint_minutes, resume=True, force=force)


def train(job: Job, inputs: Inputs, run: RunFolder, checkpoints: Checkpoints, baseline: Baseline | None) -> Adapted:
    """Train, and write what came of it."""
    from candapt.report.mapping import Mapper  # scikit-learn's t-SNE takes seconds to import

    task, truth = inputs.task, inputs.truth
    found = describe_data(task, *inputs.checks)
    run.write_broken(inputs.broken)
    for sentence in sentences(task, found):
        log.info("%s", sentence)
    mapper = Mapper(run.path, job.map_points) if job.report else None
    with TrainingBar(job.settings.method, job.settings.rounds) as bar:
        adapted = adapt_task(
            task,
            job.settings,
            images=inputs.images,
            watcher=_Recorder(run, bar, truth),
            layers=inputs.layers,
            cache=inputs.cache,
            on_embedded=bar.on_embedded,
            checkpoints=checkpoints,
            on_start=mapper.start if mapper else None,
        )
    adapted.model.save(run.path)
    adapted.predictions.write_csv(run.path / "predictions.csv", task.source.classes)
    if baseline is None and job.baseline:
        with TrainingBar(BASELINE, job.settings.rounds) as bar:
            baseline = baseline_of(adapted, job.settings, bar)
    summary = summarize(job, found, adapted, truth)
    if baseline is not None:
        summary |= describe_baseline(adapted, baseline, truth)
    estimate = estimate_accuracy(
        adapted.record,
        starts_at_random=adapted.model.method.network.starts_at_random,
        doubtful=bool(summary.get("warnings")),
    )
    summary |= {"estimated_accuracy": estimate.describe() if estimate else None}
    if mapper is not None:
        mapper.finish(adapted)
    run.write_summary(summary)  # it says that the run is complete; the page can be made at any time
    log.info("%s", conclude(adapted, run.path))
    if estimate is not None:
        log.info("%s", estimate.sentence)
    for finding in summary.get("warnings", []):
        log.warning("%s", finding["sentence"])
    if job.report:
        report([run.path])
    return adapted


class _Recorder:
    """Writes each round to the run folder; what it learns from true labels is marked oracle and goes nowhere else."""

    def __init__(self, run: RunFolder, bar: TrainingBar, truth: Tensor | None) -> None:
        self.run, self.bar, self.truth = run, bar, truth

    def on_step(self, done: int, planned: int) -> None:
        """Move the bar."""
        self.bar.on_step(done, planned)

    def on_round(self, training: Training, record: Record) -> None:
        """Write metrics."""
        record = record | round_discrepancies(training, self.truth)
        if self.truth is not None:
            predicted = training.embed(Side.TARGET).logits.argmax(1)
            record = record | {"oracle_accuracy": accuracy(*where_known(self.truth, predicted))}
        if record.get("kept_classes") == 0:
            log.warning("No class was confident enough in this round: it trained on the source alone.")
        self.run.append_metrics(record)
        self.bar.on_round(training, record)
