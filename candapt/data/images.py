"""Folders of images as people have them, made into domains."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from candapt.data.decoding import (
    Checking,
    ImageCheck,
    Progress,
    check_images,
    checked_before,
    content_hash,
    in_threads,
    read_image,
)
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.transforms import Views
from candapt.errors import UserError
from candapt.randomness import generator
from candapt.settings import ImageSettings

logger = logging.getLogger(__name__)

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")  # of image files, in lower case
ENDINGS = ", ".join(SUFFIXES)
MAX_WAYS = 32  # in how many ways one folder may be reached over links
MAX_NAMED = 3  # names that one sentence lists before it only counts


class ImageSamples:
    """Image files that are decoded, in `workers` threads, and transformed whenever they are read."""

    views_by_sample = True  # of a batch, which holds an image once

    def __init__(
        self, paths: Sequence[Path], views: Views, *, workers: int = 1, hashes: Sequence[str] | None = None
    ) -> None:
        self.paths, self.views, self.workers = tuple(paths), views, workers
        self.hashes = hashes  # of the bytes of each file, if they are known already

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one view: channels, height, width."""
        return self.views.shape

    def __len__(self) -> int:
        return len(self.paths)

    def viewed(self, settings: ImageSettings, rows: Tensor | None = None) -> "ImageSamples":
        """The same files, or those at the rows, in other views."""
        chosen = range(len(self)) if rows is None else rows.tolist()
        paths, hashes = [self.paths[row] for row in chosen], self.hashes and [self.hashes[row] for row in chosen]
        return ImageSamples(paths, Views(settings), workers=self.workers, hashes=hashes)

    def read_alone(self) -> "ImageSamples":
        """The same samples, read by the calling thread alone, where several read at the same time."""
        return ImageSamples(self.paths, self.views, hashes=self.hashes)

    @property
    def augmentation(self) -> str:
        """Kind of the training views."""
        return self.views.settings.augmentation

    def fingerprint(self) -> str:
        """Hash of the files' content, in order, and of the settings of the evaluation view."""
        hashes = self.hashes or [content_hash(path.read_bytes()) for path in self.paths]
        settings = replace(self.views.settings, augmentation="none")
        return content_hash("\n".join([repr(settings), *hashes]).encode())

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
        views = list(in_threads(lambda item: self._view(*item, seed), wanted, self.workers))
        return torch.stack(views) if views else torch.empty(0, *self.shape)

    def _view(self, index: int, repeat: int, seed: int | None) -> Tensor:
        settings = self.views.settings
        image = read_image(self.paths[index], grey=settings.grey, min_size=settings.min_size)
        if seed is None:
            return self.views.evaluation(image)
        return self.views.training(image, generator(seed, "view", index, repeat))


def image_domain(
    folder: Path, settings: ImageSettings | None = None, **checking: Unpack[Checking]
) -> tuple[Domain, ImageCheck]:
    """All images below a folder, flat or nested, without labels; a `UserError` if none can be used.

    Samples are named by their path relative to the folder. Files that do not decode are listed in the check.
    """
    _require_folder(folder)
    paths = find_images(folder)
    if not paths:
        raise UserError(f"No image was found below {str(folder)!r}; image files end in {ENDINGS}.")
    samples, check = usable_samples(folder, paths, settings, **checking)
    return Domain(samples, tuple(map(_name_below(folder), samples.paths))), check


def labeled_image_domain(
    folder: Path, settings: ImageSettings | None = None, *, skip_empty: bool = False, **checking: Unpack[Checking]
) -> tuple[LabeledDomain, ImageCheck]:
    """Images with labels: one subfolder per class, in sorted order, with its images anywhere below it.

    If `images` is the only folder in `folder`, as in a domain of Office-31, the class folders are in there. A class
    without a usable image is a `UserError`; with `skip_empty` a warning names it and it is left out.
    """
    _require_folder(folder)
    root = _class_root(folder)
    files = {name: find_images(root / name) for name in _class_names(root)}
    paths = sorted((path for of_class in files.values() for path in of_class), key=_name_below(folder))
    samples, check = usable_samples(folder, paths, settings, **checking)
    class_of = [path.relative_to(root).parts[0] for path in samples.paths]
    classes = _filled_classes(folder, sorted(files), set(class_of), skip_empty=skip_empty)
    empty = tuple((root / name, "is a class without a usable image") for name in sorted(files.keys() - set(classes)))
    position = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([position[name] for name in class_of], dtype=torch.int64)
    names = tuple(map(_name_below(folder), samples.paths))
    return LabeledDomain(samples, names, labels, classes), replace(check, empty=empty)


