"""How far an exported file agrees with PyTorch, on samples of the target or, without them, on random inputs."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candapt.data.domains import ArraySamples, Domain, part_of
from candapt.data.inputs import Reading, read_domain
from candapt.errors import UserError
from candapt.evaluation.reference import some_rows
from candapt.model import Model
from candapt.randomness import generator
from candapt.settings import ImageSettings
from candapt.storage.safe_reading import contained, read_yaml

log = logging.getLogger(__name__)

LIMIT = 1e-4  # largest difference of a probability between a file and PyTorch
SAMPLES = 200  # samples that are compared
SWAPPED = 0.1  # share of the samples whose confidence may differ by more: neighbors that are equally near change places

Array = np.ndarray[Any, Any]
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Agreement:
    """A file compared with PyTorch."""

    inputs: str  # what was compared: `target` or `random`
    samples: int
    same_class: float  # share of the samples for which both predict the same class
    max_difference: float  # largest difference of a probability
    mean_difference: float  # mean difference of a probability
    max_confidence_difference: float
    confidence_within: float  # share of the samples whose confidence differs by at most the limit

    @property
    def sentence(self) -> str:
        """The comparison without a period."""
        what = f"{self.samples} samples of the target" if self.inputs == "target" else f"{self.samples} random inputs"
        same = "all" if self.same_class == 1 else f"{self.same_class:.1%}"
        return (
            f"On {what} the file predicts the same class as PyTorch for {same}; probabilities differ by at most "
            f"{self.max_difference:.1e} and by {self.mean_difference:.1e} on average, the confidence by at most "
            f"{self.max_confidence_difference:.1e}"
        )

    def require(self) -> None:
        """Raise a `UserError` if the file is not the same model."""
        differing = (1 - self.confidence_within) * self.samples
        if not self.max_difference <= LIMIT or differing > max(2, SWAPPED * self.samples):
            raise UserError(f"{self.sentence}, where at most {LIMIT:g} is expected: no file was written.")

    def describe(self) -> dict[str, Any]:
        """The figures in plain values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Examples:
    """Samples to compare on, and to calibrate a quantization with."""

    inputs: str  # `target` or `random`
    domain: Domain

    @property
    def array(self) -> Array:
        """All of them, shape (n, *shape)."""
        values: Array = self.domain.samples.read(torch.arange(self.domain.size)).numpy()
        return values

    def split(self) -> "tuple[Examples, Examples]":
        """Every other sample, and the rest; both are all of them if there are fewer than four."""
        if self.domain.size < 4:
            return self, self
        parts = (part_of(self.domain, torch.arange(first, self.domain.size, 2)) for first in (0, 1))
        first, second = (Examples(self.inputs, part) for part in parts)
        return first, second


def find_examples(model: Model, run: Path, target: Path | None, count: int = SAMPLES) -> Examples:
    """Samples of the target, from the given place or where the run found it; random inputs if it is not there."""
    if target is not None:
        return Examples("target", read_samples(model, target, count))
    try:
        recorded = Path(str(read_yaml(contained(run, "config.yaml"))["target"]))
        domain = read_samples(model, recorded, count)
        if tuple(domain.samples.shape) == model.shape:
            return Examples("target", domain)
    except (KeyError, OSError, ValueError):  # a `UserError` is a `ValueError`
        pass
    log.info("The target is not where the run found it: random inputs take its place; --target says where it is.")
    drawn = torch.randn(count, *model.shape, generator=generator("export"))
    return Examples("random", Domain(ArraySamples(drawn)))


def read_samples(model: Model, place: Path, count: int) -> Domain:
    """Some samples of a folder, a list or a feature file, always the same ones."""
    settings, workers = model.images or ImageSettings(), os.cpu_count() or 1
    if place.is_dir():  # not all of a large folder needs to be decoded
        from candapt.data.images import find_images, usable_samples

        paths = find_images(place)
        if not paths:
            raise UserError(f"No image was found below {str(place)!r}.")
        samples, _ = usable_samples(
            place, [paths[row] for row in some_rows(len(paths), count)], settings, workers=workers
        )
        return Domain(samples)
    domain, _ = read_domain(place, Reading(settings, workers))
    return part_of(domain, some_rows(domain.size, count))


def compare(model: Model, run: Callable[[Array], Outputs], examples: Examples, batch_size: int = 32) -> Agreement:
    """Compare what a file computes, given as a function of a batch, with `Model.predict`."""
    expected = model.predict(examples.domain)
    array = examples.array
    batches = [run(array[start : start + batch_size]) for start in range(0, len(array), batch_size)]
    probabilities, confidence, labels = (
        np.concatenate([batch[name] for batch in batches]) for name in ("probabilities", "confidence", "label")
    )
    differences = np.abs(probabilities - expected.probabilities.numpy())
    of_confidence = np.abs(confidence - expected.confidence.numpy())
    return Agreement(
        examples.inputs,
        len(array),
        float((labels == expected.labels.numpy()).mean()),
        float(differences.max()),
        float(differences.mean()),
        float(of_confidence.max()),
        float((of_confidence <= LIMIT).mean()),
    )
