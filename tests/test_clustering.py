"""Spherical k-means against plain loops, and the properties it must have."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from functools import partial
from itertools import permutations
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from candapt import clustering
from candapt.clustering import (
    MANY_CENTERS,
    Clusters,
    center_shift,
    class_centers,
    cosine_distances,
    label_change,
    spherical_kmeans,
)

seeds = st.integers(0, 2**31)
fast = settings(derandomize=True, deadline=None, max_examples=25)


def blobs(seed: int, samples: int = 60, classes: int = 4, dim: int = 6, spread: float = 0.8) -> tuple[Tensor, Tensor]:
    """Features around random directions, of very different lengths, and shifted centers to start from."""
    random = torch.Generator().manual_seed(seed)
    directions = torch.randn(classes, dim, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (samples,), generator=random)
    noise = torch.randn(samples, dim, generator=random, dtype=torch.float64)
    lengths = torch.rand(samples, 1, generator=random, dtype=torch.float64) * 10 + 0.1
    shift = torch.randn(classes, dim, generator=random, dtype=torch.float64)
    return (directions[labels] + spread * noise) * lengths, directions + 0.5 * shift


def orthogonal(seed: int, dim: int) -> Tensor:
    """A random rotation or reflection."""
    matrix = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rotation: Tensor = torch.linalg.qr(matrix).Q
    return rotation


def slow_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine dissimilarity of two vectors, as the paper defines it."""
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return 0.5 * (1 - (sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0))


def slow_kmeans(
    features: np.ndarray, initial: np.ndarray, *, max_steps: int, tolerance: float, unit: bool
) -> tuple[list[int], list[float], np.ndarray, int]:
    """Spherical k-means one sample and one center at a time."""
    centers, steps = [center.copy() for center in initial], 0

    def nearest(sample: np.ndarray) -> int:
        distances = [slow_distance(sample, center) for center in centers]
        return distances.index(min(distances))

    while steps < max_steps:
        steps += 1
        members: list[list[np.ndarray]] = [[] for _ in initial]
        for sample in features:
            members[nearest(sample)].append(sample / np.linalg.norm(sample) if unit else sample)
        previous, centers = centers, [sum(own) if own else start for own, start in zip(members, initial, strict=True)]
        moved = [slow_distance(old, new) for old, new in zip(previous, centers, strict=True)]
        if sum(moved) / len(moved) < tolerance:
            break
    labels = [nearest(sample) for sample in features]
    distances = [slow_distance(sample, centers[label]) for sample, label in zip(features, labels, strict=True)]
    return labels, distances, np.stack(centers), steps


def clusters_of(labels: list[int], distances: list[float], classes: int = 4) -> Clusters:
    """Clusters with the given assignment, all kept."""
    kept = torch.ones(len(labels), dtype=torch.bool)
    return Clusters(torch.tensor(labels, dtype=torch.int64), torch.tensor(distances), torch.eye(classes), kept, steps=1)


@fast
@given(seed=seeds, unit=st.booleans(), tolerance=st.sampled_from([0.005, 1e-9]), max_steps=st.sampled_from([1, 2, 30]))
def test_kmeans_equals_loops(seed: int, unit: bool, tolerance: float, max_steps: int) -> None:
    features, initial = blobs(seed)
    clusters = spherical_kmeans(features, initial, max_steps=max_steps, tolerance=tolerance, unit=unit)
    labels, distances, centers, steps = slow_kmeans(
        features.numpy(), initial.numpy(), max_steps=max_steps, tolerance=tolerance, unit=unit
    )
    assert clusters.labels.tolist() == labels
    assert clusters.steps == steps
    np.testing.assert_allclose(clusters.distances, distances, atol=1e-12)
    np.testing.assert_allclose(clusters.centers, centers, rtol=1e-10)
    assert clusters.kept.dtype == torch.bool
    assert clusters.kept.all()


