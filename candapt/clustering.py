"""Pseudo-labels by spherical k-means, as in CAN (Kang et al., CVPR 2019, section "Optimizing CAN")."""

from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from candapt.errors import UserError

CHUNK_SIZE = 4096
"""Samples looked at together: 32 MB of float32 features of size 2048."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """Target samples with the class of the center they are nearest to.

    The filters return a new object in which fewer samples are kept; they can be chained, each one looks only at the
    samples the one before it kept.
    """

    labels: Tensor
    """Class of each sample, shape (n,), int64."""
    distances: Tensor
    """Cosine distance of each sample to the center of its class, shape (n,), between 0 and 1."""
    centers: Tensor
    """Center of each class, shape (M, d); only its direction has a meaning."""
    kept: Tensor
    """Whether a sample passed all filters so far, shape (n,), bool."""
    steps: int
    """How often the centers were updated."""

    def within(self, max_distance: float) -> "Clusters":
        """Keep samples nearer to their center than `max_distance` (D0 in the paper)."""
        return replace(self, kept=self.kept & (self.distances < max_distance))

    def at_least(self, min_samples: int) -> "Clusters":
        """Keep classes with `min_samples` kept samples or more.

        The paper writes "more than N0", the authors' code has "N0 or more": this follows the code.
        """
        large = self._kept_counts() >= min_samples  # (M,)
        return replace(self, kept=self.kept & large[self.labels])

    def closest(self, share: float, *, least: int = 1) -> "Clusters":
        """Keep this share of each cluster, the samples nearest to its center.

        The number is rounded to the nearest whole one and never below `least`; of equally distant samples the first
        come first. Unlike `within`, this adapts to how wide each cluster is.
        """
        if not 0 <= share <= 1:
            raise UserError(f"The share of a cluster to keep is {share}, but must be between 0 and 1.")
        counts = self._kept_counts()
        quotas = (counts * share).round().clamp_min(least)  # (M,)
        nearest_first = self.distances.argsort(stable=True)
        nearest_first = nearest_first[self.kept[nearest_first]]
        order = nearest_first[self.labels[nearest_first].argsort(stable=True)]  # by class, then by distance
        labels = self.labels[order]
        ranks = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[labels]
        kept = torch.zeros_like(self.kept)
        kept[order] = ranks < quotas[labels]
        return replace(self, kept=kept)

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
    features: Tensor,
    initial_centers: Tensor,
    *,
    max_steps: int = 100,
    tolerance: float = 0.005,
    unit: bool = True,
    align: bool = False,
    chunk_size: int = CHUNK_SIZE,
) -> Clusters:
    """Cluster by direction, starting from one center per class so that a cluster's number is its class.

    The result is deterministic and all work is done a chunk of samples at a time, so the features are the only large
    thing in memory. Half precision features are computed with in float32.

    Args:
        features: samples to cluster, shape (n, d).
        initial_centers: where each class starts, shape (M, d): in CAN the centers of the source classes.
        max_steps: largest number of center updates; 0 labels samples by the nearest initial center.
        tolerance: stop once the centers' mean cosine distance to where they were is no more than this. The default is
            the authors'; 0 goes on until nothing moves.
        unit: sum unit vectors, as the paper writes. If False, sum the features themselves as the authors' code does:
            long features then pull harder.
        align: match the final centers with the initial ones by the Hungarian method and rename the clusters after it.
        chunk_size: samples looked at together; bounds memory and does not change the result.

    Returns:
        The clusters with every sample kept. A cluster without a sample has its initial center.
    """
    _check(features, initial_centers)
    initial = initial_centers.to(features.device, _precision(features, initial_centers))
    centers, steps = initial, 0
    while steps < max_steps:
        previous, steps = centers, steps + 1
        centers = _update(features, previous, initial, unit, chunk_size)
        if not center_shift(previous, centers) > tolerance:  # also ends at NaN, which is reported below
            break
    labels, distances = _assign(features, centers, chunk_size)
    if align:
        classes = _matching_classes(centers, initial)
        labels, centers = classes[labels], torch.empty_like(centers).index_copy_(0, classes, centers)
    return Clusters(labels, distances, centers, torch.ones_like(labels, dtype=torch.bool), steps)


def class_centers(features: Tensor, labels: Tensor, num_classes: int, *, unit: bool = True) -> Tensor:
    """Sum of each class's unit vectors, or with `unit=False` of its features.

    Args:
        features: shape (n, d).
        labels: class of each sample, shape (n,); samples with a negative label belong to none.
        num_classes: number of classes M.
        unit: whether to divide each sample by its length first.

    Returns:
        Centers, shape (M, d), in float32 or better; zeros for a class without a sample.
    """
    if len(labels) != len(features):
        raise UserError(f"There are {len(features)} features but {len(labels)} labels: give one label per sample.")
    if len(labels) and int(labels.max()) >= num_classes:
        raise UserError(f"Label {int(labels.max())} does not fit {num_classes} classes: labels count from 0.")
    precision = _precision(features)
    centers = features.new_zeros(num_classes, features.shape[1], dtype=precision)
    labels = labels.to(features.device)
    for chunk, chunk_labels in zip(torch.split(features, CHUNK_SIZE), torch.split(labels, CHUNK_SIZE), strict=True):
        samples = chunk.to(precision)
        centers += _class_sums(normalize(samples) if unit else samples, chunk_labels, num_classes)
    return centers


def cosine_distances(a: Tensor, b: Tensor) -> Tensor:
    """Half of one minus the cosine between every row of `a` (n, d) and of `b` (m, d), shape (n, m).

    A row of zeros has no direction: its distance to everything is one half.

    >>> cosine_distances(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]))
    tensor([[0.0000, 0.5000, 1.0000]])
    """
    precision = _precision(a, b)
    return _to_distance(normalize(a.to(precision)) @ normalize(b.to(precision)).T)


def label_change(previous: Tensor, current: Tensor) -> float:
    """Share of samples whose label is another than before; both of shape (n,)."""
    if previous.shape != current.shape:
        raise UserError(f"{len(previous)} and {len(current)} labels cannot be compared: use those of the same samples.")
    if not len(current):
        return 0.0
    return float((previous.to(current.device) != current).float().mean())


def center_shift(previous: Tensor, current: Tensor) -> float:
    """Mean cosine distance between each center and the one of the same class before; both of shape (M, d).

    A center that is exactly where it was has not moved, even if it is zero and so has no direction.
    """
    if previous.shape != current.shape:
        shapes = f"{tuple(previous.shape)} and {tuple(current.shape)}"
        raise UserError(f"Centers of shapes {shapes} cannot be compared: use the same classes and features.")
    precision = _precision(previous, current)
    before, now = (normalize(centers.to(current.device, precision)) for centers in (previous, current))
    distances = _to_distance((before * now).sum(dim=1))
    return float(distances.where((before != now).any(dim=1), 0).mean())


def _check(features: Tensor, initial_centers: Tensor) -> None:
    """Refuse shapes that do not fit and centers that have no direction."""
    if features.ndim != 2 or initial_centers.ndim != 2 or features.shape[1] != initial_centers.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(initial_centers.shape)}"
        raise UserError(f"Features and centers of shapes {shapes} do not fit: give (n, d) and (classes, d).")
    if not len(initial_centers):
        raise UserError("There is no center to start from: give one per class.")
    if not initial_centers.isfinite().all():
        raise UserError("The initial centers hold infinite values or NaN: look at the features they come from.")


def _precision(*tensors: Tensor) -> torch.dtype:
    """The tensors' common type, at least float32: sums over many samples overflow or stall in half precision."""
    precision = torch.float32
    for tensor in tensors:
        precision = torch.promote_types(precision, tensor.dtype)
    return precision


