"""Collections: several labeled domains with the same classes, and the tasks between them."""

import hashlib
import multiprocessing
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from candapt.console import counting
from candapt.data import visda
from candapt.data.decoding import Progress
from candapt.data.digits import RENDERED, enlarge, handwritten_digits, rendered_digits
from candapt.data.domains import Domain, LabeledDomain, Task
from candapt.data.features import Arrays, checked_samples, labeled_arrays, read_arrays
from candapt.data.images import find_images
from candapt.data.inputs import Reading, match_classes, read_labeled_domain
from candapt.errors import UserError
from candapt.randomness import generator
from candapt.settings import ImageSettings
from candapt.storage.files import plain

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """A task, and what is needed to measure its solution. The labels stay outside of the task."""

    task: Task
    truth: Tensor  # (n,): true class of each measured sample as an index into the source's classes; -1 for others
    measured: Domain | None = None  # the samples to measure on; None for the target itself


class Collection(Protocol):
    """Domains by name. Files are read when a problem is requested, so that a finished suite reads nothing."""

    @property
    def images(self) -> ImageSettings | None:
        """How image files become samples; None where there are none."""

    @property
    def views(self) -> Any:
        """What else decides the samples' values; a stored result is only valid for the same views."""

    def problem(self, source: str, target: str, seed: int) -> Problem:
        """The task from one domain to another; the seed matters where data is drawn at random."""

    def fingerprint(self, name: str) -> str:
        """Identifies the content of a domain, wherever its files are."""


@dataclass(frozen=True)
class FeatureCollection:
    """One `.npz` file with the arrays `DOMAIN_x` and `DOMAIN_y` for each domain, and `classes` for all."""

    path: Path
    images: None = None
    views: None = None

    def problem(self, source: str, target: str, seed: int) -> Problem:
        """All of both domains."""
        return _problem(_feature_domain(self.path, source), _feature_domain(self.path, target))

    def fingerprint(self, name: str) -> str:
        """Hash of the file."""
        return hash_of(self.path)


@dataclass(frozen=True)
class ImageCollection:
    """A folder with one subfolder per domain, each with one subfolder per class, directly or below `images/`."""

    root: Path
    images: ImageSettings
    strict: bool = False  # raise for files that do not decode and classes without an image

    @property
    def views(self) -> Any:
        """The image settings."""
        return plain(self.images)

    def problem(self, source: str, target: str, seed: int) -> Problem:
        """All of both domains."""
        return _problem(self.domain(source), self.domain(target))

    def domain(self, name: str) -> LabeledDomain:
        """One domain; its files are checked when it is first used."""
        return _image_domain(self.place(name), name, self.images, self.strict)

    def place(self, name: str) -> Path:
        """The folder that a domain is read from."""
        return self.root / name

    def fingerprint(self, name: str) -> str:
        """Hash of the files' names and sizes."""
        return _folder_hash(self.root / name)


@dataclass(frozen=True)
class ListedCollection(ImageCollection):
    """The same, but an `image_list.txt` in a domain's folder lists its images and their classes."""

    def place(self, name: str) -> Path:
        """The list that a domain is read from, or its folder if there is none."""
        folder = super().place(name)
        return folder / visda.LIST if (folder / visda.LIST).is_file() else folder

    def fingerprint(self, name: str) -> str:
        """Hash of the files' names and sizes, and of the list."""
        files, place = super().fingerprint(name), self.place(name)
        return f"{files} {hash_of(place)}" if place.is_file() else files