@given(seed=st.integers(0, 10_000), unit=st.booleans(), max_steps=st.integers(0, 6))
@settings(derandomize=True, deadline=None, max_examples=10)
def test_samples_whose_center_leads_need_no_other(seed: int, unit: bool, max_steps: int) -> None:
    random = torch.Generator().manual_seed(seed)
    centers = torch.randn(MANY_CENTERS, 24, generator=random)
    features = centers.repeat(6, 1) + 0.5 * torch.randn(6 * MANY_CENTERS, 24, generator=random)
    start = centers + 0.3 * torch.randn(centers.shape, generator=random)
    found = spherical_kmeans(features, start, max_steps=max_steps, tolerance=0, unit=unit, chunk_size=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("candapt.clustering.MANY_CENTERS", 1 + MANY_CENTERS)
        plain = spherical_kmeans(features, start, max_steps=max_steps, tolerance=0, unit=unit, chunk_size=50)
    assert torch.equal(found.labels, plain.labels)
    assert torch.allclose(found.centers, plain.centers, atol=1e-5)
    assert torch.allclose(found.distances, plain.distances, atol=1e-6)


def test_unit_and_raw_sums_differ() -> None:
    features, initial = blobs(3)
    unit, raw = (spherical_kmeans(features, initial, unit=unit) for unit in (True, False))
    assert center_shift(unit.centers, raw.centers) > 1e-4


@fast
@given(seed=seeds, other=seeds)
def test_rotation_changes_no_label(seed: int, other: int) -> None:
    features, initial = blobs(seed)
    rotation = orthogonal(other, features.shape[1])
    plain, rotated = spherical_kmeans(features, initial), spherical_kmeans(features @ rotation, initial @ rotation)
    assert torch.equal(plain.labels, rotated.labels)
    torch.testing.assert_close(plain.centers @ rotation, rotated.centers)


@fast
@given(seed=seeds)
def test_length_of_a_sample_does_not_matter(seed: int) -> None:
    features, initial = blobs(seed)
    lengths = torch.rand(60, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 100 + 0.01
    plain, scaled = spherical_kmeans(features, initial), spherical_kmeans(features * lengths, initial * 7)
    assert torch.equal(plain.labels, scaled.labels)
    torch.testing.assert_close(plain.distances, scaled.distances)


@fast
@given(seed=seeds, unit=st.booleans())
def test_order_of_samples_does_not_matter(seed: int, unit: bool) -> None:
    features, initial = blobs(seed)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    plain, shuffled = (spherical_kmeans(x, initial, unit=unit) for x in (features, features[order]))
    assert torch.equal(plain.labels[order], shuffled.labels)
    torch.testing.assert_close(plain.centers, shuffled.centers)


@fast
@given(seed=seeds, align=st.booleans())
def test_order_of_centers_names_the_clusters(seed: int, align: bool) -> None:
    features, initial = blobs(seed)
    order = torch.randperm(len(initial), generator=torch.Generator().manual_seed(seed))
    plain, shuffled = (spherical_kmeans(features, x, align=align) for x in (initial, initial[order]))
    assert torch.equal(plain.labels, order[shuffled.labels])
    torch.testing.assert_close(plain.centers[order], shuffled.centers)


@fast
@given(seed=seeds, unit=st.booleans(), align=st.booleans())
def test_labels_are_the_nearest_final_centers(seed: int, unit: bool, align: bool) -> None:
    features, initial = blobs(seed)
    clusters = spherical_kmeans(features, initial, unit=unit, align=align)
    distances = cosine_distances(features, clusters.centers)
    assert torch.equal(clusters.labels, distances.argmin(dim=1))
    torch.testing.assert_close(clusters.distances, distances.amin(dim=1))


@fast
@given(seed=seeds, chunk_size=st.sampled_from([1, 7, 59, 60, 61]), unit=st.booleans())
def test_chunks_do_not_matter(seed: int, chunk_size: int, unit: bool) -> None:
    features, initial = blobs(seed)
    whole = spherical_kmeans(features, initial, unit=unit)
    pieces = spherical_kmeans(features, initial, unit=unit, chunk_size=chunk_size)
    assert torch.equal(whole.labels, pieces.labels)
    assert whole.steps == pieces.steps
    torch.testing.assert_close(whole.centers, pieces.centers)
    torch.testing.assert_close(whole.distances, pieces.distances)


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the size of the largest tensor made, views of `given` aside."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given, self.size = given.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() != self.given:
                self.size = max(self.size, value.numel())
        return result


@pytest.mark.parametrize("unit", [True, False])
def test_memory_is_bounded(unit: bool) -> None:
    features, initial = blobs(0, samples=2000)
    with LargestTensor(features) as largest:
        spherical_kmeans(features, initial, unit=unit, align=True, chunk_size=64)
    # One number per sample is the result; neither a copy (n, d) nor all distances (n, M) are made.
    assert largest.size == 2000


class OnDisk:
    """Samples of which no more than a chunk is ever asked for, as arrays or tensors."""

    def __init__(self, features: Tensor, chunk_size: int, *, arrays: bool = True) -> None:
        self.features, self.chunk_size, self.arrays, self.reads = features, chunk_size, arrays, 0
        self.shape = tuple(features.shape)

    def __getitem__(self, rows: slice) -> Any:
        part = self.features[rows]
        assert len(part) <= self.chunk_size
        self.reads += len(part)
        return part.numpy() if self.arrays else part


@pytest.mark.parametrize("arrays", [True, False])
def test_samples_are_read_chunk_by_chunk_once_a_step(arrays: bool) -> None:
    features, initial = blobs(1, samples=100)
    features = features.half()
    lazy = OnDisk(features, 16, arrays=arrays)
    clusters = spherical_kmeans(lazy, initial.float(), max_steps=3, tolerance=-1.0, chunk_size=16)
    whole = spherical_kmeans(features, initial.float(), max_steps=3, tolerance=-1.0, chunk_size=16)
    assert lazy.reads == 4 * 100  # three updates and the labels
    assert torch.equal(clusters.labels, whole.labels)
    assert torch.equal(clusters.centers, whole.centers)
    assert clusters.centers.dtype == torch.float32
    labels = torch.arange(100) % 4
    assert torch.equal(class_centers(OnDisk(features, 1024), labels, 4), class_centers(features, labels, 4))


@pytest.mark.filterwarnings("error")
def test_a_read_only_file_of_half_precision(tmp_path: Path) -> None:
    features, initial = blobs(2)
    path = tmp_path / "features.npy"
    np.save(path, features.half().numpy())
    mapped = np.load(path, mmap_mode="r")
    clusters = spherical_kmeans(mapped, initial.float())
    expected = spherical_kmeans(features.half(), initial.float())
    assert torch.equal(clusters.labels, expected.labels)
    assert torch.equal(clusters.centers, expected.centers)


class Together:
    """Processes in turn, one thread each: the sum of what each brings, added in the order of the processes."""

    def __init__(self, processes: int) -> None:
        self.given: list[Tensor | None] = [None] * processes
        self.barrier = Barrier(processes, timeout=60)

    def reduce(self, process: int, tensor: Tensor) -> Tensor:
        self.given[process] = tensor.clone()
        self.barrier.wait()
        total = sum(each for each in self.given if each is not None)
        self.barrier.wait()
        assert isinstance(total, Tensor)
        return total


def in_processes(processes: int, work: Callable[[int, Callable[[Tensor], Tensor]], Any]) -> list[Any]:
    together = Together(processes)
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(lambda process: work(process, partial(together.reduce, process)), range(processes)))


@settings(derandomize=True, deadline=None, max_examples=10)
@given(seed=seeds, unit=st.booleans(), align=st.booleans(), known=st.booleans(), some=st.booleans())
def test_processes_with_a_share_each_agree_with_one(
    seed: int, unit: bool, align: bool, known: bool, some: bool
) -> None:
    features, initial = blobs(seed)
    labels = torch.arange(60) % 4
    anchors = torch.where(torch.arange(60) % 7 == 0, labels, -1) if known else None
    present = torch.tensor([True, True, False, True]) if some else None
    shares = [slice(0, 25), slice(25, 25), slice(25, 60)]  # one process has nothing

    def share(process: int, reduce: Callable[[Tensor], Tensor]) -> tuple[Tensor, Clusters]:
        rows = shares[process]
        own = None if anchors is None else anchors[rows]
        means = class_centers(features[rows], labels[rows], 4, unit=unit, reduce=reduce)
        found = spherical_kmeans(
            features[rows], initial, unit=unit, align=align, anchors=own, present=present, reduce=reduce
        )
        return means, found

    parts = in_processes(3, share)
    whole = spherical_kmeans(features, initial, unit=unit, align=align, anchors=anchors, present=present)
    assert torch.equal(torch.cat([clusters.labels for _, clusters in parts]), whole.labels)
    for means, clusters in parts:
        assert torch.equal(clusters.centers, parts[0][1].centers)
        assert clusters.steps == whole.steps
        torch.testing.assert_close(clusters.centers, whole.centers)
        torch.testing.assert_close(means, class_centers(features, labels, 4, unit=unit))


def test_ties_go_to_the_first_center_in_every_process() -> None:
    features = torch.tensor([[1.0, 1.0], [2.0, 2.0], [-1.0, 0.0], [1.0, 1.0]])
    initial = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])

    def share(process: int, reduce: Callable[[Tensor], Tensor]) -> Clusters:
        return spherical_kmeans(features[2 * process : 2 * process + 2], initial, max_steps=0, reduce=reduce)

    assert spherical_kmeans(features, initial, max_steps=0).labels.tolist() == [0, 0, 1, 0]
    assert [clusters.labels.tolist() for clusters in in_processes(2, share)] == [[0, 0], [1, 0]]


