"""Domains: samples with a name each, and labels only in a `LabeledDomain`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol, overload

import numpy as np
import torch
from torch import Tensor


class Side(IntEnum):
    """Whether a sample comes from the source or the target; also the index of its batch norm (see `norm_of`)."""

    SOURCE = 0
    TARGET = 1


def norm_of(side: Side, origin: int = 0) -> int:
    """Index of the batch norm of a side; each source has its own: 0 for the first, 2, 3, … for further ones.

    >>> [norm_of(Side.SOURCE), norm_of(Side.TARGET), norm_of(Side.SOURCE, 1), norm_of(Side.SOURCE, 2)]
    [0, 1, 2, 3]
    """
    return int(side) if side == Side.TARGET or origin == 0 else origin + 1


class Samples(Protocol):
    """Something that can be read by index, as the network will see it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    def __len__(self) -> int: ...

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """Samples as float32, shape (len(indices), *shape): with a seed a training view, else the evaluation view."""


def read_rows(samples: Samples, indices: Tensor, rows: slice, seed: int) -> Tensor:
    """Those rows of what `samples.read(indices, seed=seed)` gives, without reading more than is needed.

    Samples whose training views depend on the places among the indices bring a method `read_rows` of their own; those
    of others are read by themselves if the class says so, as `views_by_sample`, and else all are read.
    """
    if hasattr(samples, "read_rows"):
        own: Tensor = samples.read_rows(indices, rows, seed)
        return own
    if getattr(samples, "views_by_sample", False):
        return samples.read(indices[rows], seed=seed)
    return samples.read(indices, seed=seed)[rows]


class ArraySamples:
    """The rows of an array (n, ...), kept in memory as float32; training and evaluation see the same values."""

    augmentation: str = "none"  # kind of the training views
    views_by_sample = True  # there is only one view

    def __init__(self, array: Any) -> None:
        values = np.asarray(array, dtype=np.float32)
        # The arrays of data frames are read-only, which tensors cannot be.
        self.array = torch.as_tensor(values if values.flags.writeable else values.copy())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.array.shape[1:])

    def __len__(self) -> int:
        return len(self.array)

    def fingerprint(self) -> str:
        """Hash of the values."""
        values = self.array.contiguous().numpy()
        return hashlib.blake2b(repr(values.shape).encode() + values.tobytes(), digest_size=16).hexdigest()

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The rows at `indices`."""
        return self.array[indices]


class ChosenSamples:
    """The given rows of other samples, in their order."""

    def __init__(self, samples: Samples, rows: Tensor) -> None:
        self.samples, self.rows = samples, rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.samples.shape

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The chosen samples at `indices`."""
        return self.samples.read(self.rows[indices], seed=seed)

    def read_rows(self, indices: Tensor, rows: slice, seed: int) -> Tensor:
        """Some rows of what `read` gives."""
        return read_rows(self.samples, self.rows[indices], rows, seed)


@dataclass(frozen=True, eq=False)
class Domain:
    """Samples without labels. An array is accepted in place of `Samples`."""

    samples: Samples
    names: Sequence[str] = ()  # what each sample is called in predictions: a file's path, or by default its row number

    def __post_init__(self) -> None:
        if not hasattr(self.samples, "read"):
            object.__setattr__(self, "samples", ArraySamples(self.samples))
        if not len(self.names):
            object.__setattr__(self, "names", tuple(map(str, range(len(self.samples)))))

    @property
    def size(self) -> int:
        """Number of samples. There is no `len`: scikit-learn cuts whatever has one and as many rows as X like X."""
        return len(self.samples)


@dataclass(frozen=True, eq=False)
class LabeledDomain(Domain):
    """Samples with labels: the source, or a target on which an oracle reports."""

    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # class of each sample, (n,)
    classes: tuple[str, ...] = ()  # class names; a label is an index into them
    origins: Tensor | None = None  # number of the source that each sample comes from, (n,); None if there is only one

    @property
    def count(self) -> int:
        """Number of sources that it joins."""
        return 1 if self.origins is None else int(self.origins.max()) + 1


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """Labels of some target samples that the user gave in order that they steer the training."""

    rows: Tensor  # their places in the target, ascending, shape (k,)
    labels: Tensor  # shape (k,)

    def spread(self, size: int) -> Tensor:
        """The label of each of `size` target samples, shape (size,); -1 where it is not known."""
        return torch.full((size,), -1).index_copy(0, self.rows, self.labels)


@dataclass(frozen=True, eq=False)
class Task:
    """A labeled source and an unlabeled target. Other target labels than those given to steer have no place here."""

    source: LabeledDomain
    target: Domain
    known: KnownLabels | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes of the source."""
        return len(self.source.classes)

    @property
    def target_labels(self) -> Tensor:
        """The known label of each target sample, shape (n,); -1 where there is none."""
        size = self.target.size
        return torch.full((size,), -1) if self.known is None else self.known.spread(size)

    def domain(self, side: Side) -> Domain:
        """The domain of that side."""
        return self.source if side == Side.SOURCE else self.target


@overload
def part_of(domain: LabeledDomain, rows: Tensor) -> LabeledDomain: ...
@overload
def part_of(domain: Domain, rows: Tensor) -> Domain: ...
def part_of(domain: Domain, rows: Tensor) -> Domain:
    """The samples at these rows, with their names and, where there are any, labels."""
    samples, names = ChosenSamples(domain.samples, rows), [domain.names[row] for row in rows.tolist()]
    if isinstance(domain, LabeledDomain):
        origins = None if domain.origins is None else domain.origins[rows]
        return LabeledDomain(samples, names, domain.labels[rows], domain.classes, origins)
    return Domain(samples, names)


def by_norm(domain: Domain, side: Side) -> list[tuple[Tensor, Domain, int]]:
    """The samples of a side by the batch norm that normalizes them: their rows, themselves, and its index."""
    origins = domain.origins if isinstance(domain, LabeledDomain) else None
    if origins is None:
        return [(torch.arange(domain.size), domain, norm_of(side))]
    groups = [(number, (origins == number).nonzero().flatten()) for number in torch.unique(origins).tolist()]
    return [(rows, part_of(domain, rows), norm_of(side, number)) for number, rows in groups]
