"""The activation cache: what frozen layers make of each image, on disk in half precision, computed once.

An entry is a folder named by a hash of all that its values depend on: the images, their size and normalization, the
frozen layers and their weights. It holds one array a view: `evaluation.npy`, and `paper-1.npy`, `paper-2.npy`, … of
training views. Nothing in it depends on a run, so every method and seed shares it.
"""

import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from candapt.data.cached import CachedSamples
from candapt.data.domains import Domain, Samples
from candapt.errors import UserError
from candapt.files import write_atomically
from candapt.frozen import CHUNK, FrozenSamples
from candapt.locks import locked
from candapt.network.build import Layers
from candapt.randomness import derive_seed
from candapt.untrusted import size_in_words

log = logging.getLogger(__name__)

FORMAT = 1
"""Counts up when the same images and layers would give other values, or the files are laid out otherwise."""
EVALUATION = "evaluation"
"""Name of the evaluation view."""

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@runtime_checkable
class Cacheable(Samples, Protocol):
    """Samples that can tell what their values depend on."""

    @property
    def augmentation(self) -> str:
        """Kind of the training views; `none` if they are the evaluation views."""

    def fingerprint(self) -> str:
        """Hash of all that the evaluation views depend on."""


@dataclass(frozen=True)
class Entry:
    """A folder of the cache."""

    folder: Path

    @property
    def about(self) -> dict[str, Any]:
        """What it was made of; empty if that cannot be read."""
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
        """When it was last asked for, in seconds since 1970."""
        note = self.folder / "about.json"
        return (note if note.exists() else self.folder).stat().st_mtime

    @contextmanager
    def opened(self, about: dict[str, Any]) -> Iterator[None]:
        """Make the folder if there is none, note that it is used, and keep other processes from writing there."""
        note = self.folder / "about.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            note.touch()
        except OSError as error:
            raise UserError(
                f"The cache {str(self.folder.parent)!r} cannot be written ({error.strerror}): name another by --cache."
            ) from None
        with locked(self.folder, wait=True):
            if not self.about:
                with write_atomically(note) as part:
                    part.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            yield


