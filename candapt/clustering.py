"""Pseudo-labels by spherical k-means, as in CAN (Kang et al., CVPR 2019, section "Optimizing CAN")."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

ANCHOR_WEIGHT = 10.0  # samples that one with a known label counts as in the center of its class
CHUNK_SIZE = 1024  # samples processed together: 8 MB of float32 features of size 2048, which stay in the cache
MANY_CENTERS = 64  # from here on it pays to remember by how much the nearest center of a sample leads
CERTAIN_LEAD = 1e-4  # a lead above this, as a difference of cosines, is no matter of rounding
MANY = 2**16  # samples whose distances are computed at a time
SHORTEST = 1e-12  # length below which a sample has no direction, as in `normalize`

Reduce = Callable[[Tensor], Tensor]  # the sum of a tensor over all processes, the same in each of them


class Rows(Protocol):
    """Samples that are read a few rows at a time: a tensor, an array in memory or a memory-mapped one on disk."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of samples and features."""

    def __getitem__(self, rows: slice, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Clusters:
    """Target samples, each with the class of its nearest center.

    Filters can be chained: each returns a new object, which keeps fewer of the samples kept so far.
    """

    labels: Tensor  # class of each sample, shape (n,), int64
    distances: Tensor  # cosine distance of each sample to the center of its class, shape (n,), between 0 and 1
    centers: Tensor  # center of each class, shape (M, d); only its direction has a meaning
    kept: Tensor  # whether a sample passed all filters so far, shape (n,), bool
    steps: int  # how often the centers were updated

    def within(self, max_distance: float) -> "Clusters":
        """Keep samples nearer to their center than `max_distance` (D0 in the paper)."""
        return replace(self, kept=self.kept & (self.distances < max_distance))

    def only(self, samples: Tensor) -> "Clusters":
        """Keep some samples, a mask of shape (n,)."""
        return replace(self, kept=self.kept & samples.to(self.kept.device))

    def at_least(self, min_samples: int) -> "Clusters":
        """Keep classes with `min_samples` kept samples or more, as the authors' code does (paper: "more than N0")."""
        large = self._kept_counts() >= min_samples  # (M,)
        return replace(self, kept=self.kept & large[self.labels])

    def closest(self, share: float, *, least: int = 1, by: Tensor | None = None) -> "Clusters":
        """Keep this share of each cluster, the samples nearest to its center; unlike `within`, adapts to their widths.

        The number of samples is rounded and never below `least`; of equally distant samples the first come first.
        Other values, `by`, of shape (n,), may take the place of the distances: samples with the lowest are kept.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"The share of a cluster to keep is {share}, but must be between 0 and 1.")
        counts = self._kept_counts()
        quotas = (counts * share).round().clamp_min(least)  # (M,)
        nearest_first = (self.distances if by is None else by).argsort(stable=True)
        nearest_first = nearest_first[self.kept[nearest_first]]
        order = nearest_first[self.labels[nearest_first].argsort(stable=True)]  # by class, then by distance
        labels = self.labels[order]
        ranks = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[labels]
        kept = torch.zeros_like(self.kept)
        kept[order] = ranks < quotas[labels]
        return replace(self, kept=kept)

    def anchored(self, labels: Tensor) -> "Clusters":
        """Give samples whose label is known, others have -1, that label, and keep them; shape (n,)."""
        known = labels >= 0
        return replace(self, labels=torch.where(known, labels, self.labels), kept=self.kept | known)

    @property
    def kept_labels(self) -> Tensor:
        """Labels with -1 for samples that are not kept, shape (n,)."""
        return self.labels.masked_fill(~self.kept, -1)

    @property
    def kept_classes(self) -> Tensor:
        """Classes with a kept sample, in ascending order."""
        return self._kept_counts().nonzero().flatten()

    def _kept_counts(self) -> Tensor:
        """Number of kept samples of each class, shape (M,)."""
        return self.labels[self.kept].bincount(minlength=len(self.centers))


@torch.no_grad()
def spherical_kmeans(
    features: Rows,
    initial_centers: Tensor,
    *,
    max_steps: int = 100,
    tolerance: float = 0.005,
    unit: bool = True,
    align: bool = False,
    anchors: Tensor | None = None,
    present: Tensor | None = None,
    reduce: Reduce | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> Clusters:
    """Clusters by direction, which start from one center per class so that a cluster's number is its class.

    Every sample is kept, and a cluster without a sample has its initial center. The result is deterministic. Chunks of
    samples bound the memory, and half precision is raised to float32.

    Args:
        features: samples to cluster, shape (n, d): a tensor, or anything whose slices are arrays or tensors, such as a
            memory-mapped array, which is read chunk by chunk, once in each step and once for the labels.
        initial_centers: where each class starts, shape (M, d): in CAN the centers of the source classes.
        max_steps: maximum number of center updates; 0 labels samples by the nearest initial center.
        tolerance: stop once the centers move by a mean cosine distance of at most this (default: the authors').
        unit: sum unit vectors (the paper); if False, sum the features themselves (the authors' code).
        align: match the final centers with the initial ones by the Hungarian method and rename the clusters.
        anchors: class of each sample that is known, -1 for the others, shape (n,). Known samples stay in the cluster of
            their class and count `ANCHOR_WEIGHT` times in its center.
        present: classes that can have a sample, shape (M,), bool; the others keep their initial centers. Default: all.
        reduce: where several processes hold a share of the samples each, what adds up a tensor over all of them. Every
            process then gives the same centers, and labels of its own share, which may be empty.
        chunk_size: samples processed together; it does not change the result.
    """
    _check(features, initial_centers)
    if present is not None and not present.all():
        chosen = present.nonzero().flatten()
        part = spherical_kmeans(
            features,
            initial_centers[chosen],
            max_steps=max_steps,
            tolerance=tolerance,
            unit=unit,
            align=align,
            anchors=None if anchors is None else _among(chosen, len(present))[anchors],
            reduce=reduce,
            chunk_size=chunk_size,
        )
        centers = initial_centers.to(part.centers).index_copy(0, chosen, part.centers)
        return replace(part, labels=chosen[part.labels], centers=centers)
    samples = _Samples(features, initial_centers, chunk_size)
    initial = initial_centers.to(samples.device, samples.precision)
    centers, steps = initial, 0
    while steps < max_steps:
        previous, steps = centers, steps + 1
        sums = samples.sums(previous, anchors, unit)
        sums = (sums if reduce is None else reduce(sums)).to(initial.dtype)
        # A sum of zeros is an empty cluster, or one that holds nothing but features without a direction.
        centers = torch.where(sums.any(dim=1, keepdim=True), sums, initial)
        if not center_shift(previous, centers) > tolerance:  # also ends at NaN, which is reported below
            break
    labels, distances = samples.nearest(centers)
    if align:
        classes = _matching_classes(centers, initial)
        labels, centers = classes[labels], torch.empty_like(centers).index_copy_(0, classes, centers)
    clusters = Clusters(labels, distances, centers, torch.ones_like(labels, dtype=torch.bool), steps)
    return clusters if anchors is None else clusters.anchored(anchors.to(labels.device))


def class_centers(
    features: Rows, labels: Tensor, num_classes: int, *, unit: bool = True, reduce: Reduce | None = None
) -> Tensor:
    """Sum of each class's unit vectors, or with `unit=False` of its features, shape (M, d), in float32 or better.

    Args:
        features: shape (n, d), a tensor or anything that `spherical_kmeans` takes.
        labels: class of each sample, shape (n,); samples with a negative label belong to none.
        num_classes: number of classes M; one without a sample has a center of zeros.
        unit: whether to divide each sample by its length first.
        reduce: what adds up a tensor over processes, where each holds a share of the samples.
    """
    if len(labels) != features.shape[0]:
        raise ValueError(f"There are {features.shape[0]} features but {len(labels)} labels: give one label per sample.")
    if len(labels) and int(labels.max()) >= num_classes:
        raise ValueError(f"Label {int(labels.max())} does not fit {num_classes} classes: labels count from 0.")
    samples = _Samples(features, labels, CHUNK_SIZE)
    labels = labels.to(samples.device)
    centers = torch.zeros(num_classes, features.shape[1], dtype=samples.precision, device=samples.device)
    for rows, chunk in samples.chunks():
        weights = _inverse_lengths(chunk) if unit else torch.ones_like(chunk[:, 0])
        centers += _class_sums(chunk, labels[rows], weights, num_classes)
    return centers if reduce is None else reduce(centers)


def cosine_distances(a: Tensor, b: Tensor, *, in_parts: bool = True) -> Tensor:
    """Half of one minus the cosine between every row of `a` (n, d) and of `b` (m, d), shape (n, m).

    A row of zeros has no direction: its distance to everything is one half. Many rows are compared a part at a time; a
    graph for batches of any size needs `in_parts=False`.

    >>> cosine_distances(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]))
    tensor([[0.0000, 0.5000, 1.0000]])
    """
    precision = _precision(a, b)
    if in_parts and len(a) > MANY:  # a normalized copy of all would take as much memory as they do
        return torch.cat([cosine_distances(part, b) for part in torch.split(a, MANY)])
    return _to_distance(normalize(a.to(precision)) @ normalize(b.to(precision)).T)


def label_change(previous: Tensor, current: Tensor) -> float:
    """Share of samples whose label is another than before; both of shape (n,)."""
    if previous.shape != current.shape:
        counts = f"{len(previous)} and {len(current)}"
        raise ValueError(f"{counts} labels cannot be compared: use those of the same samples.")
    return float((previous.to(current.device) != current).float().mean()) if len(current) else 0.0


def center_shift(previous: Tensor, current: Tensor) -> float:
    """Mean cosine distance between each center and the one of the same class before; both of shape (M, d).

    A center that is exactly where it was has not moved, even if it is zero and so has no direction.
    """
    if previous.shape != current.shape:
        shapes = f"{tuple(previous.shape)} and {tuple(current.shape)}"
        raise ValueError(f"Centers of shapes {shapes} cannot be compared: use the same classes and features.")
    precision = _precision(previous, current)
    before, now = (normalize(centers.to(current.device, precision)) for centers in (previous, current))
    distances = _to_distance((before * now).sum(dim=1))
    return float(distances.where((before != now).any(dim=1), 0).mean())


class _Samples:
    """Features that are read chunk by chunk, in the order of their rows.

    The nearest center of a sample does not depend on its length, so that samples are multiplied as they are: their
    lengths, needed for sums of unit vectors and for distances, are computed once and not in every pass.
    """

    def __init__(self, features: Rows, other: Tensor, chunk_size: int) -> None:
        self.features, self.chunk_size = features, chunk_size
        first = _tensor(features[0:0])
        self.device = first.device if isinstance(features, Tensor) else other.device
        self.precision = _precision(first, other)
        self.inverse_lengths: Tensor | None = None  # 1 / length of each sample, shape (n,)
        self.leads: _Leads | None = None  # only with many centers

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their samples."""
        for start in range(0, self.features.shape[0], self.chunk_size):
            rows = slice(start, start + self.chunk_size)
            yield rows, _tensor(self.features[rows]).to(self.device, self.precision)

    def assigned(self, centers: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor]]:
        """For each chunk its rows, samples (c, d), and inverse lengths, labels and products with unit centers, (c,)."""
        directions = normalize(centers)
        if self.leads is None and len(centers) >= MANY_CENTERS and directions.device.type == "cpu":
            self.leads = _Leads(self.features.shape[0], self.precision)
        known = self.inverse_lengths
        found = directions.new_empty(self.features.shape[0]) if known is None else known
        for rows, chunk in self.chunks():
            if known is None:
                found[rows] = _inverse_lengths(chunk)
            if self.leads is None:
                # Classes first: with few of them this product is nearly twice as fast as its transpose.
                highest, labels = (directions @ chunk.T).max(dim=0)  # the first of equals
            else:
                highest, labels = self.leads.nearest(rows, chunk, found[rows], directions)
            yield rows, chunk, found[rows], labels, highest
        self.inverse_lengths = found
        if self.leads is not None:
            self.leads.directions = directions

    def sums(self, centers: Tensor, anchors: Tensor | None, unit: bool) -> Tensor:
        """Sums of the samples nearest to each of the centers, shape (M, d).

        In double precision, rounded once at the end, they are the same however chunks are shared out among processes.
        """
        sums = torch.zeros_like(centers, dtype=None if centers.device.type == "mps" else torch.float64)
        for rows, chunk, inverse_lengths, labels, _ in self.assigned(centers):
            weights = inverse_lengths if unit else torch.ones_like(inverse_lengths)
            if anchors is not None:
                known = anchors[rows].to(labels.device)
                labels = torch.where(known >= 0, known, labels)
                weights = torch.where(known >= 0, ANCHOR_WEIGHT * weights, weights)
            sums += _class_sums(chunk, labels, weights, len(centers))
        return sums

    def nearest(self, centers: Tensor) -> tuple[Tensor, Tensor]:
        """Label of each sample and its distance to that center, both of shape (n,)."""
        cosines = centers.new_empty(self.features.shape[0])
        labels = torch.empty_like(cosines, dtype=torch.int64)
        # Written in place: small results kept from every chunk would lie between the large ones and fragment memory.
        for rows, _, inverse_lengths, nearest, highest in self.assigned(centers):
            labels[rows], cosines[rows] = nearest, highest * inverse_lengths
        if not cosines.isfinite().all():
            problem = "The features to cluster hold infinite values or NaN"
            raise ValueError(f"{problem}: check the data and the learning rate.")
        return labels, _to_distance(cosines)