def test_sums_by_index_and_by_a_product_are_the_same() -> None:
    features, _ = blobs(3)
    labels, weights = torch.arange(60) % 5 - 1, torch.rand(60, dtype=torch.float64)
    expected = torch.zeros(6, 6, dtype=torch.float64)
    for sample, label, weight in zip(features, labels.tolist(), weights, strict=True):
        if label >= 0:
            expected[label] += weight * sample
    for sums in (clustering._sums_by_index, clustering._sums_by_product):
        torch.testing.assert_close(sums(features, labels, weights, 6), expected)


def test_class_centers_of_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    features, _ = blobs(1)
    labels = torch.arange(60) % 5 - 1
    whole = class_centers(features, labels, 4)
    monkeypatch.setattr(clustering, "CHUNK_SIZE", 7)
    torch.testing.assert_close(class_centers(features, labels, 4), whole)


@pytest.mark.parametrize("unit", [True, False])
def test_class_centers_equal_loops(unit: bool) -> None:
    features, _ = blobs(2)
    labels = torch.arange(60) % 4 - 1  # -1 belongs to no class, and class 3 is empty
    expected = torch.zeros(4, 6, dtype=torch.float64)
    for sample, label in zip(features, labels.tolist(), strict=True):
        if label >= 0:
            expected[label] += sample / sample.norm() if unit else sample
    torch.testing.assert_close(class_centers(features, labels, 4, unit=unit), expected)


