"""Domains from what a Python program has at hand: arrays, data frames, and lists of image paths."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from candapt.data.domains import Domain, Samples
from candapt.data.features import array_samples, checked_samples
from candapt.data.inputs import Reading, read_domain
from candapt.settings import ImageSettings


def domain_of(given: Any, reading: Reading) -> Domain:
    """The domain that someone means: itself, files at a path, a list of image paths, or the rows of an array.

    Of a folder, files that do not decode are left out unless the reading is strict. Of a list of paths none is, so that
    there is one sample for each of them.
    """
    if isinstance(given, Domain):
        return given
    if isinstance(given, str | os.PathLike):
        return read_domain(Path(given), reading)[0]
    if paths := image_paths(given):
        return Domain(listed_samples(paths, reading.images, "the list"), tuple(map(str, paths)))
    samples = checked_samples({"x": np.asarray(given)}, "the array")
    return Domain(array_samples(samples, augment=reading.images.augmentation != "none"))


def image_paths(given: Any) -> list[Path]:
    """The paths in a list, a tuple, a one-dimensional array or a pandas series of paths; empty for anything else."""
    if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) != 1:
        return []
    items = list(given)
    return [Path(item) for item in items] if all(isinstance(item, str | os.PathLike) for item in items) else []


def listed_samples(paths: Sequence[Path], images: ImageSettings, place: str) -> Samples:
    """Image files in their order; one that does not decode raises a `UserError`. `place` is for its message."""
    from candapt.data.images import usable_samples  # needs torchvision, which arrays do without

    return usable_samples(Path(place), paths, images, workers=os.cpu_count() or 1, strict=True)[0]