def _to_distance(cosine: Tensor) -> Tensor:
    """Map cosines from 1 .. -1 to distances from 0 .. 1, rounding errors cut off."""
    return (0.5 * (1 - cosine)).clamp(0, 1)


def _nearest(samples: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Index and cosine of the nearest of M unit vectors (M, d) for each unit vector of (n, d)."""
    cosine, labels = (samples @ directions.T).max(dim=1)  # the first of equals
    return labels, cosine


def _class_sums(samples: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Sum of the samples (n, d) of each class, shape (M, d); negative labels belong to none."""
    classes = torch.arange(num_classes, device=labels.device)
    # A product, since index_add_ adds in no fixed order on GPUs.
    return (classes[:, None] == labels).to(samples.dtype) @ samples


def _update(features: Tensor, centers: Tensor, initial: Tensor, unit: bool, chunk_size: int) -> Tensor:
    """Centers of the samples nearest to each of the present ones, shape (M, d)."""
    directions = normalize(centers)
    sums = torch.zeros_like(centers)
    for chunk in torch.split(features, chunk_size):
        samples = chunk.to(centers.dtype)
        units = normalize(samples)
        labels, _ = _nearest(units, directions)
        sums += _class_sums(units if unit else samples, labels, len(centers))
    # A sum of zeros is an empty cluster, or one that holds nothing but features without a direction.
    return torch.where(sums.any(dim=1, keepdim=True), sums, initial)


def _assign(features: Tensor, centers: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
    """Label of each sample and its distance to that center, both of shape (n,)."""
    directions = normalize(centers)
    labels = features.new_empty(len(features), dtype=torch.int64)
    cosines = features.new_empty(len(features), dtype=centers.dtype)
    # Written in place: small results kept from every chunk would lie between the large ones and fragment memory.
    for start in range(0, len(features), chunk_size):
        rows = slice(start, start + chunk_size)
        labels[rows], cosines[rows] = _nearest(normalize(features[rows].to(centers.dtype)), directions)
    if not cosines.isfinite().all():
        raise UserError("The features to cluster hold infinite values or NaN: check the data and the learning rate.")
    return labels, _to_distance(cosines)


def _matching_classes(centers: Tensor, initial: Tensor) -> Tensor:
    """For each cluster the class whose initial center it is matched with, at the least total distance, shape (M,)."""
    _, classes = linear_sum_assignment(cosine_distances(centers, initial).cpu().numpy())
    return torch.as_tensor(classes, dtype=torch.int64, device=centers.device)
