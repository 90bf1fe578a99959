"""From what the user names to domains: folders of images, and `.npz` files of features or small images."""

import csv
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from candapt.data.checking import ImageCheck, Progress
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.features import feature_domain, labeled_feature_domain, read_arrays
from candapt.data.images import MAX_NAMED, image_domain, labeled_image_domain
from candapt.data.lists import is_list_file, labeled_list_domain, list_domain
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.untrusted import MAX_TABLE, check_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """How the files of a domain are read; feature files need none of it."""

    images: ImageSettings
    workers: int = 1
    strict: bool = False
    """Refuse files that do not decode and classes without an image, rather than leave them out."""
    progress: Progress | None = None
    class_names: tuple[str, ...] = ()
    """Names of the classes that a list file numbers; by default they are called like its folders."""


def read_domain(path: Path, reading: Reading) -> tuple[Domain, ImageCheck | None]:
    """Samples without labels, and what a check of the files says.

    Args:
        path: an `.npz` file with x, a folder of images, or a `.txt` file that lists images.
        reading: how images are read.
    """
    if is_feature_file(path):
        return feature_domain(path, augment=reading.images.augmentation != "none"), None
    read = list_domain if is_list_file(path) else image_domain
    return read(path, reading.images, workers=reading.workers, strict=reading.strict, progress=reading.progress)


def read_labeled_domain(path: Path, reading: Reading) -> tuple[LabeledDomain, ImageCheck | None]:
    """The same with labels.

    Args:
        path: an `.npz` file with x and y, a folder with one sub-folder a class, or a `.txt` file with the path and the
            class number of an image in each line.
        reading: how images are read.
    """
    if is_feature_file(path):
        return labeled_feature_domain(path, augment=reading.images.augmentation != "none"), None
    if is_list_file(path):
        return labeled_list_domain(
            path,
            reading.images,
            classes=reading.class_names,
            workers=reading.workers,
            strict=reading.strict,
            progress=reading.progress,
        )
    return labeled_image_domain(
        path,
        reading.images,
        workers=reading.workers,
        strict=reading.strict,
        skip_empty=not reading.strict,
        progress=reading.progress,
    )


def is_feature_file(path: Path) -> bool:
    """Whether the path is meant as a feature file rather than a folder of images."""
    return path.suffix.lower() == ".npz"


def read_target_labels(path: Path, target: Domain, classes: tuple[str, ...], *, strict: bool = False) -> Tensor:
    """True labels of the target for the oracle, shape (n,); -1 where there is none or the source lacks the class.

    Args:
        path: a CSV file with the columns path and label (the class's name), or an `.npz` file with y, a class number
            for each row of the target.
        target: the domain that the labels are of.
        classes: the source's class names.
        strict: refuse labels of a class that the source lacks, rather than leave these samples out.
    """
    named = _names_from_arrays(path, target.size) if is_feature_file(path) else _names_from_csv(path, target)
    position: dict[str | None, int] = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([position.get(name, -1) for name in named])
    if (labels < 0).all():
        raise UserError(f"No label in {str(path)!r} is a class of the source, which are {', '.join(classes[:3])}, …")
    if unknown := unknown_classes([name for name in named if name is not None], classes):
        if strict:
            raise UserError(f"{str(path)!r} has labels of {unknown}, which the source lacks; remove them.")
        logger.warning("The source lacks %s: these target samples are left out of the oracle's figures.", unknown)
    return labels


def match_classes(domain: LabeledDomain, classes: tuple[str, ...]) -> Tensor:
    """The domain's labels as indices into `classes`, shape (n,); -1 for a class that is not among them."""
    position = {name: index for index, name in enumerate(classes)}
    known = torch.tensor([position.get(name, -1) for name in domain.classes])
    if (known < 0).all():
        raise UserError(
            f"None of the classes {', '.join(domain.classes[:3])}, … is one of the model's: {', '.join(classes[:3])}, …"
        )
    return known[domain.labels]


def unknown_classes(named: Sequence[str], classes: Sequence[str]) -> str:
    """The classes that are not among the known ones, by name and count; empty if there are none.

    >>> unknown_classes(["cat", "zebra", "zebra"], ["cat", "dog"])
    "'zebra' (2)"
    """
    counts = Counter(name for name in named if name not in set(classes))
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
    """Class of each target sample by its name, None where the file does not tell."""
    known = _read_csv(path)
    if not known.keys() & set(target.names):
        raise UserError(f"{path} names none of the {target.size} target samples: its column path must match theirs.")
    return [known.get(name) for name in target.names]


def _read_csv(path: Path) -> dict[str, str]:
    """Class name by sample name."""
    try:
        check_file(path, MAX_TABLE)
        # utf-8-sig: spreadsheet programs begin a file with a byte order mark
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if not {"path", "label"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} must be a CSV file with the columns path and label, named in its first line.")
            return {row["path"]: row["label"] for row in reader}
    except UserError:
        raise
    except (OSError, csv.Error, ValueError) as error:
        raise UserError(f"The target labels {str(path)!r} cannot be read ({error}).") from None
