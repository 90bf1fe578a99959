"""What the commands do, as plain functions of typed arguments."""

import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from candapt.adaptation import Adapted, check_settings, check_task, initial_layers
from candapt.adaptation import adapt as adapt_task
from candapt.cache import ActivationCache
from candapt.console import TrainingBar, counting, log_to
from candapt.data.domains import LabeledDomain, Side, Task
from candapt.data.images import ImageCheck, describe_images
from candapt.data.inputs import Reading, is_feature_file, read_domain, read_labeled_domain, read_target_labels
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.evaluation import metrics
from candapt.interruption import Interruption
from candapt.model import Model, load
from candapt.network.backbones import input_settings
from candapt.network.build import Layers, decide
from candapt.origin import origin_of, refuse_changes, warn_of_other_machine
from candapt.runs import RunFolder, describe_settings, plain, versions, write_json
from candapt.settings import ImageChoice, Settings
from candapt.training.checkpoint import MINUTES, Checkpoints
from candapt.training.loop import Record, Training

log = logging.getLogger(__name__)
output = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Job:
    """What `candapt adapt` is asked to do."""

    source: Path
    target: Path
    settings: Settings
    images: ImageChoice = field(default_factory=ImageChoice)
    target_labels: Path | None = None
    strict: bool = False
    cache: Path | None = None
    """Folder of the activation cache; None for the user's. It changes no result."""

    def describe(self) -> dict[str, Any]:
        """The content of `config.yaml`."""
        paths = {"source": self.source, "target": self.target, "target_labels": self.target_labels}
        return {
            **{name: str(path.absolute()) if path else None for name, path in paths.items()},
            "strict": self.strict,
            "images": plain(self.images),
            **describe_settings(self.settings),
        }


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a job names, read and checked."""

    task: Task
    images: ImageSettings | None
    checks: tuple[ImageCheck | None, ImageCheck | None]
    """Of the image files of source and target."""
    truth: Tensor | None
    """Target labels for the oracle."""
    layers: Layers
    cache: ActivationCache


def adapt(
    job: Job, out: Path, *, checkpoint_minutes: float = MINUTES, resume: bool = False, force: bool = False
) -> Adapted:
    """Read, train, and write the run folder.

    Args:
        job: what to do.
        out: folder of the run.
        checkpoint_minutes: time between two checkpoints within a round; 0 for one after every step.
        resume: go on with the unfinished run in the folder.
        force: go on also if data, settings or code are not what the run was started with.
    """
    if not resume:
        RunFolder.check(out)
    with Interruption() as interruption:
        check_settings(job.settings)
        inputs = read_inputs(job)  # before the folder is claimed: files or weights may be missing or not fit
        origin = origin_of(job.describe(), inputs.task, inputs.checks, inputs.truth, inputs.layers)
        with RunFolder.claimed(out, resume=resume) as run, continuable(out), log_to(run.path / "log.txt"):
            if before := run.read_origin():
                refuse_changes(out, before, origin, force=force)
                warn_of_other_machine(before, origin)
            run.write_origin(origin)
            run.write_config(job.describe())
            checkpoints = Checkpoints(run.path / "checkpoints", minutes=checkpoint_minutes, interruption=interruption)
            return train(job, inputs, run, checkpoints)


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


@contextmanager
def continuable(out: Path) -> Iterator[None]:
    """Note on what ends a run too early how to go on with it."""
    try:
        yield
    except (KeyboardInterrupt, OSError, MemoryError, RuntimeError) as error:
        error.add_note(f"continue with: candapt adapt --out {shlex.quote(str(out))} --resume")
        raise


def read_inputs(job: Job) -> Inputs:
    """Read what a job names, and refuse what does not fit together."""
    images = image_settings(job)
    with counting("checking images") as count:
        views = images or ImageSettings(augmentation=job.images.augmentation)
        reading = Reading(views, os.cpu_count() or 1, job.strict, count)
        source, source_check = read_labeled_domain(job.source, reading)
        target, target_check = read_domain(job.target, reading)
    task = Task(source, target)
    check_task(task)
    truth = read_target_labels(job.target_labels, target, source.classes) if job.target_labels else None
    layers = initial_layers(task, job.settings)
    cache = ActivationCache(job.cache)
    cache.require_room(layers, task.source, task.target)
    return Inputs(task, images, (source_check, target_check), truth, layers, cache)


def train(job: Job, inputs: Inputs, run: RunFolder, checkpoints: Checkpoints) -> Adapted:
    """Train, and write what came of it."""
    task = inputs.task
    found = describe_data(task, *inputs.checks)
    run.write_broken([item for check in inputs.checks if check for item in check.broken])
    log.info("%s", found["sentence"])
    with TrainingBar(job.settings.method, job.settings.rounds) as bar:
        adapted = adapt_task(
            task,
            job.settings,
            images=inputs.images,
            watcher=_Recorder(run, bar, inputs.truth),
            layers=inputs.layers,
            cache=inputs.cache,
            on_embedded=bar.on_embedded,
            checkpoints=checkpoints,
        )
    adapted.model.save(run.path)
    adapted.predictions.write_csv(run.path / "predictions.csv", task.source.classes)
    run.write_summary(summarize(job, found, adapted, inputs.truth))  # last: it says that the run is complete
    log.info("%s", conclude(adapted, run.path))
    return adapted


def image_settings(job: Job) -> ImageSettings | None:
    """How image files become samples, by the backbone's expectations and the user's choice; None for feature files."""
    if is_feature_file(job.source) and is_feature_file(job.target):
        return None
    network = job.settings.network
    expects = input_settings(decide(network, (3, 224, 224)).backbone)
    return ImageSettings.for_input(
        job.images.size or expects.size,
        expects.mean,
        expects.std,
        resize=job.images.resize,
        augmentation=job.images.augmentation,
    )


def describe_data(task: Task, source: ImageCheck | None, target: ImageCheck | None) -> dict[str, Any]:
    """What was found, in a sentence and in numbers."""
    source_found = f"Source: {task.source.size} samples of {task.num_classes} classes"
    sentence = f"{source_found}; target: {task.target.size} samples without labels."
    told: dict[str, Any] = {"sentence": sentence, "source": task.source.size, "target": task.target.size}
    if source is not None:
        told["source_images"] = describe_images(source, task.source)
    if target is not None:
        told["target_images"] = describe_images(target)
    if source is not None and target is not None:
        told["in_both"] = len(source.duplicates(target))
    return told


class _Recorder:
    """Writes each round to the run folder; what it learns from true labels is marked oracle and goes nowhere else."""

    def __init__(self, run: RunFolder, bar: TrainingBar, truth: Tensor | None) -> None:
        self.run, self.bar, self.truth = run, bar, truth

    def on_step(self, done: int, planned: int) -> None:
        """Move the bar."""
        self.bar.on_step(done, planned)

    def on_round(self, training: Training, record: Record) -> None:
        """Write metrics."""
        if self.truth is not None:
            predicted = training.embed(Side.TARGET).logits.argmax(1)
            record = record | {"oracle_accuracy": metrics.accuracy(*_where_known(self.truth, predicted))}
        if record.get("kept_classes") == 0:
            log.warning("No class was confident enough in this round: it trained on the source alone.")
        self.run.append_metrics(record)
        self.bar.on_round(training, record)


def summarize(job: Job, found: dict[str, Any], adapted: Adapted, truth: Tensor | None) -> dict[str, Any]:
    """The content of `summary.json`."""
    predictions, classes = adapted.predictions, adapted.model.classes
    counts = predictions.labels.bincount(minlength=len(classes)).tolist()
    summary: dict[str, Any] = {
        "method": job.settings.method,
        "seed": job.settings.seed,
        "rounds": len(adapted.history),
        "stopped": "settled" if adapted.settled else "last round",
        "seconds": round(adapted.seconds, 2),
        "data": {name: value for name, value in found.items() if name != "sentence"},
        "mean_confidence": float(predictions.confidence.mean()),
        "kept_share": float(predictions.kept.float().mean()),
        "cluster_agreement": float((predictions.labels == predictions.cluster_labels).float().mean()),
        "predicted_counts": dict(zip(classes, counts, strict=True)),
        "versions": versions(),
    }
    if truth is not None:
        summary["oracle"] = measure(truth, predictions.probabilities)
    return summary


def conclude(adapted: Adapted, folder: Path) -> str:
    """The last line of a run."""
    agreement = float((adapted.predictions.labels == adapted.predictions.cluster_labels).float().mean())
    return (
        f"Done in {adapted.seconds:.0f} s after {len(adapted.history)} rounds; classifier and clusters agree on "
        f"{agreement:.1%} of the target. Predictions: {folder / 'predictions.csv'}"
    )


def predict(run: Path, source: Path, out: Path) -> None:
    """Predict everything in a folder or feature file."""
    if out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")
    model = load(run)
    domain, _ = read_domain(source, _reading(model))
    predictions = model.predict(domain)
    with _writing(out):
        predictions.write_csv(out, model.classes)
    log.info("Predicted %d samples: %s", domain.size, out)


def evaluate(run: Path, labeled: Path, out: Path | None = None) -> dict[str, Any]:
    """Measure a model on labelled data; classes are matched by name."""
    if out is not None and out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")
    model = load(run)
    domain, _ = read_labeled_domain(labeled, _reading(model))
    truth = match_classes(domain, model.classes)
    figures = measure(truth, model.predict(domain).probabilities)
    output.print(f"accuracy             {figures['accuracy']:.1%}")
    output.print(f"mean class accuracy  {figures['mean_class_accuracy']:.1%}")
    output.print(f"calibration error    {figures['calibration_error']:.1%}")
    output.print(f"samples              {figures['samples']}")
    if figures["left_out"]:
        output.print(f"left out             {figures['left_out']} of classes that the model does not know")
    if out is not None:
        with _writing(out):
            write_json(out, figures | {"classes": list(model.classes)})
    return figures


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Say in a sentence why a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{str(out)!r} cannot be written ({error.strerror}): give another file by --out.") from None


def match_classes(domain: LabeledDomain, classes: tuple[str, ...]) -> Tensor:
    """The domain's labels as indices into `classes`, shape (n,); -1 for a class that is not among them."""
    position = {name: index for index, name in enumerate(classes)}
    known = torch.tensor([position.get(name, -1) for name in domain.classes])
    if (known < 0).all():
        raise UserError(
            f"None of the classes {', '.join(domain.classes[:3])}, … is one of the model's: {', '.join(classes[:3])}, …"
        )
    return known[domain.labels]


def measure(truth: Tensor, probabilities: Tensor) -> dict[str, Any]:
    """All figures that need true labels; samples without one, or of an unknown class, are left out and counted."""
    labels, known = _where_known(truth, probabilities)
    predicted = known.argmax(1)
    calibration, _ = metrics.expected_calibration_error(labels, known)
    classes = probabilities.shape[1]
    return {
        "accuracy": metrics.accuracy(labels, predicted),
        "mean_class_accuracy": metrics.mean_class_accuracy(labels, predicted),
        "calibration_error": calibration,
        "samples": len(labels),
        "left_out": len(truth) - len(labels),
        "confusion": metrics.confusion_matrix(labels, predicted, num_classes=classes).tolist(),
    }


def _where_known(truth: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    known = truth >= 0
    return truth[known], values[known]


def _reading(model: Model) -> Reading:
    return Reading(model.images or ImageSettings(), os.cpu_count() or 1)