def test_centers_of_a_known_case() -> None:
    features = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, -5.0]])
    labels = torch.tensor([0, 0, 1])
    assert class_centers(features, labels, 2).tolist() == [[1.0, 1.0], [0.0, -1.0]]
    assert class_centers(features, labels, 2, unit=False).tolist() == [[3.0, 2.0], [0.0, -5.0]]


def test_empty_cluster_keeps_its_initial_center() -> None:
    features = torch.tensor([[1.0, 0.1], [1.0, -0.1], [2.0, 0.3]])
    initial = torch.tensor([[1.0, 0.5], [-1.0, 0.0]])
    clusters = spherical_kmeans(features, initial)
    assert clusters.labels.tolist() == [0, 0, 0]
    assert clusters.centers[1].tolist() == [-1.0, 0.0]
    assert clusters.kept_classes.tolist() == [0]


@pytest.mark.parametrize(("seed", "lost"), [(72, 3), (190, 2), (213, 3), (426, 0)])
def test_cluster_that_loses_its_samples_goes_back(seed: int, lost: int) -> None:
    random = np.random.RandomState(seed)  # found by search; its numbers never change between versions
    features, initial = random.randn(8, 3), random.randn(4, 3)
    start, end = (
        spherical_kmeans(torch.tensor(features), torch.tensor(initial), max_steps=steps, tolerance=0.0)
        for steps in (0, 50)
    )
    assert lost in start.kept_classes.tolist()
    assert lost not in end.kept_classes.tolist()
    assert end.centers[lost].tolist() == initial[lost].tolist()
    labels, _, centers, _ = slow_kmeans(features, initial, max_steps=50, tolerance=0.0, unit=True)
    assert end.labels.tolist() == labels
    np.testing.assert_allclose(end.centers, centers)


