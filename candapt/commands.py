"""What the commands do, as plain functions of typed arguments."""

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from candapt.adaptation import Adapted, check_settings, check_task, initial_layers, make_fabric
from candapt.adaptation import adapt as adapt_task
from candapt.baseline import METHOD as BASELINE
from candapt.baseline import Baseline, baseline_of, compare
from candapt.cache import ActivationCache, Entry, readable
from candapt.console import TrainingBar, counting, log_to
from candapt.data import visda
from candapt.data.checking import ImageCheck
from candapt.data.domains import LabeledDomain, Side, Task
from candapt.data.inputs import (
    Reading,
    is_feature_file,
    read_domain,
    read_labeled_domain,
    read_target_labels,
    unknown_classes,
)
from candapt.data.inventory import describe_data, sentences
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.evaluation import metrics
from candapt.evaluation.alarm import warnings_from
from candapt.evaluation.discrepancy import round_discrepancies
from candapt.evaluation.estimate import estimate_accuracy
from candapt.files import write_atomically
from candapt.frozen import all_rows
from candapt.interruption import Interruption
from candapt.model import Model, load
from candapt.network.backbones import SMALL_CNN, build_backbone, input_settings
from candapt.network.build import Layers, decide
from candapt.origin import origin_of, refuse_changes, warn_of_other_machine
from candapt.runs import RunFolder, describe_settings, plain, versions, write_json
from candapt.settings import ImageChoice, NetworkSettings, Settings, TrainingSettings
from candapt.training.checkpoint import MINUTES, Checkpoints
from candapt.training.loop import Record, Training

log = logging.getLogger(__name__)
output = Console(highlight=False, soft_wrap=True)

Format = Literal["csv", "visda"]
"""How predictions are written: a table, or the class numbers that the VisDA-2017 challenge asks for."""


@dataclass(frozen=True)
class Job:
    """What `candapt adapt` is asked to do."""

    source: Path
    target: Path
    settings: Settings
    images: ImageChoice = field(default_factory=ImageChoice)
    target_labels: Path | None = None
    strict: bool = False
    baseline: bool = True
    """Train source-only beside, to tell whether adaptation helped."""
    cache: Path | None = None
    """Folder of the activation cache; None for the user's. It changes no result."""
    report: bool = True
    """Write `report.html`, with a map of both domains."""
    map_points: int = 1000
    """Samples of each domain on that map, at most."""

    def describe(self) -> dict[str, Any]:
        """The content of `config.yaml`."""
        paths = {"source": self.source, "target": self.target, "target_labels": self.target_labels}
        return {
            **{name: str(path.absolute()) if path else None for name, path in paths.items()},
            "strict": self.strict,
            "baseline": self.baseline,
            "report": self.report,
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
        inputs = read_inputs(job)  # before the folder is claimed: files or weights may be missing or not fit
        origin = origin_of(job.describe(), inputs.task, inputs.checks, inputs.truth, inputs.layers)
        with RunFolder.claimed(out, resume=resume) as run, continuable(out), log_to(run.path / "log.txt"):
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
    truth = None
    if job.target_labels:
        truth = read_target_labels(job.target_labels, target, source.classes, strict=job.strict)
    layers = initial_layers(task, job.settings)
    cache = ActivationCache(job.cache)
    cache.require_room(layers, task.source, task.target)
    return Inputs(task, images, (source_check, target_check), truth, layers, cache)


def train(job: Job, inputs: Inputs, run: RunFolder, checkpoints: Checkpoints, baseline: Baseline | None) -> Adapted:
    """Train, and write what came of it."""
    from candapt.report.mapping import Mapper  # scikit-learn's t-SNE takes seconds to import

    task, truth = inputs.task, inputs.truth
    found = describe_data(task, *inputs.checks)
    run.write_broken([item for check in inputs.checks if check for item in check.broken])
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


def image_settings(job: Job) -> ImageSettings | None:
    """How image files become samples, by the backbone's expectations and the user's choice; None for feature files."""
    if is_feature_file(job.source) and is_feature_file(job.target):
        return None
    return expected_images(job.settings.network, job.images)


def expected_images(network: NetworkSettings, choice: ImageChoice) -> ImageSettings:
    """How image files become the input of a backbone, where the user did not choose otherwise."""
    expects = input_settings(decide(network, (3, 224, 224)).backbone)
    return ImageSettings.for_input(
        choice.size or expects.size,
        expects.mean,
        expects.std,
        resize=choice.resize,
        augmentation=choice.augmentation,
        shrink=choice.shrink,
    )


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
        "selection": adapted.choice.describe(),
        "seconds": round(adapted.seconds, 2),
        "data": found,
        "mean_confidence": float(predictions.confidence.mean()),
        "kept_share": float(predictions.kept.float().mean()),
        "cluster_agreement": float((predictions.labels == predictions.cluster_labels).float().mean()),
        "predicted_counts": dict(zip(classes, counts, strict=True)),
        "versions": versions(),
    }
    if truth is not None:
        summary["oracle"] = measure(truth, predictions.probabilities)
    return summary


