"""How what a client sends becomes samples: image files, or JSON with arrays."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from candapt.data.decoding import declared_size, decode
from candapt.serving.engine import Array
from candapt.serving.refusal import RefusedError
from candapt.serving.uploads import Upload


@dataclass(frozen=True, eq=False)
class ImageReader:
    """Makes samples of image files."""

    prepare: Callable[[Image.Image], Array]
    grey: bool
    min_size: int | None  # side down to which a decoder may shrink a large image
    max_pixels: int

    def check(self, upload: Upload) -> None:
        """Raise a `BrokenImageError` if the file's header alone shows that it cannot be used."""
        declared_size(Path(upload.name), BytesIO(upload.data), max_pixels=self.max_pixels)

    def read(self, upload: Upload) -> Array:
        """The sample; a `BrokenImageError` for what cannot be decoded."""
        options: dict[str, Any] = {"grey": self.grey, "min_size": self.min_size, "max_pixels": self.max_pixels}
        return self.prepare(decode(Path(upload.name), BytesIO(upload.data), **options)[0])


def scaled_to(shape: tuple[int, ...], low: float, high: float) -> Callable[[Image.Image], Array]:
    """What makes an image an array of a shape (c, h, w), with black at `low` and white at `high`.

    Models over small images in `.npz` files have no other settings: the values of their source say what black is.
    """
    _, height, width = shape

    def prepare(image: Image.Image) -> Array:
        small = image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BICUBIC)
        values = np.asarray(small, dtype=np.float32).reshape(height, width, -1) / 255
        return np.ascontiguousarray(values.transpose(2, 0, 1)) * np.float32(high - low) + np.float32(low)

    return prepare


def parse_arrays(body: bytes, shape: tuple[int, ...], limit: int) -> Array:
    """The arrays in `{"samples": […]}`, shape (n, *shape), at most `limit`; a `RefusedError` for anything else."""
    expected = f"an object with samples: a list of arrays of shape {list(shape)}"
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):  # a `ValueError` also for text that is not UTF-8
        raise RefusedError(400, f"The body is not JSON: send {expected}.") from None
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list) or not samples:
        raise RefusedError(422, f"The body must be {expected}.")
    if len(samples) > limit:
        raise RefusedError(413, f"The request has more samples than the limit of {limit}.")
    return np.stack([_row(sample, row, shape) for row, sample in enumerate(samples)])


def _row(sample: Any, row: int, shape: tuple[int, ...]) -> Array:
    """One sample as single precision numbers."""
    values = _flat(sample, shape)
    if values is None:
        raise RefusedError(422, f"Sample {row} is not an array of numbers of shape {list(shape)}.")
    with np.errstate(over="ignore"):  # what single precision cannot hold is infinite, which is refused
        array = np.array([_number(value) for value in values]).astype(np.float32).reshape(shape)
    if not np.isfinite(array).all():
        raise RefusedError(422, f"Sample {row} holds values that are NaN or infinite in single precision.")
    return array


def _flat(sample: Any, shape: tuple[int, ...]) -> list[Any] | None:
    """The numbers of nested lists of exactly this shape; None for anything else."""
    level = [sample]
    for length in shape:
        if not all(isinstance(each, list) and len(each) == length for each in level):
            return None
        level = [value for each in level for value in each]
    return level if all(type(value) in (int, float) for value in level) else None


def _number(value: float) -> float:
    """A float; whole numbers in JSON may be larger than any."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