def test_zero_features_give_no_nan() -> None:
    features, initial = blobs(0)
    features[::5] = 0
    clusters = spherical_kmeans(features, initial)
    assert clusters.distances.isfinite().all()
    assert clusters.centers.isfinite().all()
    assert torch.equal(clusters.distances[::5], torch.full((12,), 0.5, dtype=torch.float64))


def test_only_zero_features_leave_the_centers() -> None:
    initial = torch.eye(3)
    clusters = spherical_kmeans(torch.zeros(5, 3), initial)
    assert torch.equal(clusters.centers, initial)
    assert clusters.steps == 1


def test_class_without_a_source_sample_does_not_stop_convergence() -> None:
    features, initial = blobs(0)
    initial = torch.cat([initial, torch.zeros(1, 6, dtype=torch.float64)])
    positive = features.abs()  # after a ReLU a zero center wins nothing
    assert spherical_kmeans(positive, initial.abs(), tolerance=0.0).steps < 100


def test_no_samples() -> None:
    clusters = spherical_kmeans(torch.zeros(0, 3), torch.eye(3)).within(0.1).at_least(1).closest(0.5)
    assert clusters.labels.shape == (0,)
    assert clusters.labels.dtype == torch.int64
    assert clusters.kept_classes.tolist() == []


def test_no_steps_label_by_the_initial_centers() -> None:
    features, initial = blobs(4)
    clusters = spherical_kmeans(features, initial, max_steps=0)
    assert clusters.steps == 0
    assert torch.equal(clusters.labels, cosine_distances(features, initial).argmin(dim=1))


