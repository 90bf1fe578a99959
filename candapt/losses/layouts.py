"""Where the pairs of samples of every pair of classes are, as tables that batches with the same layout share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

CACHED_LAYOUTS = 16  # class-aware batches have one or a few layouts in a whole training
LARGEST_CACHED = 1_000_000  # entries of the tables of one layout: 4 MB each


@dataclass(frozen=True, eq=False)
class Layout:
    """Tables for a batch of M classes with at most m source and n target samples each.

    The m*m pairs inside a source class, the n*n inside a target class and the m*n across stand side by side in one row
    of length `width` for each of the (M, M) pairs of classes. The distances that they are taken from are a vector: the
    pairs i < j of the union (source, then target) row by row, as `torch.pdist` orders them, then a zero.
    """

    classes: int  # M
    widths: tuple[int, int, int]  # pairs within a source class, within a target class and across
    samples: Tensor  # in the union of two classes, shape (M, M)
    pairs: Tensor  # place of every pair in the vector of distances, shape (M * M * width,); padding has the zero's
    real: Tensor | None  # whether it is a pair rather than padding, shape (M, M, width); None if nothing is padded
    counts: tuple[Tensor, Tensor, Tensor]  # pairs within (M, 1), within (1, M) and across (M, M)
    gradients: Tensor  # place of every two rows (N * N,) among the pairs (M * m*m, M * n*n, M * M * m*n), then a zero

    def sums(self, values: Tensor) -> list[Tensor]:
        """Add up (..., M, M, width) within the source, within the target and across."""
        real = values if self.real is None else values * self.real
        return [part.sum(-1) for part in real.split_with_sizes(self.widths, -1)]

    def collect(self, weights: Tensor) -> Tensor:
        """Weights of the pairs of every pair of classes (layers, M, M, width) as matrices of rows (layers, N, N).

        A pair inside a class has the sum over all classes that this one is compared with.
        """
        source, target, across = weights.split_with_sizes(self.widths, -1)
        parts = [
            source.sum(2).flatten(1),
            target.sum(1).flatten(1),
            across.flatten(1),
            weights.new_zeros(len(weights), 1),
        ]
        rows = round(len(self.gradients) ** 0.5)
        return torch.cat(parts, 1).index_select(1, self.gradients).view(-1, rows, rows)


def make_layout(source: Sequence[int], target: Sequence[int], device: torch.device) -> Layout:
    """The layout of samples of the classes 0 to M - 1, each of which both domains have."""
    size = (1 + max(source)) ** 2 * (1 + len(source) // len(set(source))) ** 2
    make = _make if size > LARGEST_CACHED else _make_once
    return make(tuple(source), tuple(target), device)


def _make(source: tuple[int, ...], target: tuple[int, ...], device: torch.device) -> Layout:
    with torch.device("cpu"), torch.inference_mode(False):
        classes, rows = 1 + max(source), len(source) + len(target)
        source_rows, source_real = _rows_by_class(torch.tensor(source), classes)  # (M, m)
        target_rows, target_real = _rows_by_class(torch.tensor(target), classes)  # (M, n)
        target_rows = target_rows + len(source)
        first, second = _every_pair(source_rows, target_rows)  # (M, M, width)
        real = torch.logical_and(*_every_pair(source_real, target_real))
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        zero = rows * (rows - 1) // 2
        pairs = (low * (2 * rows - low - 1)).div(2, rounding_mode="floor") + high - low - 1
        pairs = pairs.where(real & (low != high), zero)
        m, n = source_real.sum(1), target_real.sum(1)
        return Layout(
            classes,
            (source_rows.shape[1] ** 2, target_rows.shape[1] ** 2, source_rows.shape[1] * target_rows.shape[1]),
            (m[:, None] + n).to(device),
            pairs.flatten().int().to(device),
            None if real.all() else real.to(device),
            ((m * m)[:, None].to(device), (n * n)[None].to(device), (m[:, None] * n).to(device)),
            _places(source_rows, target_rows, source_real, target_real).flatten().int().to(device),
        )


_make_once = lru_cache(CACHED_LAYOUTS)(_make)


def _places(source: Tensor, target: Tensor, source_real: Tensor, target_real: Tensor) -> Tensor:
    """For every two rows of the union, shape (N, N), the place that `Layout.gradients` describes."""
    pairs = [
        (source[:, :, None], source[:, None, :], source_real[:, :, None] & source_real[:, None, :]),
        (target[:, :, None], target[:, None, :], target_real[:, :, None] & target_real[:, None, :]),
        (
            source[:, None, :, None],
            target[None, :, None, :],
            source_real[:, None, :, None] & target_real[None, :, None],
        ),
    ]
    rows = int(source_real.sum() + target_real.sum())
    places = torch.full((rows, rows), sum(real.numel() for _, _, real in pairs))
    start = 0
    for first, second, real in pairs:
        numbers = torch.arange(start, start + real.numel()).view(real.shape)[real]
        first, second = first.expand(real.shape)[real], second.expand(real.shape)[real]
        places[first, second], places[second, first] = numbers, numbers
        start += real.numel()
    return places


def _rows_by_class(labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Row numbers (M, largest count) of each class, and which of them are real; the rest repeat the first."""
    member = labels == torch.arange(classes)[:, None]  # (M, n)
    counts = member.sum(1, keepdim=True)
    largest = int(counts.max())
    rows = member.byte().argsort(dim=1, descending=True, stable=True)[:, :largest]
    real = torch.arange(largest) < counts
    return torch.where(real, rows, rows[:, :1]), real


def _every_pair(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """First and second member of every pair, from (M, m) and (M, n) to (M, M, width)."""
    classes = len(source)
    pairs = [
        (source[:, None, :, None], source[:, None, None, :]),
        (target[None, :, :, None], target[None, :, None, :]),
        (source[:, None, :, None], target[None, :, None, :]),
    ]
    shapes = [(classes, classes, first.shape[2], second.shape[3]) for first, second in pairs]
    firsts = [first.expand(shape).flatten(2) for (first, _), shape in zip(pairs, shapes, strict=True)]
    seconds = [second.expand(shape).flatten(2) for (_, second), shape in zip(pairs, shapes, strict=True)]
    return torch.cat(firsts, -1), torch.cat(seconds, -1)
