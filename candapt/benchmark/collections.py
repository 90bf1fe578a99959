"""Collections: several labelled domains of the same classes, and the tasks between them."""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from candapt import demo
from candapt.console import counting
from candapt.data import visda
from candapt.data.checking import Progress
from candapt.data.digits import handwritten_digits, rendered_digits
from candapt.data.domains import Domain, LabeledDomain, Task
from candapt.data.features import Arrays, checked_samples, labeled_arrays, read_arrays
from candapt.data.images import find_images, labeled_image_domain
from candapt.data.inputs import match_classes
from candapt.data.lists import labeled_list_domain
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.randomness import generator
from candapt.runs import plain

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """A task, and what is needed to measure how well it was solved. The labels stay outside of the task."""

    task: Task
    truth: Tensor
    """True class of each measured sample as an index into the source's classes, shape (n,); -1 if not among them."""
    measured: Domain | None = None
    """The samples that are measured on; None for the target itself."""


class Collection(Protocol):
    """Domains by name. Reading waits until a problem is asked for, so that a finished suite reads nothing."""

    @property
    def images(self) -> ImageSettings | None:
        """How image files become samples; None where there are none."""

    @property
    def views(self) -> Any:
        """What else decides how samples look, as plain values; a stored result holds for the same views only."""

    def problem(self, source: str, target: str, seed: int) -> Problem:
        """The task from one domain to another; the seed matters where data is drawn at random."""

    def fingerprint(self, name: str) -> str:
        """Tells one domain from others of that name, wherever it lies."""


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
    """A folder with one sub-folder a domain, in which there is one a class, directly or below `images/`."""

    root: Path
    images: ImageSettings
    strict: bool = False
    """Refuse files that do not decode and classes without an image."""

    @property
    def views(self) -> Any:
        """The image settings."""
        return plain(self.images)

    def problem(self, source: str, target: str, seed: int) -> Problem:
        """All of both domains."""
        return _problem(self.domain(source), self.domain(target))

    def domain(self, name: str) -> LabeledDomain:
        """One domain; its files are checked when it is first asked for."""
        return _image_domain(self.root / name, self.images, self.strict)

    def fingerprint(self, name: str) -> str:
        """Hash of the files' names and sizes."""
        return _folder_hash(self.root / name)


@dataclass(frozen=True)
class ListedCollection(ImageCollection):
    """The same, but where a domain has an `image_list.txt`, that says which images there are and of which classes."""

    def domain(self, name: str) -> LabeledDomain:
        """One domain, by its list."""
        file = self._list(name)
        return _listed_domain(file, self.images, self.strict) if file.is_file() else super().domain(name)

    def fingerprint(self, name: str) -> str:
        """Hash of the list and of the files' names and sizes."""
        file, files = self._list(name), super().fingerprint(name)
        return f"{files} {hash_of(file)}" if file.is_file() else files

    def _list(self, name: str) -> Path:
        return self.root / name / visda.LIST


