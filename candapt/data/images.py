"""Folders of images as people have them, made into domains."""

import hashlib
import io
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from candapt.data.domains import Domain, LabeledDomain
from candapt.data.transforms import ImageSettings, Views
from candapt.errors import UserError
from candapt.randomness import generator

logger = logging.getLogger(__name__)

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff"})
"""Endings of the files that are taken for images, in lower case."""
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "WEBP", "TIFF", "GIF")
"""What such a file may hold, whatever its ending says. Others stay out: Pillow hands EPS to an outside program."""
MAX_PIXELS = 178_000_000
"""Images with more pixels are refused before they are decoded; just below Pillow's own limit."""
MAX_NAMED = 3
"""How many names one error sentence lists before it only counts."""

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

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


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


@dataclass(frozen=True)
class ImageCheck:
    """What decoding every file of a list has shown."""

    paths: tuple[Path, ...]
    """Files that decode, in the order given."""
    sizes: tuple[tuple[int, int], ...]
    """Width and height of each of them, upright."""
    hashes: tuple[str, ...]
    """Hash of the bytes of each of them."""
    broken: tuple[tuple[Path, str], ...] = ()
    """Files that do not decode, each with the reason."""

    def duplicates(self, other: "ImageCheck") -> list[tuple[Path, Path]]:
        """Pairs of one file here and one there whose bytes are the same."""
        there: dict[str, list[Path]] = {}
        for path, digest in zip(other.paths, other.hashes, strict=True):
            there.setdefault(digest, []).append(path)
        return [
            (path, twin) for path, digest in zip(self.paths, self.hashes, strict=True) for twin in there.get(digest, ())
        ]


class ImageSamples:
    """Image files that are decoded and transformed whenever they are read."""

    def __init__(
        self, paths: Sequence[Path], views: Views, *, workers: int = 1, hashes: Sequence[str] | None = None
    ) -> None:
        """Keep the files.

        Args:
            paths: image files.
            views: makes the training and the evaluation view.
            workers: threads that decode; they change the speed only, never a value.
            hashes: hash of the bytes of each file, where it is known already.
        """
        self.paths = tuple(paths)
        self.views = views
        self.workers = workers
        self.hashes = hashes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one view: channels, height, width."""
        return self.views.shape

    def __len__(self) -> int:
        """Number of images."""
        return len(self.paths)

    @property
    def augmentation(self) -> str:
        """Kind of the training views."""
        return self.views.settings.augmentation

    def fingerprint(self) -> str:
        """Hash of the files' content, in order, and of how the evaluation view is made of it."""
        hashes = self.hashes or [_hash(path.read_bytes()) for path in self.paths]
        settings = replace(self.views.settings, augmentation="none")
        return _hash("\n".join([repr(settings), *hashes]).encode())

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """Views of the images at `indices`, shape (len(indices), c, h, w).

        A training view depends on the seed, the image and how often the image came before among `indices`: not on the
        other images, nor on the number of threads.
        """
        seen: Counter[int] = Counter()
        wanted = []
        for index in indices.tolist():
            wanted.append((index, seen[index]))
            seen[index] += 1
        views = list(_in_threads(lambda item: self._view(*item, seed), wanted, self.workers))
        return torch.stack(views) if views else torch.empty(0, *self.shape)

    def _view(self, index: int, repeat: int, seed: int | None) -> Tensor:
        settings = self.views.settings
        image = read_image(self.paths[index], grey=settings.grey, min_size=settings.min_size)
        if seed is None:
            return self.views.evaluation(image)
        return self.views.training(image, generator(seed, "view", index, repeat))


def image_domain(
    folder: Path,
    settings: ImageSettings | None = None,
    *,
    workers: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
) -> tuple[Domain, ImageCheck]:
    """All images below a folder, flat or nested, without labels.

    Args:
        folder: where to look.
        settings: how an image becomes the network's input.
        workers: threads that decode.
        strict: refuse the folder if a file does not decode; otherwise such files are left out.
        progress: told how many of the files have been checked.

    Returns:
        The domain, named by path relative to the folder, and what the check has shown, with the files left out.

    Raises:
        UserError: there is no usable image, or `strict` and a file is broken.
    """
    folder = _existing_folder(folder)
    paths = find_images(folder)
    if not paths:
        raise UserError(f"No image was found below {str(folder)!r}; files ending in {_endings()} are looked for.")
    check = _usable(folder, check_images(paths, workers=workers, progress=progress), strict=strict)
    samples = ImageSamples(check.paths, Views(settings or ImageSettings()), workers=workers, hashes=check.hashes)
    return Domain(samples, _names(check.paths, folder)), check