class _Leads:
    """By how much each sample's nearest center leads: one that led by more than centers have moved still leads.

    Such a sample is compared with its own center alone. By the Cauchy-Schwarz inequality, a cosine changes by at most
    the length by which the center's direction has moved.
    """

    def __init__(self, samples: int, precision: torch.dtype) -> None:
        self.directions: Tensor | None = None  # of the centers that the samples were compared with, shape (M, d)
        self.labels = torch.zeros(samples, dtype=torch.int64)
        self.leads = torch.zeros(samples, dtype=precision)  # at least this, as a difference of cosines

    def nearest(self, rows: slice, chunk: Tensor, inverse_lengths: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Product with the nearest center and its number, both of shape (c,)."""
        labels, leads = self.labels[rows], self.leads[rows]
        if self.directions is not None:
            moved = (directions - self.directions).norm(dim=1)
            leads.sub_(moved[labels] + moved.max())
        open_rows = (~(leads > CERTAIN_LEAD)).nonzero().flatten()  # not a number: not certain
        if len(open_rows) > len(chunk) // 2:
            highest, labels[:], leads[:] = _best_and_lead(chunk, inverse_lengths, directions)
            return highest, labels
        highest = (chunk * directions[labels]).sum(dim=1)
        best, labels[open_rows], leads[open_rows] = _best_and_lead(
            chunk[open_rows], inverse_lengths[open_rows], directions
        )
        highest[open_rows] = best
        return highest, labels


def _best_and_lead(chunk: Tensor, inverse_lengths: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Product with the nearest center, its number, and by how much its cosine leads; each of shape (c,)."""
    products = directions @ chunk.T
    best, labels = products.max(dim=0)
    second = products.scatter_(0, labels[None], -torch.inf).amax(dim=0)
    return best, labels, (best - second) * inverse_lengths


def _tensor(rows: Any) -> Tensor:
    """Rows of features as a tensor; those of a read-only array are copied, since a tensor could write to them."""
    if isinstance(rows, Tensor):
        return rows
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())