@dataclass(frozen=True, eq=False)
class View:
    """One array of an entry, complete or to be made."""

    entry: Entry
    name: str
    samples: Samples
    shape: tuple[int, ...]
    """Shape of one sample behind the frozen layers."""

    @property
    def path(self) -> Path:
        """Where it is once it is complete."""
        return self.entry.folder / f"{self.name}.npy"

    @property
    def missing(self) -> int:
        """Bytes that are still to be made."""
        return 0 if self.is_complete() else (len(self.samples) - self.rows_done()) * self.row_size

    @property
    def row_size(self) -> int:
        """Bytes of one sample."""
        return 2 * math.prod(self.shape)

    def is_complete(self) -> bool:
        """Whether all of the array is there."""
        try:
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):  # none, or a damaged one, which will be made again
            return False
        return bool(array.shape == (len(self.samples), *self.shape) and array.dtype == np.float16)

    def rows_done(self) -> int:
        """Rows of the unfinished array that are safely on disk."""
        try:
            rows = int(self._marker.read_text(encoding="ascii"))
            there = (self._begun.stat().st_size - len(self._header)) // self.row_size
        except (OSError, ValueError):
            return 0
        return rows if rows <= there else 0

    def make(self, frozen: nn.Module, on_rows: Callable[[int], None]) -> None:
        """Compute the rows that are missing, chunk by chunk; told how many there are after each."""
        seed = None if self.name == EVALUATION else derive_seed("cached view", self.name)
        source, done = FrozenSamples(frozen, self.samples, seed=seed), self.rows_done()
        with self._begun.open("r+b" if done else "wb") as file:
            file.write(self._header)
            file.truncate(len(self._header) + done * self.row_size)
            file.seek(0, os.SEEK_END)
            while done < len(self.samples):
                rows = source.chunk(done // CHUNK)
                file.write(rows.numpy().tobytes())  # in a memory map, a full disk would kill the process
                file.flush()
                os.fsync(file.fileno())
                done += len(rows)
                with write_atomically(self._marker) as part:
                    part.write_text(str(done), encoding="ascii")
                on_rows(len(rows))
        self._begun.replace(self.path)
        self._marker.unlink()

    @property
    def _begun(self) -> Path:
        return self.path.with_suffix(".begun")

    @property
    def _marker(self) -> Path:
        return self.path.with_suffix(".rows")

    @property
    def _header(self) -> bytes:
        """The first bytes of a `.npy` file."""
        buffer = io.BytesIO()
        shape = (len(self.samples), *self.shape)
        np.lib.format.write_array_header_1_0(buffer, {"descr": "<f2", "fortran_order": False, "shape": shape})
        return buffer.getvalue()


class ActivationCache:
    """A folder of entries."""

    def __init__(self, folder: Path | None = None) -> None:
        """Take a folder, by default the user's."""
        self.folder = folder or default_folder()

    def entries(self) -> list[Entry]:
        """All entries, the last used first."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        named = [Entry(path) for path in found if re.fullmatch("[0-9a-f]{32}", path.name)]
        return sorted(named, key=lambda entry: entry.last_used, reverse=True)

    def find(self, key: str | None = None) -> list[Entry]:
        """All entries, or the one whose key begins so."""
        found = [entry for entry in self.entries() if entry.folder.name.startswith(key or "")]
        if key is not None and len(found) != 1:
            raise UserError(
                f"{len(found)} keys in {str(self.folder)!r} begin with {key!r}: `candapt cache` lists them."
            )
        return found

    @staticmethod
    def remove(entry: Entry) -> None:
        """Delete an entry, unless someone is writing it."""
        with locked(entry.folder):
            shutil.rmtree(entry.folder)

    def require_room(self, layers: Layers, *domains: Domain) -> None:
        """Refuse domains for which the disk has not enough room."""
        if layers.frozen is not None:
            self._require_room([view for domain in domains for view in self.views(layers, domain)])

    def through(self, layers: Layers, *domains: Domain, progress: Progress | None = None) -> list[Domain]:
        """The domains as they come out of the frozen layers; what is not in the cache yet is computed.

        Args:
            layers: the network; without frozen layers the domains stay as they are.
            domains: what goes through them, in as many views as the settings say.
            progress: told how many of the missing views of images are computed.
        """
        if layers.frozen is None:
            return list(domains)
        plan = [self.views(layers, domain) for domain in domains]
        views = [view for of_domain in plan for view in of_domain]
        told = self._require_room(views)
        log.info("The cache %s in %s.", f"needs {told}" if told else "has all that is needed", self.folder)
        total, done = sum(view.missing // view.row_size for view in views), 0

        def count(rows: int) -> None:
            nonlocal done
            done += rows
            if progress is not None:
                progress(done, total)

        for view in views:
            with view.entry.opened(_about(layers, view)):
                if not view.is_complete():
                    view.make(layers.frozen, count)
        paths = [[view.path for view in of_domain] for of_domain in plan]
        stored = (CachedSamples(evaluation, training) for evaluation, *training in paths)
        return [Domain(samples, domain.names) for samples, domain in zip(stored, domains, strict=True)]

    def views(self, layers: Layers, domain: Domain) -> list[View]:
        """The views of a domain that the network is trained on, the evaluation view first."""
        samples = domain.samples
        if layers.frozen is None or not isinstance(samples, Cacheable):
            raise TypeError(f"{type(samples).__name__} cannot be cached")
        told = {"format": FORMAT, "layers": _layers_hash(layers), "samples": samples.fingerprint()}
        entry = Entry(self.folder / hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest())
        shape = FrozenSamples(layers.frozen, samples).shape
        count = 0 if samples.augmentation == "none" else layers.settings.views
        names = [EVALUATION, *(f"{samples.augmentation}-{number}" for number in range(1, count + 1))]
        return [View(entry, name, samples, shape) for name in names]

    def _require_room(self, views: Sequence[View]) -> str:
        """What is missing, in words; empty if nothing is. Refused if the disk cannot hold it."""
        missing = {view.path: view for view in views if not view.is_complete()}.values()
        if not missing:
            return ""
        needed = sum(view.missing for view in missing)
        images = sum({view.entry: len(view.samples) for view in missing}.values())
        told = f"{size_in_words(needed)} for {images:,} images × {len({view.name for view in missing})} views"
        existing = next(folder for folder in (self.folder, *self.folder.absolute().parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise UserError(
                f"The cache needs {told}, but {str(existing)!r} has only {size_in_words(free)} free: name another "
                "folder by --cache, make room by `candapt cache clear`, or ask for fewer --network.views."
            )
        return told


def default_folder() -> Path:
    """CANDAPT_CACHE, or else `candapt` in the user's folder for caches."""
    if chosen := os.environ.get("CANDAPT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "candapt"


def _about(layers: Layers, view: View) -> dict[str, Any]:
    """What `about.json` says of an entry, for people."""
    settings = layers.settings
    told = {"format": FORMAT, "backbone": settings.backbone, "finetune": settings.finetune}
    return told | {"images": len(view.samples), "shape": list(view.shape)}


def _layers_hash(layers: Layers) -> str:
    """Hash of all that the frozen layers' results depend on; their tensors alone do not tell where strides are."""
    assert layers.frozen is not None
    told = [layers.settings.backbone, layers.settings.finetune, layers.layout]
    digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=16)
    for name, value in layers.frozen.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