def test_zero_tolerance_reaches_a_fixed_point() -> None:
    features, initial = blobs(5)
    clusters = spherical_kmeans(features, initial, tolerance=0.0)
    again = spherical_kmeans(features, clusters.centers, max_steps=1)
    assert 1 <= clusters.steps < 100
    assert torch.equal(clusters.labels, again.labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    features, initial = (tensor.to(dtype) for tensor in blobs(6, spread=0.2))
    clusters = spherical_kmeans(features, initial)
    expected = spherical_kmeans(features.double(), initial.double())
    assert clusters.centers.dtype == clusters.distances.dtype == torch.float32
    assert torch.equal(clusters.labels, expected.labels)
    torch.testing.assert_close(clusters.centers, expected.centers.float())
    torch.testing.assert_close(clusters.distances, expected.distances.float(), atol=1e-6, rtol=0)


def test_half_precision_sums_do_not_overflow() -> None:
    features = torch.full((40, 8), 6e4, dtype=torch.float16)
    centers = class_centers(features, torch.zeros(40, dtype=torch.int64), 1, unit=False)
    assert centers.isfinite().all()
    assert spherical_kmeans(features, centers, unit=False).distances.max() < 1e-6


def test_double_precision_is_kept() -> None:
    features, initial = blobs(7)
    assert spherical_kmeans(features, initial).centers.dtype == torch.float64
    assert class_centers(features, torch.zeros(60, dtype=torch.int64), 1).dtype == torch.float64


def test_no_gradient_is_recorded() -> None:
    features, initial = blobs(0)
    clusters = spherical_kmeans(features.requires_grad_(), initial.requires_grad_())
    assert not clusters.centers.requires_grad
    assert not clusters.distances.requires_grad


def test_the_same_input_gives_the_same_output() -> None:
    features, initial = blobs(8, samples=5000)
    first, second = (spherical_kmeans(features.float(), initial.float()) for _ in range(2))
    for name in ("labels", "distances", "centers"):
        assert torch.equal(getattr(first, name), getattr(second, name))


def test_aligned_centers_belong_to_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    features, initial = blobs(9, classes=3)
    plain = spherical_kmeans(features, initial)
    monkeypatch.setattr(clustering, "_matching_classes", lambda *_: torch.tensor([1, 2, 0]))
    aligned = spherical_kmeans(features, initial, align=True)
    assert torch.equal(aligned.labels, torch.tensor([1, 2, 0])[plain.labels])
    assert torch.equal(aligned.centers[torch.tensor([1, 2, 0])], plain.centers)
    # The same permutation applied the wrong way round would fail here.
    assert torch.equal(aligned.labels, cosine_distances(features, aligned.centers).argmin(dim=1))
    assert torch.equal(aligned.distances, plain.distances)


def cycle_case() -> tuple[Tensor, Tensor]:
    """A data set found by search: after several steps each cluster matches the initial center of another class."""
    random = np.random.RandomState(696)  # its numbers never change between versions
    features = random.randn(30, 3)
    return torch.tensor(features), torch.tensor(random.randn(1, 3) + 0.1 * random.randn(3, 3))


def test_alignment_follows_a_cycle_of_three() -> None:
    features, initial = cycle_case()
    plain, aligned = (spherical_kmeans(features, initial, tolerance=0.0, align=align) for align in (False, True))
    cost = cosine_distances(plain.centers, initial)
    best = min(permutations(range(3)), key=lambda order: sum(cost[i, order[i]] for i in range(3)))
    assert best in {(1, 2, 0), (2, 0, 1)}  # not its own inverse: the wrong direction would show
    assert aligned.labels.tolist() == [best[label] for label in plain.labels.tolist()]
    assert torch.equal(aligned.labels, cosine_distances(features, aligned.centers).argmin(dim=1))
    assert torch.equal(aligned.distances, plain.distances)
    assert center_shift(initial, aligned.centers) < center_shift(initial, plain.centers)


def test_cosine_distances_equal_loops() -> None:
    a, b = blobs(10, samples=5)
    a[2] = 0
    expected = [[slow_distance(x, y) for y in b.numpy()] for x in a.numpy()]
    np.testing.assert_allclose(cosine_distances(a, b), expected, atol=1e-12)


def test_cosine_distances_stay_between_0_and_1() -> None:
    a = torch.randn(500, 16, generator=torch.Generator().manual_seed(0))
    distances = cosine_distances(a, torch.cat([a, -a]))
    assert distances.min() >= 0
    assert distances.max() <= 1


def test_within_is_strict() -> None:
    clusters = clusters_of([0, 0, 1], [0.25, 0.125, 0.5]).within(0.25)
    assert clusters.kept.tolist() == [False, True, False]
    assert clusters.kept_labels.tolist() == [-1, 0, -1]
    assert clusters.kept_classes.tolist() == [0]


def test_at_least_counts_kept_samples_only() -> None:
    clusters = clusters_of([0, 0, 0, 2, 2, 2, 3], [0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1])
    assert clusters.at_least(3).kept_classes.tolist() == [0, 2]
    assert clusters.within(0.5).at_least(3).kept_classes.tolist() == [2]
    assert clusters.within(0.5).at_least(3).kept_labels.tolist() == [-1, -1, -1, 2, 2, 2, -1]
    assert clusters.at_least(4).kept_classes.tolist() == []
    assert clusters.within(0.0).at_least(1).closest(0.5).kept_labels.tolist() == [-1] * 7
    assert clusters.kept.all()  # a filter leaves what it is called on as it was


def slow_closest(clusters: Clusters, share: float) -> list[bool]:
    """Sort every cluster and cut it."""
    kept = [False] * len(clusters.labels)
    for label in range(len(clusters.centers)):
        own = [i for i in range(len(kept)) if clusters.labels[i] == label and clusters.kept[i]]
        own.sort(key=lambda i: (float(clusters.distances[i]), i))
        for i in own[: max(1, round(share * len(own)))]:
            kept[i] = True
    return kept


@fast
@given(
    samples=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.1, 0.2, 0.3, 0.6])), max_size=40),
    share=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
    first=st.booleans(),
)
def test_closest_equals_loops(samples: list[tuple[int, float]], share: float, first: bool) -> None:
    clusters = clusters_of([label for label, _ in samples], [distance for _, distance in samples])
    clusters = clusters.within(0.5) if first else clusters
    assert clusters.closest(share).kept.tolist() == slow_closest(clusters, share)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_closest_refuses_what_is_no_share(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        clusters_of([0], [0.1]).closest(share)


def test_label_change() -> None:
    assert label_change(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 3, 2])) == 0.5
    assert label_change(torch.tensor([0, 1]), torch.tensor([0, 1])) == 0.0
    assert label_change(torch.empty(0), torch.empty(0)) == 0.0
    with pytest.raises(ValueError, match="same samples"):
        label_change(torch.zeros(1), torch.zeros(4))


