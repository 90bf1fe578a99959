"""Writing files so that a reader never meets half of one, and reading tensors without running code."""

import hashlib
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from candapt.untrusted import check_file

MAX_HEADER = 16 * 2**20
"""Bytes of the names and shapes in a safetensors file; a large network's take a hundredth of it."""


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Give a path beside the wanted one to write to; on success it is flushed to disk and takes the wanted name."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # what a killed writer left, or a link that someone put there to be written through
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        flush_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure; Windows does so by itself and opens no folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, from any device and memory layout."""
    plain: dict[str, Tensor] = {}
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        shared = any(tensor.data_ptr() == other.data_ptr() for other in plain.values())  # which the format refuses
        plain[name] = tensor.clone() if shared else tensor
    with write_atomically(path) as part:
        try:
            save_file(plain, part, metadata=metadata)
        except SafetensorError as error:  # which hides the system's reason, such as a full disk, in its text
            if reason := re.search(r"\(os error (\d+)\)", str(error)):
                raise OSError(int(reason[1]), os.strerror(int(reason[1])), str(path)) from None
            raise


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file by name, without reading them."""
    check_header(path)
    with _telling(path) as name, safe_open(name, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (not a dict)


@contextmanager
def _telling(path: Path) -> Iterator[Path]:
    """The path, or where its name is not Unicode, which safetensors cannot open, a link to it that has another name."""
    try:
        os.fspath(path).encode()
        named = True
    except UnicodeEncodeError:
        named = False
    if named:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        link.symlink_to(path.absolute())
        yield link


def check_header(path: Path) -> None:
    """Refuse a file that is no plain file, or whose table of contents is larger than any network's."""
    check_file(path)
    with path.open("rb") as file:
        if int.from_bytes(file.read(8), "little") > MAX_HEADER:
            raise ValueError(f"{path.name} is no safetensors file")


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(math.isfinite(value.abs().max()) for value in tensors if value.is_floating_point() and value.numel())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    check_header(path)
    with _telling(path) as name, safe_open(name, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        return tensors, file.metadata() or {}


def tensors_below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of tensors with their names, types and shapes, and of a text; their order does not matter."""
    hasher = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name, value in sorted(tensors.items()):
        hasher.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode("utf-8", "surrogatepass"))
        hasher.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
