"""`candapt predict` and `candapt evaluate`: what the model of a run makes of other data."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from candapt.commands.writing import refuse_existing, writing
from candapt.console import counting, output
from candapt.data import visda
from candapt.data.inputs import Reading, match_classes, read_domain, read_labeled_domain, unknown_classes
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.evaluation.metrics import measure
from candapt.model import Model, load
from candapt.runs import write_json

log = logging.getLogger(__name__)


Format = Literal["csv", "visda"]
"""How predictions are written: a table, or the class numbers that the VisDA-2017 challenge asks for."""


def predict(run: Path, source: Path, out: Path, *, format: Format = "csv", strict: bool = False) -> None:
    """Predict everything in a folder, a list or a feature file; a submission to VisDA leaves nothing out."""
    refuse_existing(out)
    source = visda.list_of(source) if format == "visda" else source
    model = load(run)
    with _reading(model, strict=strict or format == "visda") as reading:
        domain, _ = read_domain(source, reading)
    predictions = model.predict(domain)
    with writing(out):
        if format == "visda":
            visda.write_submission(out, predictions.labels, model.classes)
        else:
            predictions.write_csv(out, model.classes)
    log.info("Predicted %d samples: %s", domain.size, out)


def evaluate(run: Path, labeled: Path, out: Path | None = None, *, strict: bool = False) -> dict[str, Any]:
    """Measure a model on labelled data; classes are matched by name."""
    if out is not None:
        refuse_existing(out)
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
        with writing(out):
            write_json(out, figures | {"classes": list(model.classes)})
    return figures


@contextmanager
def _reading(model: Model, *, strict: bool) -> Iterator[Reading]:
    """How the model wants its files read, with a bar while they are checked."""
    names = visda.CLASSES if visda.speaks_of(model.classes) else ()
    with counting("checking images") as count:
        yield Reading(model.images or ImageSettings(), os.cpu_count() or 1, strict, count, names)