@dataclass(frozen=True)
class DigitCollection:
    """MNIST and USPS, from the files `mnist.npz` and `usps.npz` with x_train, y_train, x_test and y_test.

    The protocol is the usual one for small samples: 2,000 training images of MNIST and 1,800 of USPS, drawn by the
    seed of the run, are the source or the unlabeled target; the accuracy is measured on all test images of the
    target, which no training sees. Evaluating all 60,000 in every round would take a CPU longer than the training.

    Images are scaled to 0 … 1 and resized to 16×16, the size of USPS: enlarging USPS would add pixels but no detail,
    and 16×16 costs a third of MNIST's 28×28.
    """

    folder: Path
    augment: bool = True
    images: None = None

    SIDE = 16
    DRAWN = {"mnist": 2000, "usps": 1800}  # noqa: RUF012  (a constant, not a field)

    @property
    def views(self) -> Any:
        """Whether there are random training views."""
        return {"augment": self.augment}

    def problem(self, source: str, target: str, seed: int) -> Problem:
        """Training images of both, measured on test images of the target."""
        labeled, unlabeled = self.drawn(source, seed), self.drawn(target, seed)
        tested = self.domain(*_digits(self.folder / f"{target}.npz", "test"), f"{target} (test)")
        truth = match_classes(tested, labeled.classes)
        return Problem(Task(labeled, Domain(unlabeled.samples)), truth, Domain(tested.samples))

    def drawn(self, name: str, seed: int) -> LabeledDomain:
        """Training images, drawn without replacement."""
        x, y = _digits(self.folder / f"{name}.npz", "train")
        rows = torch.randperm(len(x), generator=generator(seed, "digits", name))[: self.DRAWN[name]].numpy()
        return self.domain(x[rows], y[rows], f"{name} (training)")

    def domain(self, x: Array, y: Array, where: str) -> LabeledDomain:
        """Gray images (n, height, width), as bytes or from 0 to 1, brought to the common size and from 0 to 1."""
        images = checked_samples({"x": x}, where) / (255 if np.issubdtype(x.dtype, np.integer) else 1)
        if images.ndim != 3 or images.min() < 0 or images.max() > 1:
            raise UserError(f"{where} must hold gray images of shape (n, height, width), as bytes or from 0 to 1.")
        size = (self.SIDE, self.SIDE)
        resized = F.interpolate(torch.as_tensor(images)[:, None], size=size, mode="bilinear", antialias=True)
        return labeled_arrays(resized.squeeze(1).clamp(0, 1).numpy(), y, where=where, augment=self.augment)

    def fingerprint(self, name: str) -> str:
        """Hash of the file."""
        return hash_of(self.folder / f"{name}.npz")


@dataclass(frozen=True)
class DemoCollection:
    """The digits of `candapt demo`, which are shipped: rendered with fonts, by the seed of the run, and handwritten."""

    augment: bool = True
    images: None = None

    @property
    def views(self) -> Any:
        """Whether there are random training views."""
        return {"augment": self.augment}

    def problem(self, source: str, target: str, seed: int) -> Problem:
        """All of both domains."""
        digits = {"rendered": rendered_digits(RENDERED, seed), "handwritten": handwritten_digits()}
        domains = {
            name: labeled_arrays(enlarge(x), y, where=f"the {name} digits", augment=self.augment)
            for name, (x, y) in digits.items()
        }
        return _problem(domains[source], domains[target])

    def fingerprint(self, name: str) -> str:
        """Shipped with the library, whose version is recorded."""
        return "shipped"


@cache
def hash_of(path: Path) -> str:
    """Hash of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read ({error.strerror}): check its path.") from None


@cache
def _folder_hash(folder: Path) -> str:
    if not folder.is_dir():
        raise UserError(f"There is no folder {str(folder)!r}: --data must hold one folder for each domain.")
    listed = hashlib.blake2b(digest_size=16)
    for path in find_images(folder):
        size = path.stat().st_size if path.exists() else -1  # a link that leads nowhere is reported when it is read
        listed.update(os.fsencode(f"{path.relative_to(folder).as_posix()}\0{size}\n"))
    return listed.hexdigest()


def _problem(source: LabeledDomain, target: LabeledDomain) -> Problem:
    """The target without its labels, and these apart."""
    return Problem(Task(source, Domain(target.samples, target.names)), match_classes(target, source.classes))


@cache
def _feature_domain(path: Path, name: str) -> LabeledDomain:
    arrays, where = _read(path, f"{name}_x", f"{name}_y", optional=["classes"]), f"{path} ({name})"
    x = checked_samples({"x": arrays[f"{name}_x"]}, where)
    return labeled_arrays(x, arrays[f"{name}_y"], arrays.get("classes"), where=where)


@cache
def _image_domain(place: Path, name: str, images: ImageSettings, strict: bool) -> LabeledDomain:
    bar: AbstractContextManager[Progress | None] = counting(f"checking images of {name}")
    if multiprocessing.parent_process() is not None:
        bar = nullcontext()  # worker processes would overwrite each other's bars
    with bar as progress:
        workers, classes = os.cpu_count() or 1, visda.CLASSES
        reading = Reading(images, workers=workers, strict=strict, progress=progress, class_names=classes)
        return read_labeled_domain(place, reading)[0]


@cache
def _digits(path: Path, split: str) -> tuple[Array, Array]:
    """Images and labels of one split as they are stored."""
    arrays = _read(path, f"x_{split}", f"y_{split}")
    return arrays[f"x_{split}"], arrays[f"y_{split}"]


def _read(path: Path, *names: str, optional: Sequence[str] = ()) -> Arrays:
    """The named arrays, and those of the optional ones that the file has."""
    arrays = read_arrays(path, *names, *optional)
    if missing := [name for name in names if name not in arrays]:
        raise UserError(f"{str(path)!r} has no array {' and no '.join(missing)}, which this suite needs.")
    return arrays