def _check(features: Rows, initial_centers: Tensor) -> None:
    """Raise a `ValueError` for shapes that do not fit and centers that are not finite."""
    if len(features.shape) != 2 or initial_centers.ndim != 2 or features.shape[1] != initial_centers.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(initial_centers.shape)}"
        raise ValueError(f"Features and centers of shapes {shapes} do not fit: give (n, d) and (classes, d).")
    if not len(initial_centers):
        raise ValueError("There is no center to start from: give one per class.")
    if not initial_centers.isfinite().all():
        raise ValueError("The initial centers hold infinite values or NaN: check the features they come from.")


def _precision(*tensors: Tensor) -> torch.dtype:
    """The tensors' common type, at least float32: sums over many samples overflow or stall in half precision."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def _to_distance(cosine: Tensor) -> Tensor:
    """Map cosines from 1 .. -1 to distances from 0 .. 1, rounding errors cut off."""
    return (0.5 * (1 - cosine)).clamp(0, 1)


def _inverse_lengths(samples: Tensor) -> Tensor:
    """1 / length of each sample (n, d), shape (n,)."""
    lengths: Tensor = torch.linalg.vector_norm(samples, dim=1)
    return lengths.clamp_min(SHORTEST).reciprocal()


def _class_sums(samples: Tensor, labels: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    """Sum of the samples (n, d) of each class, each times its weight (n,), shape (M, d); negative labels count none."""
    sums = _sums_by_index if samples.device.type == "cpu" else _sums_by_product
    return sums(samples, labels, weights, num_classes)


def _sums_by_index(samples: Tensor, labels: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    """Every sample is read once, whatever the number of classes. On GPUs such sums have no fixed order."""
    order = labels.argsort(stable=True)[int((labels < 0).sum()) :]
    counts = labels[order].bincount(minlength=num_classes)
    sums: Tensor = embedding_bag(
        order, samples, counts.cumsum(0) - counts, mode="sum", per_sample_weights=weights[order]
    )
    return sums


def _sums_by_product(samples: Tensor, labels: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    """As many operations as the product with the centers, in a fixed order."""
    classes = torch.arange(num_classes, device=labels.device)
    by_class: Tensor = torch.where(classes[:, None] == labels, weights, 0)
    return by_class @ samples


def _among(chosen: Tensor, classes: int) -> Tensor:
    """The number of each class among the chosen ones, -1 for others and, as the last entry, for no class at all."""
    return torch.full((classes + 1,), -1).index_copy(0, chosen.cpu(), torch.arange(len(chosen)))


def _matching_classes(centers: Tensor, initial: Tensor) -> Tensor:
    """For each cluster the class whose initial center it is matched with, at the least total distance, shape (M,)."""
    from scipy.optimize import linear_sum_assignment  # takes a third of a second to import, and few need it

    _, classes = linear_sum_assignment(cosine_distances(centers, initial).cpu().numpy())
    return torch.as_tensor(classes, dtype=torch.int64, device=centers.device)
