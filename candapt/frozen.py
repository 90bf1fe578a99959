"""Samples as they come out of layers that are not trained."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from candapt.data.domains import Domain, Samples
from candapt.randomness import derive_seed

CHUNK = 32
"""Samples at a time through frozen layers: more are no faster on a CPU, need more memory, and move a bar less often."""
LARGEST = torch.finfo(torch.float16).max


class FrozenSamples:
    """Samples of a domain behind frozen layers, computed whenever they are read; meant to be read in order.

    They are computed in chunks that begin at fixed places, and rounded to half precision: so every reader gets the
    same bits, whether it computes them or finds them in the cache. The next chunk is read while one is computed.
    """

    def __init__(
        self, frozen: nn.Module, samples: Samples, *, seed: int | None = None, dtype: torch.dtype = torch.float16
    ) -> None:
        """Keep the layers and the samples.

        Args:
            frozen: the layers, on the device where they are to compute.
            samples: what goes through them.
            seed: of the training view; None for the evaluation view.
            dtype: to which the results are rounded.
        """
        self.frozen = frozen.eval()
        convert_conv2d_weight_memory_format(frozen, torch.channels_last)  # a tenth less work for a CPU
        self.samples = samples
        self.seed = seed
        self.dtype = dtype
        self.device = next(frozen.parameters()).device
        self._reader = ThreadPoolExecutor(1)
        self._ahead: dict[int, Future[Tensor]] = {}
        self._newest: tuple[int, Tensor] | None = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample behind the layers."""
        return tuple(self._compute(torch.zeros(1, *self.samples.shape)).shape[1:])

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-len(self) // CHUNK)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The samples at `indices` in single precision; the view was chosen before."""
        rows = [self.chunk(index // CHUNK)[index % CHUNK] for index in indices.tolist()]
        return torch.stack(rows).float() if rows else torch.empty(0, *self.shape)

    def chunk(self, number: int) -> Tensor:
        """The rows from `number * CHUNK` on, on the CPU; the newest chunk is kept."""
        if self._newest is None or self._newest[0] != number:
            waiting = self._ahead.pop(number, None) or self._reader.submit(self._read, number)
            self._ahead = {number + 1: self._reader.submit(self._read, number + 1)} if number + 1 < self.chunks else {}
            self._newest = number, self._compute(waiting.result())
        return self._newest[1]

    def _read(self, number: int) -> Tensor:
        indices = torch.arange(number * CHUNK, min((number + 1) * CHUNK, len(self)))
        seed = None if self.seed is None else derive_seed(self.seed, "chunk", number)
        return self.samples.read(indices, seed=seed)

    @torch.inference_mode()
    def _compute(self, x: Tensor) -> Tensor:
        values: Tensor = self.frozen(x.to(self.device, memory_format=torch.channels_last)).cpu()
        if self.dtype == torch.float16:
            values = values.clamp(-LARGEST, LARGEST)
        return values.to(self.dtype).contiguous()


def behind(frozen: nn.Module | None, domain: Domain) -> Domain:
    """The domain as it comes out of the frozen layers, computed when it is read; itself if there are none."""
    return domain if frozen is None else Domain(FrozenSamples(frozen, domain.samples), domain.names)


def all_rows(frozen: nn.Module, domain: Domain, progress: Callable[[int, int], None]) -> Tensor:
    """What the frozen layers make of every sample's evaluation view, in single precision.

    Args:
        frozen: the layers.
        domain: what goes through them.
        progress: told after each chunk how many samples are through and how many there are.
    """
    samples, chunks = FrozenSamples(frozen, domain.samples, dtype=torch.float32), []
    for number in range(samples.chunks):
        chunks.append(samples.chunk(number))
        progress(min((number + 1) * CHUNK, len(samples)), len(samples))
    return torch.cat(chunks)
