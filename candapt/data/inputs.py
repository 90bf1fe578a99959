"""Domains from paths that the user gives. Each kind of input is a row of `READERS`.

To add one from outside the package: `READERS["my-kind"] = Reader(...)`; commands and their help then know it.
"""

import csv
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from candapt.data.decoding import Checking, ImageCheck, Progress
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.features import (
    feature_domain,
    labeled_feature_domain,
    labeled_shard_domain,
    read_arrays,
    shard_domain,
)
from candapt.data.stored import StoredSamples, shards
from candapt.errors import UserError
from candapt.settings import ImageSettings
from candapt.storage.files import digest
from candapt.storage.safe_reading import MAX_TABLE, check_file

logger = logging.getLogger(__name__)

MAX_NAMED = 3  # names that one sentence lists before it only counts


@dataclass(frozen=True)
class Reading:
    """How the files of a domain are read."""

    images: ImageSettings
    workers: int = 1
    strict: bool = False  # raise for files that do not decode and classes without an image, rather than leave them out
    progress: Progress | None = None
    class_names: tuple[str, ...] = ()  # names of the classes that a list file numbers; by default those of its folders
    known_broken: Callable[[Path], bool] | None = None  # whether an earlier check left a file out; none is decoded then

    @property
    def checking(self) -> Checking:
        """The options of functions that read image files."""
        return {
            "workers": self.workers,
            "strict": self.strict,
            "progress": self.progress,
            "known_broken": self.known_broken,
        }


@dataclass(frozen=True)
class Reader:
    """One kind of input."""

    unlabeled: str  # what a target of this kind is, for help texts
    labeled: str  # the same for a source
    matches: Callable[[Path], bool]  # whether a path is of this kind
    read: Callable[[Path, Reading], tuple[Domain, ImageCheck | None]]  # samples, and the check of their image files
    read_labeled: Callable[[Path, Reading], tuple[LabeledDomain, ImageCheck | None]]  # the same with labels
    has_images: bool = False  # whether its samples are image files, which the backbone's input settings transform


def _read_features(path: Path, reading: Reading) -> tuple[Domain, None]:
    return feature_domain(path, augment=reading.images.augmentation != "none"), None


def _read_labeled_features(path: Path, reading: Reading) -> tuple[LabeledDomain, None]:
    return labeled_feature_domain(path, augment=reading.images.augmentation != "none"), None


def _read_list(path: Path, reading: Reading) -> tuple[Domain, ImageCheck]:
    from candapt.data.lists import list_domain  # needs torchvision, which feature files do without

    return list_domain(path, reading.images, **reading.checking)


def _read_labeled_list(path: Path, reading: Reading) -> tuple[LabeledDomain, ImageCheck]:
    from candapt.data.lists import labeled_list_domain

    return labeled_list_domain(path, reading.images, classes=reading.class_names, **reading.checking)


def _read_folder(path: Path, reading: Reading) -> tuple[Domain, ImageCheck]:
    from candapt.data.images import image_domain

    return image_domain(path, reading.images, **reading.checking)


def _read_labeled_folder(path: Path, reading: Reading) -> tuple[LabeledDomain, ImageCheck]:
    from candapt.data.images import labeled_image_domain

    return labeled_image_domain(path, reading.images, skip_empty=not reading.strict, **reading.checking)


def is_feature_file(path: Path) -> bool:
    """Whether the path is that of a feature file rather than of images."""
    return path.suffix.lower() == ".npz"


def is_folder_of_shards(path: Path) -> bool:
    """Whether the path is that of a folder of `.npy` files with features."""
    return path.is_dir() and bool(shards(path, "x"))


def is_list_file(path: Path) -> bool:
    """Whether the path is that of a list of images."""
    return path.suffix.lower() == ".txt"


READERS: dict[str, Reader] = {
    "shards": Reader(
        "folder with x*.npy",
        "folder with x*.npy and y*.npy",
        is_folder_of_shards,
        lambda path, reading: (shard_domain(path), None),
        lambda path, reading: (labeled_shard_domain(path), None),
    ),
    "features": Reader(
        ".npz file with x", ".npz file with x and y", is_feature_file, _read_features, _read_labeled_features
    ),
    "list": Reader(
        ".txt file that lists images",
        ".txt file that lists images and class numbers",
        is_list_file,
        _read_list,
        _read_labeled_list,
        has_images=True,
    ),
    "folder": Reader(
        "folder of images, flat or nested",
        "folder with one subfolder per class",
        lambda path: path.is_dir() and not is_folder_of_shards(path),
        _read_folder,
        _read_labeled_folder,
        has_images=True,
    ),
}  # Kinds of input. The last one that matches a path reads it, and the reader of folders if none does.


def reader_of(path: Path) -> Reader:
    """The reader of the files at a path."""
    return next((reader for reader in reversed(READERS.values()) if reader.matches(path)), READERS["folder"])