def labeled_image_domain(
    folder: Path,
    settings: ImageSettings | None = None,
    *,
    workers: int = 1,
    strict: bool = False,
    skip_empty: bool = False,
    progress: Progress | None = None,
) -> tuple[LabeledDomain, ImageCheck]:
    """Images with labels: one sub-folder a class, with its images anywhere below it.

    A folder that holds nothing but `images/`, as a domain of Office-31 does, is taken for what is in there.

    Args:
        folder: where the class folders are.
        settings: how an image becomes the network's input.
        workers: threads that decode.
        strict: refuse the folder if a file does not decode; otherwise such files are left out.
        skip_empty: leave out a class without a usable image, with a warning, where it would be refused.
        progress: told how many of the files have been checked.

    Returns:
        The domain, named by path relative to `folder`, classes in sorted order, and what the check has shown.

    Raises:
        UserError: the folder is not laid out like this, or `strict` and a file is broken.
    """
    folder = _existing_folder(folder)
    root = _class_root(folder)
    files = {name: find_images(root / name) for name in _class_names(root)}
    paths = sorted((path for of_class in files.values() for path in of_class), key=_sort_key(folder))
    check = _usable(folder, check_images(paths, workers=workers, progress=progress), strict=strict)
    names_of_classes = [path.relative_to(root).parts[0] for path in check.paths]
    classes = _filled_classes(folder, sorted(files), set(names_of_classes), skip_empty=skip_empty)
    position = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([position[name] for name in names_of_classes], dtype=torch.int64)
    samples = ImageSamples(check.paths, Views(settings or ImageSettings()), workers=workers, hashes=check.hashes)
    return LabeledDomain(samples, _names(check.paths, folder), labels, classes), check


def find_images(folder: Path) -> list[Path]:
    """All image files below a folder, sorted by path relative to it.

    Links are followed, but not back into a folder they are in. Hidden files and folders and `__MACOSX` are left out.
    A link that leads nowhere counts as a file, so that it is reported and not overlooked.
    """
    folder = Path(folder)
    return sorted(_walk(folder, frozenset()), key=_sort_key(folder))


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
    return _decode(Path(path), path, grey=grey, min_size=min_size, max_pixels=max_pixels)[0]


def check_images(paths: Sequence[Path], *, workers: int = 1, progress: Progress | None = None) -> ImageCheck:
    """Decode every file once, in threads, and note what does not decode.

    JPEGs are decoded at an eighth of their size: all of their data is still gone through, so a truncated one is found.

    Args:
        paths: image files.
        workers: threads.
        progress: called after each file with (done, total).
    """
    good: list[tuple[Path, tuple[int, int], str]] = []
    broken: list[tuple[Path, str]] = []
    results = _in_threads(_check_one, paths, workers)
    for done, (path, result) in enumerate(zip(paths, results, strict=True), start=1):
        if isinstance(result, str):
            broken.append((path, result))
        else:
            good.append((path, *result))
        if progress is not None:
            progress(done, len(paths))
    checked, sizes, hashes = zip(*good, strict=True) if good else ((), (), ())
    return ImageCheck(checked, sizes, hashes, tuple(broken))


def describe_images(check: ImageCheck, domain: Domain | None = None) -> dict[str, Any]:
    """What was found, in plain values for a log or a report.

    Args:
        check: the result of checking the files.
        domain: with a `LabeledDomain`, the images of each class are counted too.
    """
    sides = np.array(check.sizes).reshape(-1, 2)
    found: dict[str, Any] = {
        "images": len(check.paths),
        "broken": len(check.broken),
        "repeated": len(check.paths) - len(set(check.hashes)),
    }
    if len(sides):
        by_area = sides[np.argsort(sides.prod(axis=1), kind="stable")]
        middle = len(by_area) // 2
        found["sizes"] = {
            name: tuple(by_area[at].tolist()) for name, at in (("smallest", 0), ("median", middle), ("largest", -1))
        }
    if isinstance(domain, LabeledDomain):
        counts = torch.bincount(domain.labels, minlength=len(domain.classes)).tolist()
        found["classes"] = dict(zip(domain.classes, counts, strict=True))
        found["imbalance"] = max(counts) / max(1, min(counts))
    return found


