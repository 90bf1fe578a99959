"""Decoding image files of any kind into pixels, and checking every file of a domain once before training."""

import hashlib
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from candapt.errors import UserError

# Formats that are read, whatever a file's ending. Others stay out: Pillow hands EPS to an outside program.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "WEBP", "TIFF", "GIF")
MAX_PIXELS = 178_000_000  # images with more pixels are refused before they are decoded; just below Pillow's own limit
MAX_BYTES = 2**30  # larger files are refused before they are read
LARGE = 25_000_000  # images with more pixels are decoded one at a time: many threads need no more memory than one

_one_large = threading.Lock()
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # EXIF orientation -> what turns the stored image upright
_SIDEWAYS = range(5, 9)  # EXIF orientations in which width and height change places


class BrokenImageError(UserError):
    """An image file that cannot be used, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"The image {str(path)!r} {reason}; replace or remove it.")  # `repr` escapes odd bytes
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type["BrokenImageError"], tuple[Path, str]]:
        return type(self), (self.path, self.reason)  # lets it cross from a worker process


class TooManyPixelsError(BrokenImageError):
    """An image that has more pixels than are allowed."""


def read_image(
    path: Path, *, grey: bool = False, min_size: int | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """The image in a file as 8-bit RGB, or mode L with `grey`, upright and on white where it is transparent.

    With `min_size` a JPEG may be decoded at a half, a quarter or an eighth of its size, which is much faster, as long
    as both sides stay at least this long. A `BrokenImageError` gives the reason if the file cannot be decoded; an image
    with more than `max_pixels` is refused before that (Pillow itself refuses above 178,956,970).
    """
    return decode(Path(path), path, grey=grey, min_size=min_size, max_pixels=max_pixels)[0]


def decode(
    path: Path, file: Path | BytesIO, *, grey: bool = False, min_size: int | None = None, max_pixels: int = MAX_PIXELS
) -> tuple[Image.Image, tuple[int, int], bool]:
    """The image, its upright size in the file and whether that has no color; `path` is only for the message."""
    with _opened(path, file, max_pixels) as image:
        size = image.size
        can_shrink = image.format in ("JPEG", "MPO")
        if can_shrink and min_size is not None:
            image.draft(None, (min_size, min_size))
        with _one_large if image.width * image.height > LARGE else nullcontext():
            image.load()
            # Only now: Pillow itself turns a TIFF while loading it, and a PNG may store its orientation at the end.
            orientation = _orientation(image)
            size = size if can_shrink else image.size
            converted = upright_pixels(image, grey=grey)
        colorless = image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")
    return converted, size[::-1] if orientation in _SIDEWAYS else size, colorless


def declared_size(path: Path, file: Path | BytesIO, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Width and height that an image declares, from its header alone; `path` is only for the message.

    A `BrokenImageError` gives the reason if that is no image, a `TooManyPixelsError` if it is too large.
    """
    with _opened(path, file, max_pixels) as image:
        return image.size


@contextmanager
def _opened(path: Path, file: Path | BytesIO, max_pixels: int) -> Iterator[Image.Image]:
    """An image that is not decoded yet; whatever goes wrong with it is a `BrokenImageError`."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise Image.DecompressionBombError
            yield image
    except Image.DecompressionBombError as error:
        raise TooManyPixelsError(path, f"has more pixels than the limit of {max_pixels:,}") from error
    except Exception as error:  # damaged files make Pillow's plugins raise almost anything
        raise BrokenImageError(path, why_unusable(error)) from error


def upright_pixels(image: Image.Image, *, grey: bool = False) -> Image.Image:
    """An image of any mode as 8-bit RGB, or mode L with `grey`, upright and on white where it is transparent."""
    image.load()  # see `decode`: the orientation is known only then
    orientation = _orientation(image)
    upright = image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
    pixels = _to_grey(upright) if grey else _to_rgb(upright)
    pixels.info.clear()  # it still has the orientation: nobody must turn the image once more
    return pixels


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 where it is missing or unreadable: an image with damaged metadata is still useful."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
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
    """Eight-bit gray from any mode."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _scaled(image)
    if image.mode in ("1", "L") and not image.has_transparency_data:
        return image.convert("L")
    return _to_rgb(image).convert("L")


