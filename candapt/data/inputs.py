"""From what the user names to domains: folders of images, and `.npz` files of features or small images."""

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from candapt.data.domains import Domain, LabeledDomain
from candapt.data.features import feature_domain, labeled_feature_domain, read_arrays
from candapt.data.images import ImageCheck, Progress, image_domain, labeled_image_domain
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
    """Samples without labels, from an `.npz` file with x or any folder of images, and what a check of the files says."""
    if is_feature_file(path):
        return feature_domain(path), None
    return image_domain(path, reading.images, workers=reading.workers, strict=reading.strict, progress=reading.progress)


def read_labeled_domain(path: Path, reading: Reading) -> tuple[LabeledDomain, ImageCheck | None]:
    """The same with labels, from an `.npz` file with x and y or a folder with one sub-folder a class."""
    if is_feature_file(path):
        return labeled_feature_domain(path), None
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
    if is_feature_file(path):
        return _labels_from_arrays(path, len(target), classes)
    known = _labels_from_csv(path)
    labels = [known.get(name) for name in target.names]
    if not any(label is not None for label in labels):
        raise UserError(f"{path} names none of the {len(target)} target samples: its column path must match theirs.")
    position = {name: index for index, name in enumerate(classes)}
    return torch.tensor([position.get(label, -1) if label is not None else -1 for label in labels])


def _labels_from_arrays(path: Path, count: int, classes: tuple[str, ...]) -> Tensor:
    """Class numbers of an `.npz` file, in its own order of classes if it names them."""
    arrays = read_arrays(path, "y", "classes")
    if "y" not in arrays or arrays["y"].shape != (count,):
        raise UserError(f"{path} must have an array y with one label for each of the {count} target samples.")
    names = [str(name) for name in arrays["classes"]] if "classes" in arrays else None
    position = {name: index for index, name in enumerate(classes)}
    called = [names[number] if names and 0 <= number < len(names) else str(number) for number in arrays["y"].tolist()]
    return torch.tensor([position.get(name, -1) for name in called])


def _labels_from_csv(path: Path) -> dict[str, str]:
    """Class name by sample name."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if not {"path", "label"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} must be a CSV file with the columns path and label, named in its first line.")
            return {row["path"]: row["label"] for row in reader}
    except (OSError, csv.Error) as error:
        raise UserError(f"The target labels {path} cannot be read ({error}).") from None
