"""Figures of one training each, stored as soon as they are there, so that a measurement resumes where it stopped."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import distinct
from benchmarks.suites import FEATURES, PACS
from candapt.data.domains import ArraySamples, Domain, LabeledDomain
from candapt.storage.files import write_json
from candapt.storage.provenance import measured_with

Cell = dict[str, Any]  # figures of a training, and as `measured_with` what they were measured with
FILES = {"pacs": PACS, "office31": FEATURES}
DOMAINS = {"pacs": ("photo", "art_painting", "cartoon", "sketch"), "office31": ("amazon", "dslr", "webcam")}


def cell(folder: Path, name: str, measure: Callable[[], Cell]) -> Cell:
    """The stored figures of that name; they are measured if there are none."""
    path = folder / f"{name}.json"
    if not path.exists():
        start, figures = measured_with(), measure()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {**figures, "measured_with": start})
        print(name, {key: value for key, value in figures.items() if isinstance(value, int | float)}, flush=True)
    content: Cell = json.loads(path.read_text())
    return content


def provenances(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """What the figures of some cells were measured with, each once."""
    return distinct([each["measured_with"] for each in cells])


@cache
def domain(collection: str, name: str) -> LabeledDomain:
    """A domain of PACS or Office-31 as ResNet-50 features."""
    with np.load(FILES[collection]) as file:
        x, y = file[f"{name}_x"].astype(np.float32), torch.as_tensor(file[f"{name}_y"].astype(np.int64))
        return LabeledDomain(ArraySamples(x), (), y, tuple(map(str, file["classes"])))


def unlabeled(labeled: LabeledDomain) -> Domain:
    """The same samples as a target."""
    return Domain(labeled.samples, labeled.names)
