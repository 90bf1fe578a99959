"""Writing files so that a reader never meets half of one, and reading tensors without running code."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Give a path beside the wanted one to write to; on success it is flushed to disk and takes the wanted name."""
    part = path.with_name(f"{path.name}.part")
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
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with write_atomically(path) as part:
        try:
            save_file(plain, part, metadata=metadata)
        except SafetensorError as error:  # which hides the system's reason, such as a full disk, in its text
            if reason := re.search(r"\(os error (\d+)\)", str(error)):
                raise OSError(int(reason[1]), os.strerror(int(reason[1])), str(path)) from None
            raise


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    with safe_open(path, framework="pt") as file:
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