def test_center_shift() -> None:
    before = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert center_shift(before, before * 3) == pytest.approx(0.0, abs=1e-7)
    assert center_shift(before, torch.tensor([[0.0, 5.0], [0.0, 1.0]])) == pytest.approx(0.25)
    assert center_shift(before, -before) == pytest.approx(1.0)
    assert center_shift(torch.zeros(2, 2), torch.zeros(2, 2)) == 0.0
    before, now = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert center_shift(before, now) == 0.25  # the first has no direction, but stays
    before = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    with pytest.raises(ValueError, match="same classes"):
        center_shift(before, before[:1])


def refused(function: Any, *arguments: Any) -> str:
    """What the error says."""
    with pytest.raises(ValueError, match=r"\.$") as caught:
        function(*arguments)
    return str(caught.value)


def test_shapes_that_do_not_fit_are_refused() -> None:
    row, three, four = torch.zeros(3), torch.zeros(5, 3), torch.zeros(2, 4)
    for features, centers in ((three, four), (row, three), (three, row), (row, row)):
        shapes = f"{tuple(features.shape)} and {tuple(centers.shape)}"
        expected = f"Features and centers of shapes {shapes} do not fit: give (n, d) and (classes, d)."
        assert refused(spherical_kmeans, features, centers) == expected
    assert refused(spherical_kmeans, three, three[:0]) == "There is no center to start from: give one per class."
    wrong = refused(class_centers, three, torch.zeros(4, dtype=torch.int64), 2)
    assert wrong == "There are 5 features but 4 labels: give one label per sample."
    wrong = refused(class_centers, three[:2], torch.tensor([0, 2]), 2)
    assert wrong == "Label 2 does not fit 2 classes: labels count from 0."
    assert refused(label_change, torch.zeros(1), torch.zeros(4)) == (
        "1 and 4 labels cannot be compared: use those of the same samples."
    )
    assert refused(center_shift, three, four) == (
        "Centers of shapes (5, 3) and (2, 4) cannot be compared: use the same classes and features."
    )
    assert refused(clusters_of([0], [0.1]).closest, 1.5) == (
        "The share of a cluster to keep is 1.5, but must be between 0 and 1."
    )


def test_values_that_are_not_finite_are_refused() -> None:
    features, initial = blobs(0)
    assert refused(spherical_kmeans, features, initial * math.inf) == (
        "The initial centers hold infinite values or NaN: check the features they come from."
    )
    features[3, 1] = math.nan
    assert refused(spherical_kmeans, features, initial) == (
        "The features to cluster hold infinite values or NaN: check the data and the learning rate."
    )