def describe_baseline(adapted: Adapted, baseline: Baseline, truth: Tensor | None) -> dict[str, Any]:
    """What the summary tells of the comparison with the source-only network."""
    facts = compare(adapted, baseline)
    told: dict[str, Any] = {
        "warnings": [finding.describe() for finding in warnings_from(facts)],
        "source_only": {
            "mean_confidence": float(baseline.predictions.confidence.mean()),
            "same_predictions": facts.same,
            "scores": {name: value for name, value in baseline.record.items() if name.startswith("score_")},
        },
        "facts": asdict(facts),
    }
    if truth is not None:
        accuracy = metrics.accuracy(*_where_known(truth, baseline.predictions.labels))
        told["source_only"]["oracle_accuracy"] = accuracy
    return told


def conclude(adapted: Adapted, folder: Path) -> str:
    """The last line of a run."""
    agreement = float((adapted.predictions.labels == adapted.predictions.cluster_labels).float().mean())
    choice = adapted.choice
    kept = "" if choice.round == choice.last_round else f" Kept round {choice.round + 1}, the best by {choice.select}."
    return (
        f"Done in {adapted.seconds:.0f} s after {len(adapted.history)} rounds.{kept} Classifier and clusters agree on "
        f"{agreement:.1%} of the target. Predictions: {folder / 'predictions.csv'}"
    )


def report(runs: Sequence[Path], out: Path | None = None, *, pictures: bool = True) -> None:
    """Make the page of a run, or one page that compares several; without pictures nothing but the folders is read."""
    from candapt.report import write_comparison, write_report  # Plotly takes seconds to import

    if out is not None and out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")
    if len(runs) > 1 and out is None:
        raise UserError("Several runs have no common folder: say by --out which file is to compare them.")
    if len(runs) == 1:
        path = write_report(runs[0], out, pictures=pictures)
    else:
        path = write_comparison(runs, out or Path(), pictures=pictures)
    log.info("Report: %s", path)


def predict(run: Path, source: Path, out: Path, *, format: Format = "csv", strict: bool = False) -> None:
    """Predict everything in a folder, a list or a feature file; a submission to VisDA leaves nothing out."""
    if out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")
    source = visda.list_of(source) if format == "visda" else source
    model = load(run)
    with _reading(model, strict=strict or format == "visda") as reading:
        domain, _ = read_domain(source, reading)
    predictions = model.predict(domain)
    with _writing(out):
        if format == "visda":
            visda.write_submission(out, predictions.labels, model.classes)
        else:
            predictions.write_csv(out, model.classes)
    log.info("Predicted %d samples: %s", domain.size, out)


def evaluate(run: Path, labeled: Path, out: Path | None = None, *, strict: bool = False) -> dict[str, Any]:
    """Measure a model on labelled data; classes are matched by name."""
    if out is not None and out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")
    model = load(run)
    with _reading(model, strict=strict) as reading:
        domain, _ = read_labeled_domain(labeled, reading)
    truth = match_classes(domain, model.classes)
    unknown = unknown_classes([domain.classes[label] for label in domain.labels], model.classes)
    if unknown and strict:
        raise UserError(f"{str(labeled)!r} has samples of {unknown}, which the model does not know; remove them.")
    figures = measure(truth, model.predict(domain).probabilities)
    output.print(f"accuracy             {figures['accuracy']:.1%}")
    output.print(f"mean class accuracy  {figures['mean_class_accuracy']:.1%}")
    output.print(f"calibration error    {figures['calibration_error']:.1%}")
    output.print(f"samples              {figures['samples']}")
    if figures["left_out"]:
        output.print(
            f"left out             {figures['left_out']} of classes that the model does not know: {unknown}",
            markup=False,
        )
    if out is not None:
        with _writing(out):
            write_json(out, figures | {"classes": list(model.classes)})
    return figures