def describe_inputs(*, labeled: bool) -> str:
    """The kinds of input that a command takes, for its help."""
    *others, last = [reader.labeled if labeled else reader.unlabeled for reader in reversed(READERS.values())]
    return f"{', '.join(others)} or {last}"


def read_domain(path: Path, reading: Reading) -> tuple[Domain, ImageCheck | None]:
    """Samples without labels, and the check of their image files."""
    return reader_of(path).read(path, reading)


def read_labeled_domain(path: Path, reading: Reading) -> tuple[LabeledDomain, ImageCheck | None]:
    """Samples with labels, and the check of their image files."""
    return reader_of(path).read_labeled(path, reading)


def domain_digest(domain: Domain, check: ImageCheck | None) -> str:
    """A digest of names, labels and content: of the files for images, of the array for features."""
    tensors = {"labels": domain.labels} if isinstance(domain, LabeledDomain) else {}
    array = getattr(domain.samples, "array", None)
    if isinstance(array, Tensor):
        tensors["array"] = array
    classes = domain.classes if isinstance(domain, LabeledDomain) else ()
    content = domain.samples.fingerprint() if isinstance(domain.samples, StoredSamples) else None
    hashes = check.hashes if check else content
    return digest(tensors, json.dumps([list(domain.names), classes, hashes]))


def read_target_labels(path: Path, target: Domain, classes: tuple[str, ...], *, strict: bool = False) -> Tensor:
    """True labels of the target for the oracle, shape (n,); -1 where there is none or the source lacks the class.

    They are in a CSV file with the columns path and label (the class's name), or in an `.npz` file with y, a class
    number for each row of the target. With `strict` a label of a class that the source lacks is a `UserError`.
    """
    named = _names_from_arrays(path, target.size) if is_feature_file(path) else _names_from_csv(path, target)
    position: dict[str | None, int] = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([position.get(name, -1) for name in named])
    if (labels < 0).all():
        raise UserError(f"No label in {str(path)!r} is one of the source's classes: {', '.join(classes[:3])}, …")
    if unknown := unknown_classes([name for name in named if name is not None], classes):
        if strict:
            raise UserError(f"{str(path)!r} has labels of {unknown}, which the source lacks; remove them.")
        logger.warning("The source lacks %s: these target samples are left out of the oracle's figures.", unknown)
    return labels


def match_classes(domain: LabeledDomain, classes: tuple[str, ...]) -> Tensor:
    """The domain's labels as indices into `classes`, shape (n,); -1 for a class that is not among them."""
    position = {name: index for index, name in enumerate(classes)}
    known = torch.tensor([position.get(name, -1) for name in domain.classes])
    if (known[domain.labels] < 0).all():
        own, models = ", ".join(domain.classes[:3]), ", ".join(classes[:3])
        raise UserError(f"None of the samples' classes {own}, … is one of the model's: {models}, …")
    return known[domain.labels]


def unknown_classes(named: Sequence[str], classes: Sequence[str]) -> str:
    """The classes that are not among the known ones, by name and count; empty if there are none.

    >>> unknown_classes(["cat", "zebra", "zebra"], ["cat", "dog"])
    "'zebra' (2)"
    """
    known = set(classes)
    counts = Counter(name for name in named if name not in known)
    listed = ", ".join(f"{name!r} ({count})" for name, count in counts.most_common(MAX_NAMED))
    return listed + (f" and {len(counts) - MAX_NAMED} more classes" if len(counts) > MAX_NAMED else "")


def _names_from_arrays(path: Path, count: int) -> list[str]:
    """Class of each row of an `.npz` file: its name if the file has names, else its number."""
    arrays = read_arrays(path, "y", "classes")
    if "y" not in arrays or arrays["y"].shape != (count,):
        raise UserError(f"{path} must have an array y with one label for each of the {count} target samples.")
    names = arrays.get("classes", np.empty(0)).ravel().tolist()
    named = len(names) > 0 and np.issubdtype(arrays["y"].dtype, np.integer)
    return [str(names[number] if named and 0 <= number < len(names) else number) for number in arrays["y"].tolist()]


def _names_from_csv(path: Path, target: Domain) -> list[str | None]:
    """Class of each target sample by its name; None for samples that the file does not list."""
    try:
        check_file(path, MAX_TABLE)
        # utf-8-sig: spreadsheet programs begin a file with a byte order mark
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            is_table = {"path", "label"} <= set(reader.fieldnames or ())
            # An empty label is none: the answers of a review have them where nobody could say.
            labels = {row["path"]: row["label"] or None for row in reader} if is_table else None
    except (OSError, csv.Error, ValueError) as error:
        raise UserError(f"The target labels {str(path)!r} cannot be read ({error}).") from None
    if labels is None:
        raise UserError(f"{path} must be a CSV file with the columns path and label, named in its first line.")
    if not labels.keys() & set(target.names):
        raise UserError(f"{path} names none of the {target.size} target samples: its column path must match theirs.")
    return [labels.get(name) for name in target.names]
