"""The activation cache: outputs of frozen layers for each image, computed once and kept on disk in half precision.

An entry is a folder named by a hash of everything that its values depend on: the images, their size and normalization,
the frozen layers and their weights. It holds one array per view: `evaluation.npy`, and `paper-1.npy`, `paper-2.npy`, …
for training views. Nothing in it depends on a run, so all methods and seeds share it.
"""

import hashlib
import io
import json
import math
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Barrier
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from candapt import processes
from candapt.data.domains import Domain, Samples
from candapt.errors import UserError
from candapt.network.build import NetworkParts
from candapt.processes import Share
from candapt.randomness import derive_seed, generator
from candapt.storage.files import write_atomically, write_json, writing
from candapt.storage.folders import locked
from candapt.storage.safe_reading import format_size

FORMAT = 1  # version of the values and of the files' layout; a change makes old entries unused
EVALUATION = "evaluation"  # name of the evaluation view

Progress = Callable[[int, int], None]  # called with (done, total)


@runtime_checkable
class Cacheable(Samples, Protocol):
    """Samples that know what their values depend on."""

    @property
    def augmentation(self) -> str:
        """Kind of the training views; `none` if they are the evaluation views."""

    def fingerprint(self) -> str:
        """Hash of everything that the evaluation views depend on."""