def usable_samples(
    place: Path,
    paths: Sequence[Path],
    settings: ImageSettings | None = None,
    *,
    workers: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
    known_broken: Callable[[Path], bool] | None = None,
) -> tuple[ImageSamples, ImageCheck]:
    """Samples of those files that decode, and the check of all; `place`, for messages, is where the files come from."""
    if known_broken is not None:
        check = checked_before(paths, known_broken)
        return ImageSamples(check.paths, Views(settings or ImageSettings()), workers=workers), check
    check = check_images(paths, workers=workers, progress=progress)
    count = len(check.broken)
    sentence = f"{count} of {len(paths)} image files in {str(place)!r} cannot be used"
    named = "; ".join(f"{str(path)!r} {reason}" for path, reason in check.broken[:MAX_NAMED])
    named += f"; and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    if count and (strict or not check.paths):
        raise UserError(f"{sentence}: {named}.")
    if count:
        logger.warning("%s and are left out: %s.", sentence, named)
    return ImageSamples(check.paths, Views(settings or ImageSettings()), workers=workers, hashes=check.hashes), check


def find_images(folder: Path) -> list[Path]:
    """All image files below a folder, sorted by path relative to it.

    Links are followed, but not back into a folder they are in. Hidden files and folders and `__MACOSX` are left out.
    A link that leads nowhere counts as a file, so that it is reported and not overlooked.
    """
    return sorted(_walk(folder), key=_name_below(folder))


def _walk(top: Path) -> Iterator[Path]:
    """Image files below a folder in any order."""
    ways: Counter[tuple[int, int]] = Counter()
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(top, frozenset())]
    while waiting:  # not by recursion: folders may be nested deeper than Python calls
        folder, above = waiting.pop()
        try:
            status = folder.stat()
            entries = _visible(folder)
        except OSError as error:
            raise UserError(f"The folder {_cut(folder)} cannot be listed ({error.strerror}); check it.") from error
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            continue
        ways[identity] += 1
        if ways[identity] > MAX_WAYS:  # folders that link to each other can be walked through in endless ways
            raise UserError(f"The folder {_cut(folder)} is reached over links in over {MAX_WAYS} ways; remove some.")
        for entry in entries:
            if entry.is_dir():
                waiting.append((folder / entry.name, above | {identity}))
            elif _has_image_name(entry) and (entry.is_file() or not os.path.exists(entry.path)):
                yield folder / entry.name


def _cut(folder: Path) -> str:
    """The path for a sentence, without the middle of a very long one."""
    text = str(folder)
    return repr(text if len(text) <= 300 else f"{text[:150]}…{text[-150:]}")


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """What the user put into a folder, without what systems add to it."""
    return [entry for entry in os.scandir(folder) if not entry.name.startswith(".") and entry.name != "__MACOSX"]


def _has_image_name(entry: os.DirEntry[str]) -> bool:
    return Path(entry.name).suffix.lower() in SUFFIXES


def _name_below(folder: Path) -> Callable[[Path], str]:
    return lambda path: path.relative_to(folder).as_posix()


def _require_folder(folder: Path) -> None:
    if not folder.exists():
        raise UserError(f"The folder {str(folder)!r} does not exist; check the path.")
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a folder; give the folder that the images are in.")


def _class_root(folder: Path) -> Path:
    """The folder itself, or its `images` where that is the only folder in it."""
    return folder / "images" if [entry.name for entry in _visible(folder) if entry.is_dir()] == ["images"] else folder


def _class_names(root: Path) -> list[str]:
    """Names of the subfolders, at least two."""
    entries = _visible(root)
    names = sorted(entry.name for entry in entries if entry.is_dir())
    if not names:
        raise UserError(f"{str(root)!r} has no class folders; put the images of each class into a subfolder of it.")
    if len(names) == 1:
        raise UserError(f"{str(root)!r} has only one class folder, {names[0]!r}; at least two classes are needed.")
    if loose := sum(_has_image_name(entry) and not entry.is_dir() for entry in entries):
        logger.warning("%d image(s) directly in %r are in no class folder and are left out.", loose, str(root))
    return names


def _filled_classes(folder: Path, names: list[str], filled: set[str], *, skip_empty: bool) -> tuple[str, ...]:
    """The classes with an image; without `skip_empty` a `UserError` if one has none."""
    empty = [name for name in names if name not in filled]
    listed = ", ".join(map(repr, empty[:MAX_NAMED])) + (", …" if len(empty) > MAX_NAMED else "")
    if not filled:
        raise UserError(f"No image was found in the class folders of {str(folder)!r}; image files end in {ENDINGS}.")
    if empty and not skip_empty:
        raise UserError(f"No usable image in {len(empty)} class folder(s) of {str(folder)!r}; fill or remove {listed}.")
    if len(filled) == 1:
        raise UserError(f"Only one class of {str(folder)!r} has images, {min(filled)!r}; at least two are needed.")
    if empty:
        logger.warning("Classes of %r without a usable image are left out: %s.", str(folder), listed)
    return tuple(name for name in names if name in filled)
