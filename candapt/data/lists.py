"""List files: one image per line, followed by its class number if it has one, as in the VisDA challenge."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Unpack

import torch

from candapt.data.decoding import Checking, ImageCheck
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.images import usable_samples
from candapt.errors import UserError
from candapt.settings import ImageSettings
from candapt.storage.safe_reading import MAX_TABLE, check_file


@dataclass(frozen=True)
class ImageList:
    """The content of a list file."""

    file: Path
    names: tuple[str, ...]  # paths as they are listed, relative to the file's folder or absolute
    numbers: tuple[int, ...] | None  # class number of each image; None if the lines have none

    @property
    def paths(self) -> list[Path]:
        """Where the images are."""
        return [self.file.parent / name for name in self.names]

    def usable_rows(self, check: ImageCheck) -> list[int]:
        """Rows of the list whose image decodes."""
        broken = {path for path, _ in check.broken}
        return [row for row, path in enumerate(self.paths) if path not in broken]


def read_image_list(file: Path) -> ImageList:
    """Read a list, in which either every line has a class number or none has."""
    try:
        check_file(file, MAX_TABLE)
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"The list {str(file)!r} cannot be read ({reason}); check the path.") from None
    entries = [_split(line.strip()) for line in text.split("\n") if line.strip()]
    if not entries:
        raise UserError(f"The list {str(file)!r} is empty; it must name one image per line.")
    numbers = tuple(number for _, number in entries if number is not None)
    unlabeled = [name for name, number in entries if number is None]
    if numbers and unlabeled:
        raise UserError(f"The list {str(file)!r} has a class number in some lines but not in {unlabeled[0]!r}.")
    return ImageList(file, tuple(name for name, _ in entries), numbers or None)


def list_domain(file: Path, settings: ImageSettings, **checking: Unpack[Checking]) -> tuple[Domain, ImageCheck]:
    """The images of a list, in its order; class numbers are ignored."""
    listed = read_image_list(file)
    samples, check = usable_samples(file, listed.paths, settings, **checking)
    return Domain(samples, tuple(listed.names[row] for row in listed.usable_rows(check))), check


def labeled_list_domain(
    file: Path, settings: ImageSettings, *, classes: Sequence[str] = (), **checking: Unpack[Checking]
) -> tuple[LabeledDomain, ImageCheck]:
    """The images of a list with their labels, in its order, classes in the order of their numbers.

    Without `classes`, names by number, a class is called like the folder that all its images are in, or by its number
    if classes and folders do not correspond one to one.
    """
    listed = read_image_list(file)
    if listed.numbers is None:
        raise UserError(f"The list {str(file)!r} has no labels; put a class number after each path.")
    names = _class_names(listed, classes)
    samples, check = usable_samples(file, listed.paths, settings, **checking)
    kept = listed.usable_rows(check)
    present = sorted({listed.numbers[row] for row in kept})
    if len(present) < 2:
        raise UserError(f"The list {str(file)!r} has images of only one class, {names[present[0]]!r}; two are needed.")
    position = {number: index for index, number in enumerate(present)}
    labels = torch.tensor([position[listed.numbers[row]] for row in kept], dtype=torch.int64)
    sample_names = tuple(listed.names[row] for row in kept)
    return LabeledDomain(samples, sample_names, labels, tuple(names[number] for number in present)), check


def _split(line: str) -> tuple[str, int | None]:
    """Path and class number; a path may hold blanks, since its ending distinguishes it from a number.

    >>> _split("a b/c 1.jpg 7"), _split("a b/c 1.jpg")
    (('a b/c 1.jpg', 7), ('a b/c 1.jpg', None))
    """
    name, _, last = line.rpartition(" ")
    is_number = last.isascii() and last.isdigit() and len(last) <= 9
    return (name.rstrip(), int(last)) if name and is_number else (line, None)


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
