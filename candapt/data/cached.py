"""Samples on disk, one array a view."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from candapt.randomness import generator


class CachedSamples:
    """Samples in arrays on disk, read as they are needed."""

    def __init__(self, evaluation: Path, training: Sequence[Path] = ()) -> None:
        """Keep the files, `.npy` arrays of one shape.

        Args:
            evaluation: the evaluation views.
            training: arrays of training views; without any, training sees the evaluation views.
        """
        self.evaluation = evaluation
        self.training = tuple(training)

    def __reduce__(self) -> tuple[type["CachedSamples"], tuple[Path, tuple[Path, ...]]]:
        """Let another process open the files itself: a pickled memory map would be a copy of all of it."""
        return type(self), (self.evaluation, self.training)

    @cached_property
    def arrays(self) -> dict[Path, np.ndarray[Any, Any]]:
        """The arrays, mapped into memory."""
        return {path: np.load(path, mmap_mode="r", allow_pickle=False) for path in (self.evaluation, *self.training)}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.arrays[self.evaluation].shape[1:])

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.arrays[self.evaluation])

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The samples at `indices`; with a seed, each in one of its training views, drawn by the seed."""
        if seed is None or not self.training:
            return self._rows(self.evaluation, indices)
        drawn = torch.randint(len(self.training), (len(indices),), generator=generator(seed, "cached view"))
        samples = torch.empty(len(indices), *self.shape)
        for view, path in enumerate(self.training):
            samples[drawn == view] = self._rows(path, indices[drawn == view])
        return samples

    def _rows(self, path: Path, indices: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.arrays[path][indices.numpy()])).float()
