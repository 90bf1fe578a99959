"""Folders of images as people have them, made into domains."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from candapt.data.checking import ImageCheck, Progress, check_images, content_hash, in_threads
from candapt.data.decoding import read_image
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.transforms import ImageSettings, Views
from candapt.errors import UserError
from candapt.randomness import generator

logger = logging.getLogger(__name__)

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff"})
"""Endings of the files that are taken for images, in lower case."""
MAX_WAYS = 32
"""In how many ways one folder may be reached over links."""
MAX_NAMED = 3
"""How many names one error sentence lists before it only counts."""


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
    check = usable(folder, check_images(paths, workers=workers, progress=progress), strict=strict)
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

    A folder whose only folder is `images`, as a domain of Office-31 is, is taken for what is in there.

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
    check = usable(folder, check_images(paths, workers=workers, progress=progress), strict=strict)
    names_of_classes = [path.relative_to(root).parts[0] for path in check.paths]
    classes = _filled_classes(folder, sorted(files), set(names_of_classes), skip_empty=skip_empty)
    empty = tuple((root / name, "is a class without a usable image") for name in sorted(files.keys() - set(classes)))
    position = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([position[name] for name in names_of_classes], dtype=torch.int64)
    samples = ImageSamples(check.paths, Views(settings or ImageSettings()), workers=workers, hashes=check.hashes)
    return LabeledDomain(samples, _names(check.paths, folder), labels, classes), replace(check, empty=empty)


def find_images(folder: Path) -> list[Path]:
    """All image files below a folder, sorted by path relative to it.

    Links are followed, but not back into a folder they are in. Hidden files and folders and `__MACOSX` are left out.
    A link that leads nowhere counts as a file, so that it is reported and not overlooked.
    """
    folder = Path(folder)
    return sorted(_walk(folder), key=_sort_key(folder))


def _walk(top: Path) -> Iterator[Path]:
    """Image files below a folder in any order."""
    ways: Counter[tuple[int, int]] = Counter()
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(top, frozenset())]
    while waiting:  # not by recursion: folders may be nested deeper than Python calls
        folder, above = waiting.pop()
        try:
            status = folder.stat()
            entries = [entry for entry in os.scandir(folder) if not _is_hidden(entry.name)]
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
            elif Path(entry.name).suffix.lower() in SUFFIXES and (entry.is_file() or _leads_nowhere(entry)):
                yield folder / entry.name


def _cut(folder: Path) -> str:
    """A path for a sentence, which may be longer than a sentence should be."""
    text = str(folder)
    return repr(text if len(text) <= 300 else f"{text[:150]}…{text[-150:]}")


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
    """The folder itself, or its `images` where that is the only folder in it."""
    folders = [entry.name for entry in os.scandir(folder) if entry.is_dir() and not _is_hidden(entry.name)]
    return folder / "images" if folders == ["images"] else folder


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


def usable(folder: Path, check: ImageCheck, *, strict: bool) -> ImageCheck:
    """The check itself, if what it found may be used; files that are left out are told of by name."""
    count, total = len(check.broken), len(check.broken) + len(check.paths)
    sentence = f"{count} of {total} image files in {str(folder)!r} cannot be used"
    named = "; ".join(f"{str(path)!r} {reason}" for path, reason in check.broken[:MAX_NAMED])
    named += f"; and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    if check.broken and (strict or not check.paths):
        raise UserError(f"{sentence}: {named}.")
    if count:
        logger.warning("%s and are left out: %s.", sentence, named)
    return check


def _filled_classes(folder: Path, names: list[str], filled: set[str], *, skip_empty: bool) -> tuple[str, ...]:
    """The classes with an image; an empty one is refused or left out."""
    empty = [name for name in names if name not in filled]
    listed = ", ".join(map(repr, empty[:MAX_NAMED])) + (", …" if len(empty) > MAX_NAMED else "")
    if not filled:
        raise UserError(f"No image was found in the class folders of {str(folder)!r}; looked for {_endings()}.")
    if empty and not skip_empty:
        raise UserError(f"No usable image in {len(empty)} class folder(s) of {str(folder)!r}; fill or remove {listed}.")
    if len(filled) == 1:
        raise UserError(f"Only one class of {str(folder)!r} has images, {min(filled)!r}; at least two are needed.")
    if empty:
        logger.warning("Classes of %r without a usable image are left out: %s.", str(folder), listed)
    return tuple(name for name in names if name in filled)