def test_the_defaults_are_those_of_the_paper_and_the_authors() -> None:
    features, initial = blobs(11, samples=200, spread=2.0)
    plain = spherical_kmeans(features, initial)
    labels, _, centers, steps = slow_kmeans(
        features.numpy(), initial.numpy(), max_steps=100, tolerance=0.005, unit=True
    )
    assert 1 < plain.steps == steps < spherical_kmeans(features, initial, tolerance=0.0).steps
    assert plain.labels.tolist() == labels
    np.testing.assert_allclose(plain.centers, centers, rtol=1e-10)
    assert spherical_kmeans(features, initial, tolerance=-1.0).steps == 100  # which nothing can reach
    features, initial = cycle_case()
    defaults, aligned = (spherical_kmeans(features, initial, tolerance=0.0, **x) for x in ({}, {"align": True}))
    assert not torch.equal(defaults.labels, aligned.labels)


def test_the_shift_that_is_tolerated_is_tolerated() -> None:
    features, initial = torch.tensor([[0.0, 1.0], [0.0, -1.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    assert center_shift(initial, torch.tensor([[0.0, 1.0], [0.0, -1.0]])) == 0.25
    assert spherical_kmeans(features, initial, tolerance=0.25).steps == 1
    assert spherical_kmeans(features, initial, tolerance=0.2499).steps == 2


def test_of_each_cluster_at_least_one_sample_is_kept_unless_more_are_asked_for() -> None:
    clusters = clusters_of([0, 0, 0, 1], [0.3, 0.1, 0.2, 0.5])
    assert clusters.closest(0.0).kept.tolist() == [False, True, False, True]
    assert clusters.closest(0.0, least=2).kept.tolist() == [False, True, True, True]
    assert clusters.closest(0.0, least=0).kept.tolist() == [False] * 4


def test_labels_count_from_0_to_below_the_number_of_classes() -> None:
    features = torch.eye(3)
    assert class_centers(features, torch.tensor([0, 1, 2]), 3).tolist() == features.tolist()
    assert class_centers(features[:0], torch.zeros(0, dtype=torch.int64), 2).tolist() == [[0.0] * 3] * 2


def test_everything_is_made_where_the_features_are() -> None:
    features, initial = blobs(12)
    labels = torch.arange(60) % 4
    whole = spherical_kmeans(features, initial, align=True)
    centers, kept = class_centers(features, labels, 4), whole.closest(0.5).at_least(2).kept
    with torch.device("meta"):  # whatever does not ask for a device ends there, where it has no values
        again = spherical_kmeans(features, initial, align=True)
        assert torch.equal(again.labels, whole.labels)
        assert torch.equal(again.centers, whole.centers)
        assert torch.equal(class_centers(features, labels, 4), centers)
        assert torch.equal(again.closest(0.5).at_least(2).kept, kept)


def test_clusters_stay_as_they_are() -> None:
    with pytest.raises(FrozenInstanceError):
        clusters_of([0], [0.1]).steps = 2  # type: ignore[misc]
    assert clusters_of([0], [0.1]) != clusters_of([0], [0.1])  # a comparison by value would ask tensors for one bool


def test_mixed_precision_is_raised_to_the_higher() -> None:
    features, initial = blobs(13)
    single = features.float()
    assert cosine_distances(single, initial).dtype == torch.float64
    assert cosine_distances(features.half(), initial.half()).dtype == torch.float32
    assert cosine_distances(features, initial.float()).dtype == torch.float64
    assert spherical_kmeans(single, initial).centers.dtype == torch.float64
    assert spherical_kmeans(features, initial.float()).centers.dtype == torch.float64
    assert center_shift(initial.float(), initial) < 1e-12
    single, moved = initial.float(), initial + 1e-3
    exact = center_shift(single.double(), moved)
    assert center_shift(single, moved) == pytest.approx(exact, abs=1e-12) == center_shift(moved, single)
    before, now = initial.half(), (initial + 0.1).half()
    exact = center_shift(before.double(), now.double())
    assert center_shift(before, now) == pytest.approx(exact, abs=1e-6) == center_shift(before.double(), now)


def test_distances_beyond_rounding_are_cut_off() -> None:
    cosines = torch.tensor([1 + 1e-6, 1.0, 0.0, -1.0, -1 - 1e-6])
    assert clustering._to_distance(cosines).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
