"""`candapt suggest`: the target samples of a run whose labels would help most, for `--known-labels`."""

import csv
import logging
import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from candapt.commands.parser import parse_options, positional
from candapt.commands.predict import model_reading
from candapt.data.domains import Domain, Side
from candapt.data.inputs import read_domain
from candapt.data.known_labels import known_names
from candapt.errors import UserError
from candapt.evaluation.suggestion import standardized_units, suggest_samples
from candapt.evaluation.unknown import LIKELY
from candapt.model import Model, load
from candapt.network.activations import ActivationCache
from candapt.report.run_data import Run, read_run
from candapt.settings import setting
from candapt.storage.files import open_table, require_new, write_atomically, writing
from candapt.training.outputs import outputs_of, read_in_order

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SuggestOptions:
    """Options of `candapt suggest`."""

    run: Path = positional()
    """Run folder."""
    number: int = setting(50, low=1)
    """Number of samples to suggest."""
    out: Path | None = None
    """CSV file (path,label,prediction,confidence) with an empty label to fill in; without it the list is printed."""
    target: Path | None = None
    """Target of the run, if it is no longer where the run read it."""
    cache: Path | None = None
    """Folder for cached outputs of frozen layers (default: CANDAPT_CACHE, else the user's cache folder)."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    run(parse_options(SuggestOptions, "suggest", arguments))


def run(options: SuggestOptions) -> list[str]:
    """List the samples, those that stand for most doubt first; returns their names."""
    if options.number < 1:
        raise UserError(f"--number is {options.number}, but must be at least 1.")
    if options.out is not None:
        require_new(options.out)
    content, model = read_run(options.run, pictures=False), load(options.run)
    passed_over = torch.tensor(_passed_over(content, known_names(options.run))).nonzero().flatten()
    if len(passed_over) == len(content.predictions):
        raise UserError(
            "Every sample of the target has a known label or looks like none of the classes: there is none to suggest."
        )
    with model_reading(model, strict=False) as reading:
        target, _ = read_domain(options.target or content.place(Side.TARGET), reading)
    rows = _rows_of(content, target)
    confidence = torch.tensor([each.confidence for each in content.predictions])
    units = standardized_units(untouched(model, target, ActivationCache(options.cache))[rows])
    chosen = suggest_samples(units, confidence, options.number, known=passed_over).tolist()
    if len(chosen) < options.number:
        log.warning("All %d samples that a label could help are listed: there are no more.", len(chosen))
    _write(options.out, content, chosen)
    return [content.predictions[row].name for row in chosen]


def _passed_over(run: Run, known: Container[str]) -> list[bool]:
    """Whether each sample is not to be listed: its label is known, or it looks like none of the classes.

    For an unknown object there is no label to give; the page shows them by groups.
    """
    unknown = [each.unknown is not None and each.unknown > LIKELY for each in run.predictions]
    if any(unknown):
        log.info("%d samples look like none of the classes and are not listed.", sum(unknown))
    return [each.name in known or strange for each, strange in zip(run.predictions, unknown, strict=True)]


def _rows_of(run: Run, target: Domain) -> Tensor:
    """Where the samples of `predictions.csv` are in the target; a `UserError` if one is gone."""
    places = {name: row for row, name in enumerate(target.names)}
    missing = [each.name for each in run.predictions if each.name not in places]
    if missing:
        where = f"{missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise UserError(f"The target no longer has {where}: give the run's target by --target.")
    return torch.tensor([places[each.name] for each in run.predictions])


@torch.no_grad()
def untouched(model: Model, target: Domain, cache: ActivationCache) -> Tensor:
    """Features that the adaptation did not change, shape (n, d); where it changed all layers, those of the network."""
    if tuple(target.samples.shape) != model.shape:
        raise UserError(
            f"The target has samples of shape {tuple(target.samples.shape)}, the model's have {model.shape}."
        )
    # Training views are not needed.
    parts = replace(model.parts, settings=replace(model.parts.settings, views=0))
    prepared = cache.through(parts, target)[0]
    if len(prepared.samples.shape) == 1:
        return torch.cat([batch.cpu() for batch in read_in_order(model.method, prepared, model.batch_size)])
    return outputs_of(model.method, prepared, Side.TARGET, batch_size=model.batch_size).features


def _write(out: Path | None, run: Run, rows: Sequence[int]) -> None:
    """Write the list to a file, or to the standard output."""
    if out is None:
        _write_table(sys.stdout, run, rows)
        return
    with writing(out), write_atomically(out) as part, open_table(part) as file:
        _write_table(file, run, rows)
    log.info("Fill in the column label of %s, then adapt again with --known-labels %s", out, out)


def _write_table(file: TextIO, run: Run, rows: Sequence[int]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["path", "label", "prediction", "confidence"])
    for row in rows:
        sample = run.predictions[row]
        writer.writerow([sample.name, "", sample.label, f"{sample.confidence:.4f}"])