def _scaled(image: Image.Image) -> Image.Image:
    """Eight bits from 16-bit, 32-bit or float gray.

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


def why_unusable(error: Exception) -> str:
    """The reason as the rest of a sentence that begins with the file's name."""
    if isinstance(error, UnidentifiedImageError):
        return "is not an image in a known format"
    if isinstance(error, FileNotFoundError):
        return "does not exist or is a link that leads nowhere"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    return f"cannot be decoded ({' '.join(str(error).split()) or type(error).__name__})"


Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # called with (done, total)


class Checking(TypedDict, total=False):
    """Options of all functions that make a domain of image files: how the files are checked and read."""

    workers: int  # threads that decode, by default 1; they change the speed only, never a value
    strict: bool  # raise a `UserError` if a file does not decode; by default a warning names it and it is left out
    progress: Progress | None  # called after each file
    known_broken: Callable[[Path], bool] | None  # whether an earlier check left a file out; none is decoded then


@dataclass(frozen=True)
class ImageCheck:
    """The result of decoding every file of a list."""

    paths: tuple[Path, ...]  # files that decode, in the order given
    sizes: tuple[tuple[int, int], ...]  # width and height of each of them, upright
    hashes: tuple[str, ...]  # hash of the bytes of each of them
    broken: tuple[tuple[Path, str], ...] = ()  # files that do not decode, each with the reason
    empty: tuple[tuple[Path, str], ...] = ()  # class folders without a usable image, each with that as the reason
    grey: int = 0  # how many of the files that decode are stored without color

    def duplicates(self, other: "ImageCheck") -> list[tuple[Path, Path]]:
        """Pairs of one file here and one there whose bytes are the same."""
        there: dict[str, list[Path]] = {}
        for path, key in zip(other.paths, other.hashes, strict=True):
            there.setdefault(key, []).append(path)
        return [(path, twin) for path, key in zip(self.paths, self.hashes, strict=True) for twin in there.get(key, ())]


def checked_before(paths: Sequence[Path], known_broken: Callable[[Path], bool]) -> ImageCheck:
    """The outcome of an earlier check, but for sizes and hashes: nothing is decoded."""
    broken = tuple((path, "was left out") for path in paths if known_broken(path))
    left_out = {path for path, _ in broken}
    return ImageCheck(tuple(path for path in paths if path not in left_out), (), (), broken)


def check_images(paths: Sequence[Path], *, workers: int = 1, progress: Progress | None = None) -> ImageCheck:
    """Which files decode and which do not; every file is decoded once, in `workers` threads.

    JPEGs are decoded at an eighth of their size, which still reads all of their data and so notices a truncated file.
    """
    good: list[tuple[Path, tuple[int, int], bool, str]] = []
    broken: list[tuple[Path, str]] = []
    for done, (path, result) in enumerate(zip(paths, in_threads(_check_one, paths, workers), strict=True), start=1):
        if isinstance(result, str):
            broken.append((path, result))
        else:
            good.append((path, *result))
        if progress is not None:
            progress(done, len(paths))
    checked, sizes, colorless, hashes = zip(*good, strict=True) if good else ((), (), (), ())
    return ImageCheck(checked, sizes, hashes, tuple(broken), grey=sum(colorless))


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Results in the order of the items. Threads suffice: Pillow releases the interpreter to decode and resize."""
    if workers <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(workers, len(items))) as pool:
        yield from pool.map(work, items)


def _check_one(path: Path) -> tuple[tuple[int, int], bool, str] | str:
    """The size of an image, whether it has no color, and the hash of its bytes; or the reason why it is broken."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # such as a pipe that never ends
            return "is not a plain file"
        if status.st_size > MAX_BYTES:
            return f"is larger than {MAX_BYTES:,} bytes"
        data = path.read_bytes()  # read once, for the hash and the decoder
        _, size, colorless = decode(path, BytesIO(data), min_size=1)
    except BrokenImageError as error:
        return error.reason
    except (OSError, ValueError) as error:  # a `ValueError` for what no name can have: a null character in a list
        return why_unusable(error)
    return size, colorless, content_hash(data)


def content_hash(data: bytes) -> str:
    """A hash that identifies the content of a file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
