"""The source samples of a run that new samples resemble most: their classes, and their pictures if they are at hand."""

import csv
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.console import counting
from candapt.data.domains import LabeledDomain, Side, part_of
from candapt.data.inputs import Reading, read_labeled_domain
from candapt.errors import UserError
from candapt.evaluation.confidence import stored_source_rows
from candapt.evaluation.reference import some_rows
from candapt.model import Model
from candapt.network.activations import CHUNK, after_layers
from candapt.report.thumbnails import Thumbnails
from candapt.settings import ImageSettings
from candapt.storage.runs import LEFT_OUT
from candapt.storage.safe_reading import MAX_TABLE, check_file, contained, read_json, read_yaml, shortened
from candapt.training.outputs import outputs_of

log = logging.getLogger(__name__)

PICTURE = 96  # pixels of a picture's longer side
KEPT_PICTURES = 2000  # pictures that stay in memory, of some three kilobytes each


@dataclass(frozen=True, eq=False)
class SourceSamples:
    """Source samples that new ones are compared with."""

    vectors: Tensor  # of unit length, shape (s, d)
    labels: Tensor  # shape (s,)
    names: Sequence[str] | None = None  # None if the source is not where the run read it
    picture: Callable[[int], str | None] = lambda row: None  # data URI of a sample's picture, by its place here


def read_source(folder: Path, model: Model) -> LabeledDomain | None:
    """The source of a run as it was read for the training, without decoding a file; None if that is impossible.

    Files that the training left out are left out. A source with other classes or of another size is not the same.
    """
    try:
        place = Path(str(read_yaml(contained(folder, "config.yaml"))["source"]))
        count = read_json(contained(folder, "summary.json"))["data"]["source"]
        reading = Reading(model.images or ImageSettings(), os.cpu_count() or 1, known_broken=_left_out(folder))
        domain, _ = read_labeled_domain(place, reading)
        if domain.size != count or domain.classes != model.classes:
            raise UserError(f"{str(place)!r} has changed since the training.")
    except (UserError, OSError, LookupError, TypeError, ValueError) as error:
        log.info("The source is not shown: %s", shortened(str(error)) or type(error).__name__)
        return None
    return domain


def _left_out(folder: Path) -> Callable[[Path], bool]:
    """Whether a file is among those that the training left out, where paths may be relative to where it was started."""
    if not (folder / LEFT_OUT).exists():
        return lambda path: False
    check_file(contained(folder, LEFT_OUT), MAX_TABLE)
    with (folder / LEFT_OUT).open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        listed = {Path(row["path"]).parts for row in csv.DictReader(file)}
    lengths = {len(parts) for parts in listed}
    return lambda path: any(path.parts[-length:] in listed for length in lengths)


def source_samples(folder: Path, model: Model, source: LabeledDomain | None, computed: int) -> SourceSamples | None:
    """What new samples are compared with: the samples that the model stores, or else `computed` ones of the source.

    Stored samples are features that the adaptation did not touch. Where the network changes its own, nothing is
    stored, and some source samples pass through the network. None if there is neither.
    """
    reference = model.calibrator.reference if model.calibrator is not None else None
    if reference is None:
        return None if source is None or computed < 1 else _computed(folder, model, source, computed)
    if source is not None:
        rows = stored_source_rows(source.size, len(source.classes))
        if torch.equal(source.labels[rows], reference.source_labels):
            names = [source.names[row] for row in rows.tolist()]
            return SourceSamples(reference.source, reference.source_labels, names, _pictures(folder, model, names))
        log.info("The source is not shown: its labels have changed since the training.")
    return SourceSamples(reference.source, reference.source_labels)


def _computed(folder: Path, model: Model, source: LabeledDomain, count: int) -> SourceSamples | None:
    """Source samples as the adapted network sees them."""
    rows = some_rows(source.size, count)
    chosen = part_of(source, rows)
    features = []
    try:
        with counting("reading source samples") as progress:
            for part in torch.split(torch.arange(len(rows)), CHUNK):
                prepared = after_layers(model.parts.frozen, part_of(chosen, part))
                outputs = outputs_of(model.method, prepared, Side.SOURCE, batch_size=model.batch_size)
                features.append(normalize(outputs.features))
                progress(int(part[-1]) + 1, len(rows))
    except UserError as error:  # a file that has changed since
        log.info("The source is not shown: %s", error)
        return None
    pictures = _pictures(folder, model, chosen.names)
    return SourceSamples(torch.cat(features), chosen.labels, list(chosen.names), pictures)


def _pictures(folder: Path, model: Model, names: Sequence[str]) -> Callable[[int], str | None]:
    """What gives the picture of each of these samples as a data URI."""
    place: Any = read_yaml(contained(folder, "config.yaml"))["source"]
    thumbnails = Thumbnails(Path(str(place)), model.shape)
    if not thumbnails.available:
        return lambda row: None
    return lru_cache(KEPT_PICTURES)(partial(_picture, thumbnails, names))


def _picture(thumbnails: Thumbnails, names: Sequence[str], row: int) -> str | None:
    return thumbnails.one(names[row], PICTURE)


def value_range(source: LabeledDomain | None) -> tuple[float, float] | None:
    """Smallest and largest value of a source of small images in an array; None without one."""
    if source is None or not isinstance(array := getattr(source.samples, "array", None), Tensor) or array.ndim != 4:
        return None
    low, high = float(array.min()), float(array.max())
    return (low, high) if low < high else None