@dataclass(frozen=True)
class DigitCollection:
    """MNIST and USPS, from the files `mnist.npz` and `usps.npz` with x_train, y_train, x_test and y_test.

    The protocol is the usual one for small samples: 2,000 training images of MNIST and 1,800 of USPS, drawn by the
    seed of the run, are the source or the unlabelled target; the accuracy is that on all test images of the target,
    which no training sees. A look at all 60,000 in every round would take a CPU longer than the training itself.

    Images are scaled to 0 … 1 and brought to 16×16, the size of USPS: enlarging USPS would add pixels but nothing to
    see, and 16×16 costs a third of MNIST's 28×28.
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
        labeled = self.drawn(source, seed)
        unlabeled = self.drawn(target, seed)
        tested = self.tested(target)
        return Problem(
            Task(labeled, Domain(unlabeled.samples)), match_classes(tested, labeled.classes), Domain(tested.samples)
        )

    def drawn(self, name: str, seed: int) -> LabeledDomain:
        """Training images, drawn without replacement."""
        x, y = _digits(self.folder / f"{name}.npz", "train")
        rows = torch.randperm(len(x), generator=generator(seed, "digits", name))[: self.DRAWN[name]].numpy()
        return self.domain(x[rows], y[rows], f"{name} (training)")

    def tested(self, name: str) -> LabeledDomain:
        """All test images."""
        return self.domain(*_digits(self.folder / f"{name}.npz", "test"), f"{name} (test)")

    def domain(self, x: Array, y: Array, where: str) -> LabeledDomain:
        """Grey images at the common size."""
        return labeled_arrays(_grey(x, self.SIDE, where), y, where=where, augment=self.augment)

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
        """From rendered to handwritten digits."""
        x, y = rendered_digits(demo.RENDERED, seed)
        rendered = labeled_arrays(demo.enlarge(x), y, where="the rendered digits", augment=self.augment)
        x, y = handwritten_digits()
        handwritten = labeled_arrays(demo.enlarge(x), y, where="the handwritten digits", augment=self.augment)
        return _problem(rendered, handwritten)

    def fingerprint(self, name: str) -> str:
        """Shipped with the library, whose version is recorded."""
        return "shipped"


def domain_folders(root: Path) -> tuple[str, ...]:
    """The sub-folders of a folder, sorted; at least two."""
    if not root.is_dir():
        raise UserError(f"The folder {str(root)!r} does not exist: give by --data one that holds a folder a domain.")
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise UserError(f"{str(root)!r} holds {len(names)} folder(s), but a task needs two domains, one a folder.")
    return tuple(names)


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
    arrays = read_arrays(path, f"{name}_x", f"{name}_y", "classes")
    _require(arrays, path, f"{name}_x", f"{name}_y")
    where = f"{path} ({name})"
    x = checked_samples({"x": arrays[f"{name}_x"]}, where)
    return labeled_arrays(x, arrays[f"{name}_y"], arrays.get("classes"), where=where)


@cache
def _image_domain(folder: Path, images: ImageSettings, strict: bool) -> LabeledDomain:
    with _counting(folder.name) as count:
        workers, skip = os.cpu_count() or 1, not strict
        domain, _ = labeled_image_domain(
            folder, images, workers=workers, strict=strict, skip_empty=skip, progress=count
        )
    return domain


@cache
def _listed_domain(file: Path, images: ImageSettings, strict: bool) -> LabeledDomain:
    with _counting(file.parent.name) as count:
        workers, classes = os.cpu_count() or 1, visda.CLASSES
        domain, _ = labeled_list_domain(file, images, classes=classes, workers=workers, strict=strict, progress=count)
    return domain


@contextmanager
def _counting(name: str) -> Iterator[Progress | None]:
    """A bar while files are checked; none in worker processes, which would draw over each other."""
    if multiprocessing.parent_process() is not None:
        yield None
        return
    with counting(f"checking images of {name}") as count:
        yield count


@cache
def _digits(path: Path, split: str) -> tuple[Array, Array]:
    """Images and labels of one split as they are stored."""
    arrays = read_arrays(path, f"x_{split}", f"y_{split}")
    _require(arrays, path, f"x_{split}", f"y_{split}")
    return arrays[f"x_{split}"], arrays[f"y_{split}"]


def _grey(x: Array, side: int, where: str) -> Array:
    """Images (n, height, width), as bytes or from 0 to 1, to shape (n, side, side) from 0 to 1."""
    images = checked_samples({"x": x}, where) / (255 if np.issubdtype(x.dtype, np.integer) else 1)
    if images.ndim != 3 or images.min() < 0 or images.max() > 1:
        raise UserError(f"{where} must hold grey images of shape (n, height, width), as bytes or from 0 to 1.")
    resized = F.interpolate(torch.as_tensor(images)[:, None], size=(side, side), mode="bilinear", antialias=True)
    return resized.squeeze(1).clamp(0, 1).numpy()


def _require(arrays: Arrays | Mapping[str, Any], path: Path, *names: str) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise UserError(f"{str(path)!r} has no array {' and no '.join(missing)}, which this suite needs.")
