"""Feature arrays that stay on disk: rows are read when they are needed, so that files may be larger than memory.

Reads go through the file rather than a memory map: pages of a map count as memory of the process once they were used,
and a pass over the file would fill it.
"""

import hashlib
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from candapt.errors import UserError

LARGE = 2**28  # bytes from which on the features of a file stay on disk
CHUNK = 4096  # rows at a time in passes over all of them

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StoredRows:
    """The rows of an array (n, d) in a file, from a place on."""

    path: Path
    offset: int
    shape: tuple[int, int]
    dtype: str

    @cached_property
    def _file(self) -> FileIO:
        return FileIO(self.path)

    def __reduce__(self) -> Any:
        """Let another process open the file itself."""
        return type(self), (self.path, self.offset, self.shape, self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Consecutive rows, as they are stored."""
        start, stop, _ = rows.indices(self.shape[0])
        values = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
        self._read_into(values, start)
        return values

    def take(self, indices: Array) -> Array:
        """The rows at these places."""
        if len(indices) and (np.diff(indices) == 1).all():
            return self[int(indices[0]) : int(indices[-1]) + 1]
        values = np.empty((len(indices), self.shape[1]), self.dtype)
        for row, index in zip(values, indices.tolist(), strict=True):
            self._read_into(row, index)
        return values

    def _read_into(self, values: Array, first: int) -> None:
        if not values.size:  # memory without bytes has no view of them
            return
        view, place = values.data.cast("B"), self.offset + first * self.shape[1] * values.itemsize
        done = 0
        while done < len(view):
            count = os.preadv(self._file.fileno(), [view[done:]], place + done)
            if count == 0:
                raise UserError(f"{str(self.path)!r} has become shorter while it was used: write it anew.")
            done += count


class StoredSamples:
    """Feature vectors in one file or several, in order; training and evaluation see the same values."""

    augmentation = "none"
    views_by_sample = True

    def __init__(self, parts: Sequence[StoredRows]) -> None:
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return (self.parts[0].shape[1],)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The rows at `indices`, in single precision."""
        places = indices.numpy()
        if len(self.parts) == 1:
            return _single(self.parts[0].take(places))
        owners = np.searchsorted(self.starts, places, side="right") - 1
        values = torch.empty(len(places), *self.shape)
        for number in np.unique(owners):
            own = owners == number
            values[torch.from_numpy(own)] = _single(self.parts[number].take(places[own] - self.starts[number]))
        return values

    def chunks(self) -> Iterator[tuple[StoredRows, int, Array]]:
        """The file, first row in it and values of consecutive rows, in order."""
        for part in self.parts:
            for start in range(0, len(part), CHUNK):
                yield part, start, part[start : start + CHUNK]

    def fingerprint(self) -> str:
        """Hash of the values, which are all read for it once."""
        return self.checked

    @cached_property
    def checked(self) -> str:
        """Hash of the values; a `UserError` if one of them is not finite in single precision."""
        digest = hashlib.blake2b(repr((len(self), *self.shape)).encode(), digest_size=16)
        for part, first, values in self.chunks():
            digest.update(values.data)
            with np.errstate(over="ignore"):
                finite = np.isfinite(values.astype(np.float32, copy=False)).all(axis=1)
            if not finite.all():
                row = first + int(np.argmin(finite))
                raise UserError(
                    f"x in {part.path} holds values that are NaN or infinite in single precision, first in "
                    f"row {row}: remove or replace them."
                )
        return digest.hexdigest()


def _single(values: Array) -> Tensor:
    return torch.from_numpy(values.astype(np.float32, copy=False))


def large_rows(path: Path, limit: int | None = None) -> StoredRows | None:
    """The array x of an `.npz` file if it is large and stored so that its rows can be read: not compressed.

    A file that is damaged gives None: who reads it as a whole tells what is wrong.
    """
    if not path.is_file():  # to open a pipe would wait for who writes to it
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo("x.npy")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size < (LARGE if limit is None else limit):
            return None
        with path.open("rb") as file:
            file.seek(member.header_offset)
            header = struct.unpack("<4s5H3L2H", file.read(30))
            return rows_at(path, member.header_offset + 30 + header[-2] + header[-1], member.file_size)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, struct.error):
        return None


def rows_at(path: Path, place: int = 0, size: int | None = None) -> StoredRows | None:
    """The `.npy` array (n, d) of floating-point numbers at a place of a file; None if it is another array."""
    with path.open("rb") as file:
        file.seek(place)
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            return None
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(file)
        offset, total = file.tell(), path.stat().st_size - place if size is None else size
    fits = len(shape) == 2 and min(shape) > 0 and not fortran and dtype.kind == "f" and dtype.isnative
    if not fits or shape[0] * shape[1] * dtype.itemsize != total - (offset - place):
        return None
    return StoredRows(path, offset, (shape[0], shape[1]), dtype.str)


def shards(folder: Path, letter: str) -> list[Path]:
    """The files of a folder of shards that begin with a letter, x or y, in order of their names."""
    return sorted(path for path in folder.glob(f"{letter}*.npy") if path.is_file())


def stored_shards(folder: Path) -> StoredSamples:
    """The samples of a folder of shards, `x*.npy`."""
    parts: list[StoredRows] = []
    for path in shards(folder, "x"):
        try:
            rows = rows_at(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{str(path)!r} cannot be read as an .npy file ({str(error)[:80]}).") from None
        if rows is None or (parts and rows.shape[1] != parts[0].shape[1]):
            width = f", of {parts[0].shape[1]} features as those before it" if parts else ""
            raise UserError(
                f"{str(path)!r} must hold floating-point numbers of shape (n, features){width}, all of them, at least "
                "one row, and row by row (C order): write it with numpy.save(path, numpy.ascontiguousarray(x))."
            )
        parts.append(rows)
    return StoredSamples(parts)