@dataclass(frozen=True)
class CacheEntry:
    """A folder of the cache."""

    folder: Path

    @property
    def about(self) -> dict[str, Any]:
        """What it was made from; empty if that cannot be read."""
        try:
            return dict(json.loads((self.folder / "about.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    @property
    def views(self) -> list[str]:
        """Names of the complete views."""
        return sorted(path.stem for path in self.folder.glob("*.npy"))

    @property
    def begun(self) -> list[str]:
        """Names of the views that are not complete."""
        return sorted(path.stem for path in self.folder.glob("*.begun"))

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    @property
    def last_used(self) -> float:
        """When it was last used, in seconds since 1970."""
        note = self.folder / "about.json"
        return (note if note.exists() else self.folder).stat().st_mtime

    @contextmanager
    def opened(self, about: dict[str, Any]) -> Iterator[None]:
        """Make the folder if there is none, update its time of last use, and lock it."""
        note = self.folder / "about.json"
        with writing(self.folder.parent, "another folder by --cache"):
            self.folder.mkdir(parents=True, exist_ok=True)
            note.touch()
        with locked(self.folder, wait=True):
            if not self.about:
                write_json(note, about)
            yield


@dataclass(frozen=True, eq=False)
class View:
    """One array of an entry, complete or to be computed."""

    entry: CacheEntry
    name: str
    samples: Samples
    shape: tuple[int, ...]  # shape of one sample after the frozen layers

    @property
    def path(self) -> Path:
        """Its file once it is complete."""
        return self.entry.folder / f"{self.name}.npy"

    @property
    def missing(self) -> int:
        """Rows that are still to be computed."""
        return 0 if self.is_complete() else len(self.samples) - self.rows_done()

    @property
    def row_size(self) -> int:
        """Bytes of one sample."""
        return 2 * math.prod(self.shape)

    def is_complete(self) -> bool:
        """Whether all of the array is there."""
        try:
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):  # none, or a damaged one, which will be computed again
            return False
        return bool(array.shape == (len(self.samples), *self.shape) and array.dtype == np.float16)

    def rows_done(self) -> int:
        """Rows of the unfinished array that are safely on disk."""
        try:
            rows = int(self.path.with_suffix(".rows").read_text(encoding="ascii"))
            there = (self.path.with_suffix(".begun").stat().st_size - len(self._header)) // self.row_size
        except (OSError, ValueError):
            return 0
        return rows if rows <= there else 0

    def make(self, frozen: nn.Module, done: int, on_rows: Callable[[int], None]) -> None:
        """Compute the rows that are missing; `on_rows` is called with the number of rows after each chunk.

        Several processes compute them together, and the first one writes them.
        """
        seed = None if self.name == EVALUATION else derive_seed("cached view", self.name)
        chunks = FrozenSamples(frozen, self.samples, seed=seed).in_turn(done // CHUNK)
        if not processes.is_first():
            deque(chunks, maxlen=0)
            return
        begun, marker = self.path.with_suffix(".begun"), self.path.with_suffix(".rows")
        with begun.open("r+b" if done else "wb") as file:
            file.write(self._header)
            file.truncate(len(self._header) + done * self.row_size)
            file.seek(0, os.SEEK_END)
            for rows in chunks:
                file.write(rows.numpy().tobytes())  # in a memory map, a full disk would kill the process
                file.flush()
                os.fsync(file.fileno())
                done += len(rows)
                with write_atomically(marker) as part:
                    part.write_text(str(done), encoding="ascii")
                on_rows(len(rows))
        begun.replace(self.path)
        marker.unlink()

    @property
    def _header(self) -> bytes:
        """The first bytes of a `.npy` file."""
        buffer = io.BytesIO()
        shape = (len(self.samples), *self.shape)
        np.lib.format.write_array_header_1_0(buffer, {"descr": "<f2", "fortran_order": False, "shape": shape})
        return buffer.getvalue()


@dataclass(frozen=True, eq=False)
class CachedSamples:
    """Samples in `.npy` files of one shape, one per view, read as they are needed."""

    evaluation: Path
    training: tuple[Path, ...] = ()  # without any, training uses the evaluation views

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
        return len(self.arrays[self.evaluation])

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The samples at `indices`; with a seed, each in one of its training views, drawn by the seed."""
        if seed is None or not self.training:
            return self._rows(self.evaluation, indices)
        return self.read_rows(indices, slice(None), seed)

    def read_rows(self, indices: Tensor, rows: slice, seed: int) -> Tensor:
        """Some rows of what `read` gives."""
        if not self.training:
            return self._rows(self.evaluation, indices[rows])
        drawn = torch.randint(len(self.training), (len(indices),), generator=generator(seed, "cached view"))[rows]
        indices = indices[rows]
        samples = torch.empty(len(indices), *self.shape)
        for view, path in enumerate(self.training):
            samples[drawn == view] = self._rows(path, indices[drawn == view])
        return samples

    def _rows(self, path: Path, indices: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.arrays[path][indices.numpy()])).float()


class ActivationCache:
    """A folder of entries; by default the user's."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def entries(self) -> list[CacheEntry]:
        """All entries, the last used first."""
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        named = [CacheEntry(path) for path in paths if re.fullmatch("[0-9a-f]{32}", path.name)]
        return sorted(named, key=lambda entry: entry.last_used, reverse=True)

    def find(self, key: str | None = None) -> list[CacheEntry]:
        """All entries, or the one whose key starts with the given text."""
        entries = [entry for entry in self.entries() if entry.folder.name.startswith(key or "")]
        if key is not None and (count := len(entries)) != 1:
            raise UserError(f"{count} keys in {str(self.folder)!r} start with {key!r}: `candapt cache` lists them.")
        return entries

    @staticmethod
    def remove(entry: CacheEntry) -> None:
        """Delete an entry, unless another process is writing it."""
        with locked(entry.folder):
            shutil.rmtree(entry.folder)

    def require_room(self, parts: NetworkParts, *domains: Domain) -> None:
        """Raise a `UserError` if the disk has no room for what the domains need."""
        self.describe_need(parts, *domains)

    def describe_need(self, parts: NetworkParts, *domains: Domain) -> str:
        """What the cache still needs for the domains, in a sentence; empty without frozen layers."""
        if parts.frozen is None:
            return ""
        missing = self._require_room([view for domain in domains for view in self.views(parts, domain)])
        return f"The cache {f'needs {missing}' if missing else 'has everything'} in {self.folder}."

    def through(self, parts: NetworkParts, *domains: Domain, progress: Progress | None = None) -> list[Domain]:
        """The domains after the frozen layers, if there are any; what the cache lacks is computed.

        `progress` is called with the number of missing views of images computed so far and in all.
        """
        if parts.frozen is None:
            return list(domains)
        plan = [self.views(parts, domain) for domain in domains]
        views = [view for of_domain in plan for view in of_domain]
        self._require_room(views)
        total, done = sum(view.missing for view in views), 0

        def count(rows: int) -> None:
            nonlocal done
            done += rows
            if progress is not None:
                progress(done, total)

        about = {"format": FORMAT, "backbone": parts.settings.backbone, "finetune": parts.settings.finetune}
        for view in views:
            own = about | {"images": len(view.samples), "shape": list(view.shape)}
            with view.entry.opened(own) if processes.is_first() else nullcontext():
                done_before = processes.by_first(partial(_rows_done, view))
                if done_before is not None:
                    view.make(parts.frozen, done_before, count)
            processes.largest(0)  # until the file is there for all
        stored = [CachedSamples(evaluation.path, tuple(view.path for view in rest)) for evaluation, *rest in plan]
        return [Domain(samples, domain.names) for samples, domain in zip(stored, domains, strict=True)]

    def views(self, parts: NetworkParts, domain: Domain) -> list[View]:
        """The views of a domain that the training uses, the evaluation view first."""
        samples = domain.samples
        if parts.frozen is None or not isinstance(samples, Cacheable):
            raise TypeError(f"{type(samples).__name__} cannot be cached")
        identity = {"format": FORMAT, "layers": _layers_hash(parts), "samples": samples.fingerprint()}
        entry = CacheEntry(self.folder / hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest())
        shape = FrozenSamples(parts.frozen, samples).shape
        count = 0 if samples.augmentation == "none" else parts.settings.views or 0
        names = [EVALUATION, *(f"{samples.augmentation}-{number}" for number in range(1, count + 1))]
        return [View(entry, name, samples, shape) for name in names]

    def _require_room(self, views: Sequence[View]) -> str:
        """What is missing, as text; empty if nothing is. Raises a `UserError` if the disk cannot hold it."""
        missing = {view.path: view for view in views if not view.is_complete()}.values()
        if not missing:
            return ""
        needed = sum(view.missing * view.row_size for view in missing)
        images = sum({view.entry: len(view.samples) for view in missing}.values())
        kinds = len({view.name for view in missing})
        text = f"{format_size(needed)} for {images:,} images × {kinds} view{'s' if kinds > 1 else ''}"
        existing = next(folder for folder in (self.folder, *self.folder.absolute().parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise UserError(
                f"The cache needs {text}, but {str(existing)!r} has only {format_size(free)} free: give another "
                "folder by --cache, make room by `candapt cache clear`, or use fewer --network.views."
            )
        return text


def _rows_done(view: View) -> int | None:
    """Rows of a view that are on disk already; None if it is complete."""
    return None if view.is_complete() else view.rows_done()


def default_folder() -> Path:
    """CANDAPT_CACHE, or else `candapt` in the user's folder for caches."""
    if chosen := os.environ.get("CANDAPT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "candapt"


def _layers_hash(parts: NetworkParts) -> str:
    """Hash of everything that the frozen layers' results depend on; their tensors alone do not include strides."""
    assert parts.frozen is not None
    identity: list[Any] = [parts.settings.backbone, parts.settings.finetune, parts.layout]
    identity += ["mirror"] if parts.settings.mirror else []
    digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=16)
    for name, value in parts.frozen.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


CHUNK = 32  # samples at a time: more are no faster on a CPU, need more memory, and move a progress bar less often
STREAMS = 4  # chunks in work at a time on a CPU, at most: each needs memory for its activations
LARGEST = torch.finfo(torch.float16).max


def compute_streams(count: int) -> ThreadPoolExecutor:
    """Threads that share this thread's cores between them.

    Each reads and computes chunks of its own, so cores never wait for each other, as they do after every layer if all
    of them work on one chunk while images are decoded beside it.
    """
    cores, ready = torch.get_num_threads(), Barrier(count + 1)

    def start() -> None:
        torch.set_num_threads(max(1, cores // count))
        ready.wait()

    pool = ThreadPoolExecutor(count, initializer=start)
    for _ in range(count):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(cores)  # threads of later pools start with what was set last
    return pool


class FrozenSamples:
    """Samples of a domain after frozen layers, computed whenever they are read; meant to be read in order.

    They are computed in chunks that begin at fixed places, and rounded to half precision, so that every reader gets the
    same bits from a computation and from the cache. The next chunks are read, and on a CPU computed, ahead.
    """

    def __init__(
        self, frozen: nn.Module, samples: Samples, *, seed: int | None = None, dtype: torch.dtype = torch.float16
    ) -> None:
        """Take layers, on the device that computes, and the seed of a training view; None for the evaluation view."""
        self.frozen = frozen.eval()
        convert_conv2d_weight_memory_format(frozen, torch.channels_last)  # a tenth less work for a CPU
        self.samples = samples
        self.seed = seed
        self.dtype = dtype
        self.device = next(frozen.parameters()).device
        self._ahead: dict[int, Future[Tensor]] = {}
        self._newest: tuple[int, Tensor] | None = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample after the layers."""
        return tuple(self._compute(torch.zeros(1, *self.samples.shape)).shape[1:])

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-len(self) // CHUNK)

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The samples at `indices` in single precision; the view was chosen before."""
        rows = [self.chunk(index // CHUNK)[index % CHUNK] for index in indices.tolist()]
        return torch.stack(rows).float() if rows else torch.empty(0, *self.shape)

    def in_turn(self, first: int = 0) -> Iterator[Tensor]:
        """The rows from chunk `first` on, in order.

        Of several processes each computes every n-th chunk; the first process gets all rows, the others none.
        """
        step = processes.count()
        for number in range(first, self.chunks, step):
            if step == 1:
                yield self.chunk(number)
                continue
            sizes = [max(0, min(CHUNK, len(self) - each * CHUNK)) for each in range(number, number + step)]
            own, rank = number + processes.rank(), processes.rank()
            rows = self.chunk(own, step) if sizes[rank] else torch.empty(0, *self.shape, dtype=self.dtype)
            yield processes.at_first(rows, Share(tuple(sizes), rank))

    def chunk(self, number: int, step: int = 1) -> Tensor:
        """The rows from `number * CHUNK` on, on the CPU; the newest chunk is kept. The next are `step` further on."""
        if self._newest is None or self._newest[0] != number:
            pool, ahead = self._pool
            wanted = range(number, min(number + step * ahead, self.chunks), step)
            self._ahead = {each: self._ahead.get(each) or pool.submit(self._prepare, each) for each in wanted}
            prepared = self._ahead.pop(number).result()
            self._newest = number, prepared if self._on_cpu else self._compute(prepared)
        return self._newest[1]

    @cached_property
    def _pool(self) -> tuple[ThreadPoolExecutor, int]:
        """Threads that prepare chunks, and how many chunks are in work."""
        if not self._on_cpu:
            return ThreadPoolExecutor(1), 2
        if hasattr(self.samples, "read_alone"):
            self.samples = self.samples.read_alone()
        streams = min(torch.get_num_threads(), STREAMS)
        return compute_streams(streams), streams + 1

    @property
    def _on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def _prepare(self, number: int) -> Tensor:
        """The samples of a chunk, on a CPU after the layers."""
        return self._compute(self._read(number)) if self._on_cpu else self._read(number)

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


def after_layers(frozen: nn.Module | None, domain: Domain) -> Domain:
    """The domain after the frozen layers, computed when it is read; the domain itself if there are none."""
    return domain if frozen is None else Domain(FrozenSamples(frozen, domain.samples), domain.names)


def feature_chunks(frozen: nn.Module, domain: Domain, progress: Callable[[int, int], None]) -> Iterator[Tensor]:
    """Outputs of the frozen layers for every sample's evaluation view, in order and single precision, a few at a time.

    Several processes compute them together; only the first gets any. `progress` is called with the number of samples
    done and in all.
    """
    samples, done = FrozenSamples(frozen, domain.samples, dtype=torch.float32), 0
    for rows in samples.in_turn():
        yield rows
        done += len(rows)
        progress(done, len(samples))


def compute_features(frozen: nn.Module, domain: Domain, progress: Callable[[int, int], None]) -> Tensor:
    """The same in one tensor."""
    return torch.cat(list(feature_chunks(frozen, domain, progress)))
