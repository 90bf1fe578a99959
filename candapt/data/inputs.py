"""From what the user names to domains: folders of images, and `.npz` files of features or small images."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from candapt.data.checking import ImageCheck, Progress
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.features import feature_domain, labeled_feature_domain, read_arrays
from candapt.data.images import image_domain, labeled_image_domain
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError


@dataclass(frozen=True)
class Reading:
    """How the files of a domain are read; feature files need none of it."""

    images: ImageSettings
    workers: int = 1
    strict: bool = False
    """Refuse a folder with a file that does not decode, rather than leave that file out."""
    progress: Progress | None = None


def read_domain(path: Path, reading: Reading) -> tuple[Domain, ImageCheck | None]:
    """Samples without labels, from an `.npz` file with x or a folder of images, and what a check of the files says."""
    if is_feature_file(path):
        return feature_domain(path, augment=reading.images.augmentation != "none"), None
    return image_domain(path, reading.images, workers=reading.workers, strict=reading.strict, progress=reading.progress)


def read_labeled_domain(path: Path, reading: Reading) -> tuple[LabeledDomain, ImageCheck | None]:
    """The same with labels, from an `.npz` file with x and y or a folder with one sub-folder a class."""
    if is_feature_file(path):
        return labeled_feature_domain(path, augment=reading.images.augmentation != "none"), None
    return labeled_image_domain(
        path, reading.images, workers=reading.workers, strict=reading.strict, progress=reading.progress
    )


def is_feature_file(path: Path) -> bool:
    """Whether the path is meant as a feature file rather than a folder of images."""
    return path.suffix.lower() == ".npz"


def read_target_labels(path: Path, target: Domain, classes: tuple[str, ...]) -> Tensor:
    """True labels of the target for the oracle, shape (n,); -1 where there is none or the source lacks the class.

    Args:
        path: a CSV file with the columns path and label (the class's name), or an `.npz` file with y, a class number
            for each row of the target.
        target: the domain that the labels are of.
        classes: the source's class names.
    """
    named = _names_from_arrays(path, target.size) if is_feature_file(path) else _names_from_csv(path, target)
    position: dict[str | None, int] = {name: index for index, name in enumerate(classes)}
    labels = torch.tensor([position.get(name, -1) for name in named])
    if (labels < 0).all():
        raise UserError(f"No label in {str(path)!r} is a class of the source, which are {', '.join(classes[:3])}, …")
    return labels


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
        # utf-8-sig: spreadsheet programs begin a file with a byte order mark
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if not {"path", "label"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} must be a CSV file with the columns path and label, named in its first line.")
            return {row["path"]: row["label"] for row in reader}
    except (OSError, csv.Error) as error:
        raise UserError(f"The target labels {path} cannot be read ({error}).") from None
