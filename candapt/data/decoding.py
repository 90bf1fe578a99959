"""One image file of any kind into pixels: 8-bit, upright, on white where it is transparent."""

import io
import stat
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from candapt.errors import UserError

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "WEBP", "TIFF", "GIF")
"""What such a file may hold, whatever its ending says. Others stay out: Pillow hands EPS to an outside program."""
MAX_PIXELS = 178_000_000
"""Images with more pixels are refused before they are decoded; just below Pillow's own limit."""
MAX_BYTES = 2**30
"""Larger files are refused before they are read."""
LARGE = 25_000_000
"""Images with more pixels are decoded one at a time, so that the threads together need no more memory than one does."""

_one_large = threading.Lock()
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what turns the stored image upright."""
_SIDEWAYS = range(5, 9)
"""EXIF orientations in which width and height change places."""


class BrokenImageError(UserError):
    """An image file that cannot be used, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        """Say it in one sentence; `repr` keeps odd bytes of a name printable."""
        super().__init__(f"The image {str(path)!r} {reason}; replace or remove it.")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["BrokenImageError"], tuple[Path, str]]:
        """Let it cross from a worker process."""
        return type(self), (self.path, self.reason)


class Stored(NamedTuple):
    """An image as it is stored in its file."""

    size: tuple[int, int]
    """Width and height, upright."""
    grey: bool
    """Whether it has no color."""


def read_image(
    path: Path, *, grey: bool = False, min_size: int | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode an image file of any kind into 8-bit RGB (or grey), upright, on white where it is transparent.

    Args:
        path: the file.
        grey: return one channel (mode L) in place of three.
        min_size: a JPEG may be decoded at a half, a quarter or an eighth of its size, which is much faster, as long as
            both sides stay at least this long; by default it is decoded whole.
        max_pixels: larger images are refused before they are decoded (Pillow itself refuses above 178,956,970).

    Raises:
        BrokenImageError: the file cannot be read or decoded, or has too many pixels.
    """
    return decode(Path(path), path, grey=grey, min_size=min_size, max_pixels=max_pixels)[0]


def decode(
    path: Path,
    file: Path | io.BytesIO,
    *,
    grey: bool = False,
    min_size: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Image.Image, "Stored"]:
    """The image, and what is known of it as it is stored; `path` is only for the message."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            size = image.size
            if size[0] * size[1] > max_pixels:
                raise Image.DecompressionBombError
            can_shrink = image.format in ("JPEG", "MPO")
            if can_shrink and min_size is not None:
                image.draft(None, (min_size, min_size))
            with _one_large if image.width * image.height > LARGE else nullcontext():
                image.load()
                # Only now: Pillow itself turns a TIFF while loading it, and a PNG may tell its orientation at the end.
                orientation = _orientation(image)
                size = size if can_shrink else image.size
                upright = image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
                converted = _to_grey(upright) if grey else _to_rgb(upright)
            colorless = image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")
    except Image.DecompressionBombError as error:
        raise BrokenImageError(path, f"has more pixels than the limit of {max_pixels:,}") from error
    except Exception as error:  # damaged files make Pillow's plugins raise almost anything
        raise BrokenImageError(path, why_unusable(error)) from error
    return converted, Stored(size[::-1] if orientation in _SIDEWAYS else size, colorless)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 where it is missing or unreadable: damaged notes do not make an image useless."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # as above
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    """Eight-bit red, green and blue from any mode."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image.copy()  # the caller closes the file of the original
    if image.mode == "F" or image.mode.startswith("I"):
        return _scaled(image).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _to_grey(image: Image.Image) -> Image.Image:
    """Eight-bit grey from any mode."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _scaled(image)
    if image.mode in ("1", "L") and not image.has_transparency_data:
        return image.convert("L")
    return _to_rgb(image).convert("L")


def _scaled(image: Image.Image) -> Image.Image:
    """Eight bits from 16-bit, 32-bit or float grey.

    White is 65535 for 16 bits. The others have no agreed white: it is 1 for floats within [0, 1], else 255 or 65535 if
    all values are within that, else the values are stretched from the darkest to the lightest.
    """
    values = np.array(image, dtype=np.float64)
    np.nan_to_num(values, copy=False, posinf=0.0, neginf=0.0)  # in place, as all that follows: images may be large
    low, high = float(values.min()), float(values.max())
    if image.mode.startswith("I;16"):
        white = 65535.0
    else:
        limits = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        white = next((limit for limit in limits if low >= 0 and high <= limit), 0.0)
    if not white:
        values -= low
        white = (high - low) or 1.0
    values *= 255 / white
    return Image.fromarray(np.rint(values, out=values).astype(np.uint8))


def check_size(path: Path) -> None:
    """Refuse what is no plain file, such as a pipe that never ends, or too large to be an image."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BrokenImageError(path, "is not a plain file")
    if status.st_size > MAX_BYTES:
        raise BrokenImageError(path, f"is larger than {MAX_BYTES:,} bytes")


def why_unusable(error: Exception) -> str:
    """The rest of a sentence that begins with the file's name."""
    if isinstance(error, UnidentifiedImageError):
        return "is not an image in a known format"
    if isinstance(error, FileNotFoundError):
        return "does not exist or is a link that leads nowhere"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    detail = " ".join(str(error).split()) or type(error).__name__
    return f"cannot be decoded ({detail})"
