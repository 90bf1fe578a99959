"""`candapt predict`: predictions of a run's model for other data."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from candapt import processes
from candapt.commands.launch import ProcessOptions, launched
from candapt.commands.parser import parse_options, positional, required, switch
from candapt.console import counting
from candapt.data import visda
from candapt.data.inputs import Reading, describe_inputs, read_domain
from candapt.model import Model, load
from candapt.settings import ImageSettings, TrainingSettings
from candapt.storage.files import require_new, writing
from candapt.training.batches import make_fabric

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PredictOptions(ProcessOptions):
    """Options of `candapt predict`."""

    run: Path = positional()
    """Run folder."""
    input: Path = positional()
    """New samples."""
    out: Path = required()
    """File to write."""
    format: Literal["csv", "visda"] = "csv"
    """csv: a table; visda: class numbers in the order of the challenge's image_list.txt."""
    strict: bool = switch()
    """Stop at files that do not decode, rather than leave them out."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    options = parse_options(PredictOptions, "predict", arguments, {"input": describe_inputs(labeled=False)})
    if not launched("predict", arguments, options):
        run(options)


def run(options: PredictOptions) -> None:
    """Predict everything in a folder, a list or a feature file; a submission to VisDA leaves nothing out."""
    out, is_submission = options.out, options.format == "visda"
    if processes.started() > 1:
        make_fabric(TrainingSettings())  # connects them
    processes.by_first(lambda: require_new(out))
    source = visda.list_of(options.input) if is_submission else options.input
    model = load(options.run)
    with model_reading(model, strict=options.strict or is_submission) as reading:
        domain, _ = read_domain(source, reading)
    predictions = model.predict(domain, together=True)
    if not processes.is_first():
        return
    with writing(out):
        if is_submission:
            visda.write_submission(out, predictions.labels, model.classes)
        else:
            predictions.write_csv(out, model.classes, name_unknown=model.names_unknown)
    log.info("Predicted %d samples: %s", domain.size, out)


@contextmanager
def model_reading(model: Model, *, strict: bool) -> Iterator[Reading]:
    """How to read files for a model, with a progress bar while they are checked."""
    names = visda.CLASSES if visda.speaks_of(model.classes) else ()
    with counting("checking images") as count:
        yield Reading(model.images or ImageSettings(), os.cpu_count() or 1, strict, count, names)
