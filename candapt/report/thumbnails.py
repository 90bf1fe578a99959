"""Small pictures of samples as data URIs, as many as a page can carry."""

import base64
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from PIL import Image

from candapt.data.decoding import BrokenImageError, read_image
from candapt.data.domains import Side
from candapt.data.features import read_arrays
from candapt.data.inputs import is_list_file
from candapt.errors import UserError
from candapt.report.run_data import Run

BUDGET = 4_500_000  # maximum size of all thumbnails of a page in bytes, encoded
QUALITY = 70  # of the JPEGs


class Thumbnails:
    """Pictures of the samples of one domain, as long as its files are where the run read them.

    Args:
        place: folder or list of images, or `.npz` file; None to show nothing.
        shape: shape of one sample; features, which have one dimension, have no picture.
    """

    def __init__(self, place: Path | None, shape: Sequence[int]) -> None:
        self.place = place.parent if place and is_list_file(place) else place
        self.array = _small_images(place) if place and place.suffix.lower() == ".npz" and len(shape) == 3 else None

    @property
    def available(self) -> bool:
        """Whether there is anything to show."""
        return self.array is not None or (self.place is not None and self.place.is_dir())

    def make(self, names: Sequence[str], side: int, budget: int = BUDGET) -> dict[str, str]:
        """Data URIs by name, the first names first, of files that can be read, until the budget in bytes is used up.

        A picture is at most `side` pixels high and wide.
        """
        made: dict[str, str] = {}
        wanted = list(dict.fromkeys(names)) if self.available else []
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for first in range(0, len(wanted), 64):
                part = wanted[first : first + 64]
                for name, uri in zip(part, pool.map(lambda each: self.one(each, side), part), strict=True):
                    budget -= len(uri or "")
                    if budget < 0:
                        return made
                    if uri is not None:
                        made[name] = uri
        return made

    def one(self, name: str, side: int) -> str | None:
        """The picture of a sample as a data URI; None if there is none."""
        picture = self.jpeg(name, side)
        return None if picture is None else "data:image/jpeg;base64," + base64.b64encode(picture).decode("ascii")

    def jpeg(self, name: str, side: int) -> bytes | None:
        """The picture of a sample as a JPEG file; None if there is none."""
        if not self.available:
            return None
        image = self._file(name, side) if self.array is None else self._row(name, side)
        if image is None:
            return None
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY, optimize=True)
        return buffer.getvalue()

    def _file(self, name: str, side: int) -> Image.Image | None:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts:  # names come from a file that anyone may have written
            return None
        try:
            image = read_image((self.place or Path()) / path, min_size=side)
        except (BrokenImageError, OSError, ValueError):
            return None
        image.thumbnail((side, side))
        return image

    def _row(self, name: str, side: int) -> Image.Image | None:
        assert self.array is not None
        if not name.isdecimal() or int(name) >= len(self.array):
            return None
        image = Image.fromarray(self.array[int(name)])
        times = max(1, side // max(image.size))
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)


def thumbnails_of(run: Run) -> dict[Side, Thumbnails]:
    """The pictures of both domains of a run; none if the page may show nothing from outside the run folder."""
    return {side: Thumbnails(run.place(side) if run.pictures else None, run.shape) for side in Side}


def _small_images(path: Path) -> np.ndarray[Any, Any] | None:
    """Images of an `.npz` file as bytes, (n, h, w) or (n, h, w, 3), scaled by their smallest and largest value."""
    try:
        x = read_arrays(path, "x").get("x")
    except UserError:
        return None
    if x is None or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[1] not in (1, 3)):
        return None
    x = x.astype(np.float32)
    low, high = float(x.min()), float(x.max())
    scaled = np.round((x - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    if x.ndim == 4:
        scaled = scaled[:, 0] if x.shape[1] == 1 else scaled.transpose(0, 2, 3, 1)
    return scaled