def embed(images: Path, out: Path, network: NetworkSettings, choice: ImageChoice, *, labeled: bool = False) -> None:
    """Write the features of every image, as a frozen backbone gives them, to an `.npz` file."""
    if out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")
    if is_feature_file(images):
        raise UserError(f"{str(images)!r} holds arrays already: give a folder of images to `candapt embed`.")
    if not is_feature_file(out) or not out.absolute().parent.is_dir():
        raise UserError(f"--out is {str(out)!r}, but must be a file ending in .npz in a folder that exists.")
    name = decide(network, (3, 224, 224)).backbone
    if name == SMALL_CNN and network.weights is None:
        raise UserError(f"{SMALL_CNN} was not pretrained: give its --weights, or another --backbone.")
    backbone = build_backbone(name, weights=network.weights)
    with counting("checking images") as count:
        reading = Reading(expected_images(network, choice), os.cpu_count() or 1, progress=count)
        domain, _ = (read_labeled_domain if labeled else read_domain)(images, reading)
    with counting("features") as count:
        features = all_rows(backbone.to(make_fabric(TrainingSettings()).device), domain, count)
    arrays: dict[str, Any] = {"x": features.numpy(), "names": np.array(domain.names)}
    if isinstance(domain, LabeledDomain):
        arrays |= {"y": domain.labels.numpy(), "classes": np.array(domain.classes)}
    with _writing(out), write_atomically(out) as part, part.open("wb") as file:
        np.savez(file, **arrays)
    log.info("%d features of %d images by %s: %s", features.shape[1], len(features), name, out)


def list_cache(folder: Path | None, key: str | None = None) -> None:
    """Show the entries of the activation cache, the last used first."""
    cache = ActivationCache(folder)
    entries = cache.find(key)
    if not entries:
        output.print(f"The cache {cache.folder} is empty.")
        return
    table = Table("key", "backbone", "depth", "images", "views", "size", "last used", "state", box=None)
    for entry in entries:
        table.add_row(*describe_entry(entry))
    if not output.is_terminal:  # a file or a pipe has no width that the table must fit
        table.width = output.measure(table, options=output.options.update(width=1000)).maximum
    output.print(table)
    output.print(f"{readable(sum(entry.size for entry in entries))} in {cache.folder}")


def clear_cache(folder: Path | None, key: str | None = None) -> None:
    """Remove all entries of the activation cache, or one."""
    cache = ActivationCache(folder)
    entries = cache.find(key)
    size = sum(entry.size for entry in entries)
    for entry in entries:
        cache.remove(entry)
    output.print(f"Removed {len(entries)} of the entries in {cache.folder}, {readable(size)}.")


def describe_entry(entry: Entry) -> list[str]:
    """The cells of an entry's row."""
    about, begun = entry.about, entry.begun
    told = [str(about.get(name, "?")) for name in ("backbone", "finetune", "images")]
    used = datetime.fromtimestamp(entry.last_used).strftime("%Y-%m-%d %H:%M")
    state = f"partial ({', '.join(begun)})" if begun or not entry.views else "complete"
    return [entry.folder.name[:12], *told, str(len(entry.views)), readable(entry.size), used, state]


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
    calibration, bins = metrics.expected_calibration_error(labels, known)
    classes = probabilities.shape[1]
    return {
        "accuracy": metrics.accuracy(labels, predicted),
        "mean_class_accuracy": metrics.mean_class_accuracy(labels, predicted),
        "calibration_error": calibration,
        "calibration": bins.describe(),
        "samples": len(labels),
        "left_out": len(truth) - len(labels),
        "confusion": metrics.confusion_matrix(labels, predicted, num_classes=classes).tolist(),
    }


def _where_known(truth: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    known = truth >= 0
    return truth[known], values[known]


@contextmanager
def _reading(model: Model, *, strict: bool) -> Iterator[Reading]:
    """How the model wants its files read, with a bar while they are checked."""
    names = visda.CLASSES if visda.speaks_of(model.classes) else ()
    with counting("checking images") as count:
        yield Reading(model.images or ImageSettings(), os.cpu_count() or 1, strict, count, names)
