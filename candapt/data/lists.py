"""List files: one image a line, with its class number behind it where it has one, as in the VisDA challenge."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from candapt.data.checking import ImageCheck, Progress, check_images
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.images import ImageSamples, usable
from candapt.data.transforms import ImageSettings, Views
from candapt.errors import UserError
from candapt.untrusted import MAX_TABLE, check_file


@dataclass(frozen=True)
class ImageList:
    """What a list file says."""

    file: Path
    names: tuple[str, ...]
    """Paths as they are listed, relative to the file's folder or absolute."""
    numbers: tuple[int, ...] | None
    """Class number of each image; None if the lines have none."""

    @property
    def paths(self) -> list[Path]:
        """Where the images are."""
        return [self.file.parent / name for name in self.names]


def is_list_file(path: Path) -> bool:
    """Whether the path is meant as a list of images."""
    return path.suffix.lower() == ".txt"


def read_image_list(file: Path) -> ImageList:
    """Read a list; either every line has a class number or none has.

    Raises:
        UserError: there is no such file, it lists nothing, or its lines are of both kinds.
    """
    try:
        check_file(file, MAX_TABLE)
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"The list {str(file)!r} cannot be read ({reason}); check the path.") from None
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    entries = [_split(line) for line in lines]
    if not entries:
        raise UserError(f"The list {str(file)!r} is empty; it must name one image a line.")
    labeled = [number is not None for _, number in entries]
    if any(labeled) and not all(labeled):
        raise UserError(
            f"The list {str(file)!r} has a class number in some lines but not in {lines[labeled.index(False)]!r}."
        )
    numbers = tuple(number for _, number in entries if number is not None)
    return ImageList(file, tuple(name for name, _ in entries), numbers or None)


def list_domain(
    file: Path,
    settings: ImageSettings,
    *,
    workers: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
) -> tuple[Domain, ImageCheck]:
    """The images of a list, in its order; class numbers in it are not looked at. See `image_domain`."""
    listed = read_image_list(file)
    check, kept = _check(listed, workers=workers, strict=strict, progress=progress)
    samples = ImageSamples(check.paths, Views(settings), workers=workers, hashes=check.hashes)
    return Domain(samples, tuple(listed.names[row] for row in kept)), check


def labeled_list_domain(
    file: Path,
    settings: ImageSettings,
    *,
    classes: Sequence[str] = (),
    workers: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
) -> tuple[LabeledDomain, ImageCheck]:
    """The images of a list with their labels, in its order, classes in the order of their numbers.

    Args:
        file: the list.
        settings: how an image becomes the network's input.
        classes: names by number; without them a class is called like the folder that all its images are in, or by its
            number where folders do not tell classes apart.
        workers: threads that decode.
        strict: refuse the list if a file does not decode; otherwise such files are left out.
        progress: told how many of the files have been checked.
    """
    listed = read_image_list(file)
    if listed.numbers is None:
        raise UserError(f"The list {str(file)!r} has no labels; put a class number behind each path.")
    names = _class_names(listed, classes)
    check, kept = _check(listed, workers=workers, strict=strict, progress=progress)
    present = sorted({listed.numbers[row] for row in kept})
    if len(present) < 2:
        raise UserError(f"The list {str(file)!r} has images of only one class, {names[present[0]]!r}; two are needed.")
    position = {number: index for index, number in enumerate(present)}
    labels = torch.tensor([position[listed.numbers[row]] for row in kept], dtype=torch.int64)
    samples = ImageSamples(check.paths, Views(settings), workers=workers, hashes=check.hashes)
    named = tuple(listed.names[row] for row in kept)
    return LabeledDomain(samples, named, labels, tuple(names[number] for number in present)), check


def _split(line: str) -> tuple[str, int | None]:
    """Path and class number; a path may hold blanks, since its ending tells it from a number.

    >>> _split("a b/c 1.jpg 7"), _split("a b/c 1.jpg")
    (('a b/c 1.jpg', 7), ('a b/c 1.jpg', None))
    """
    name, _, last = line.rpartition(" ")
    is_number = last.isascii() and last.isdigit() and len(last) <= 9
    return (name.rstrip(), int(last)) if name and is_number else (line, None)


def _check(listed: ImageList, *, workers: int, strict: bool, progress: Progress | None) -> tuple[ImageCheck, list[int]]:
    """What checking the files has shown, and the rows of the list that can be used."""
    paths = listed.paths
    check = usable(listed.file, check_images(paths, workers=workers, progress=progress), strict=strict)
    broken = {path for path, _ in check.broken}
    return check, [row for row, path in enumerate(paths) if path not in broken]


def _class_names(listed: ImageList, classes: Sequence[str]) -> dict[int, str]:
    """Name of each class number."""
    numbers, last = listed.numbers or (), len(classes) - 1
    if classes and max(numbers) > last:
        raise UserError(f"{str(listed.file)!r} has the class number {max(numbers)}, but the last known one is {last}.")
    if classes:
        return dict(enumerate(classes))
    pairs = set(zip(numbers, (PurePosixPath(name).parent.name for name in listed.names), strict=True))
    folders = dict(pairs)
    one_to_one = len(pairs) == len(folders) == len(set(folders.values())) and all(folders.values())
    return folders if one_to_one else {number: str(number) for number in set(numbers)}