def _check_one(path: Path) -> tuple[tuple[int, int], str] | str:
    """Upright size and hash of one file, or the reason why it is broken."""
    try:
        data = path.read_bytes()  # read once, for the hash and the decoder
        _, size = _decode(path, io.BytesIO(data), min_size=1)
    except BrokenImageError as error:
        return error.reason
    except OSError as error:
        return _reason(error)
    return size, _hash(data)


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _in_threads(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Results in the order of the items. Threads do: Pillow decodes and resizes without holding the interpreter."""
    if workers <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(workers, len(items))) as pool:
        yield from pool.map(work, items)


def _decode(
    path: Path,
    file: Path | io.BytesIO,
    *,
    grey: bool = False,
    min_size: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Image.Image, tuple[int, int]]:
    """The image, and its size upright as stored in the file; `path` is only for the message."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            size = image.size
            if size[0] * size[1] > max_pixels:
                raise Image.DecompressionBombError
            can_shrink = image.format in ("JPEG", "MPO")
            if can_shrink and min_size is not None:
                image.draft(None, (min_size, min_size))
            image.load()
            # Only now: Pillow itself turns a TIFF while loading it, and a PNG may tell its orientation at the end.
            orientation = _orientation(image)
            size = size if can_shrink else image.size
            upright = image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
            converted = _to_grey(upright) if grey else _to_rgb(upright)
    except Image.DecompressionBombError as error:
        raise BrokenImageError(path, f"has more pixels than the limit of {max_pixels:,}") from error
    except Exception as error:  # damaged files make Pillow's plugins raise almost anything
        raise BrokenImageError(path, _reason(error)) from error
    return converted, size[::-1] if orientation in _SIDEWAYS else size


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
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if image.mode.startswith("I;16"):
        white = 65535.0
    else:
        limits = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        white = next((limit for limit in limits if low >= 0 and high <= limit), 0.0)
    if not white:
        values, white = values - low, (high - low) or 1.0
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def _reason(error: Exception) -> str:
    """The rest of a sentence that begins with the file's name."""
    if isinstance(error, UnidentifiedImageError):
        return "is not an image in a known format"
    if isinstance(error, FileNotFoundError):
        return "does not exist or is a link that leads nowhere"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    detail = " ".join(str(error).split()) or type(error).__name__
    return f"cannot be decoded ({detail})"


def _walk(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """Image files below a folder in any order; `above` identifies the folders we are in."""
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise UserError(f"The folder {str(folder)!r} cannot be listed ({error.strerror}); check its rights.") from error
    for entry in entries:
        if _is_hidden(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(folder / entry.name, above | {identity})
        elif Path(entry.name).suffix.lower() in SUFFIXES and (entry.is_file() or _leads_nowhere(entry)):
            yield folder / entry.name


def _is_hidden(name: str) -> bool:
    """Names that systems add to folders beside what the user put there."""
    return name.startswith(".") or name == "__MACOSX"


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


def _sort_key(folder: Path) -> Callable[[Path], str]:
    return lambda path: path.relative_to(folder).as_posix()


def _names(paths: Sequence[Path], folder: Path) -> tuple[str, ...]:
    return tuple(map(_sort_key(folder), paths))


def _endings() -> str:
    return ", ".join(sorted(SUFFIXES))


def _existing_folder(folder: Path) -> Path:
    folder = Path(folder)
    if not folder.exists():
        raise UserError(f"The folder {str(folder)!r} does not exist; check the path.")
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a folder; give the folder that the images are in.")
    return folder


def _class_root(folder: Path) -> Path:
    """The folder itself, or its `images` where that is all it holds."""
    visible = [name for name in os.listdir(folder) if not _is_hidden(name)]
    return folder / "images" if visible == ["images"] and (folder / "images").is_dir() else folder


def _class_names(root: Path) -> list[str]:
    """Sub-folders of the root; at least two."""
    entries = [entry for entry in os.scandir(root) if not _is_hidden(entry.name)]
    names = sorted(entry.name for entry in entries if entry.is_dir())
    if not names:
        raise UserError(f"{str(root)!r} has no class folders; put the images of each class into a sub-folder of it.")
    if len(names) == 1:
        raise UserError(f"{str(root)!r} has only one class folder, {names[0]!r}; at least two classes are needed.")
    loose = sum(Path(entry.name).suffix.lower() in SUFFIXES for entry in entries if not entry.is_dir())
    if loose:
        logger.warning("%d image(s) directly in %r are in no class folder and are left out.", loose, str(root))
    return names


def _usable(folder: Path, check: ImageCheck, *, strict: bool) -> ImageCheck:
    """The check itself, if what it found may be used."""
    count, total = len(check.broken), len(check.broken) + len(check.paths)
    if check.broken and (strict or not check.paths):
        named = "; ".join(f"{str(path)!r} {reason}" for path, reason in check.broken[:MAX_NAMED])
        more = f"; and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
        raise UserError(f"{count} of {total} image files in {str(folder)!r} cannot be used: {named}{more}.")
    if count:
        logger.warning("%d of %d image files in %r cannot be used and are left out.", count, total, str(folder))
    return check


def _filled_classes(folder: Path, names: list[str], filled: set[str], *, skip_empty: bool) -> tuple[str, ...]:
    """The classes with an image; an empty one is refused or left out."""
    empty = [name for name in names if name not in filled]
    listed = ", ".join(map(repr, empty[:MAX_NAMED])) + (", …" if len(empty) > MAX_NAMED else "")
    if not filled:
        raise UserError(f"No image was found in the class folders of {str(folder)!r}; looked for {_endings()}.")
    if empty and not skip_empty:
        raise UserError(f"No usable image in {len(empty)} class folder(s) of {str(folder)!r}; fill or remove {listed}.")
    if empty:
        logger.warning("Classes without a usable image are left out: %s.", listed)
    if len(filled) == 1:
        raise UserError(f"Only one class of {str(folder)!r} has images, {min(filled)!r}; at least two are needed.")
    return tuple(name for name in names if name in filled)
