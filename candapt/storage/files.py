"""Atomic writes, so that no reader meets half a file; tensors on disk; digests; settings as plain values."""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from candapt.errors import UserError
from candapt.storage.safe_reading import check_file

MAX_HEADER = 16 * 2**20  # bytes of the names and shapes in a safetensors file; a large network's take a hundredth of it


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """A path beside the given one to write to; on success it is flushed to disk and renamed to the given one."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # left by a killed writer, or a link that someone put there to be written through
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        _flush_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure; Windows does so on its own and opens no folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON in ASCII, so that even names that are not valid Unicode survive."""
    with write_atomically(path) as part:
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="ascii")


def require_new(out: Path) -> None:
    """Raise a `UserError` if the file exists: no command overwrites one."""
    if out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")


@contextmanager
def writing(out: Path, instead: str = "another file by --out") -> Iterator[None]:
    """Turn an error of the operating system while writing `out` into a `UserError` that says what to give instead."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{str(out)!r} cannot be written ({error.strerror}): give {instead}.") from None


def plain(value: Any) -> Any:
    """Dataclasses, tuples and paths (made absolute) as YAML and JSON have them."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return os.path.abspath(value) if isinstance(value, os.PathLike) else value


def flatten(tree: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested dictionaries by dotted name.

    >>> flatten({"can": {"weight": 0.3}, "rounds": 5})
    {'can.weight': 0.3, 'rounds': 5}
    """
    if not isinstance(tree, dict):
        return {name: tree}
    leaves: dict[str, Any] = {}
    for key, branch in tree.items():
        leaves |= flatten(branch, f"{name}.{key}" if name else key)
    return leaves


def open_table(path: Path) -> TextIO:
    """Open a CSV file for writing, so that names which are not valid Unicode are kept byte for byte."""
    return path.open("w", newline="", encoding="utf-8", errors="surrogateescape")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, from any device and memory layout."""
    own: dict[str, Tensor] = {}
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        shared = any(tensor.data_ptr() == other.data_ptr() for other in own.values())  # which the format refuses
        own[name] = tensor.clone() if shared else tensor
    with write_atomically(path) as part:
        try:
            save_file(own, part, metadata=metadata)
        except SafetensorError as error:  # which hides the system's reason, such as a full disk, in its text
            if reason := re.search(r"\(os error (\d+)\)", str(error)):
                raise OSError(int(reason[1]), os.strerror(int(reason[1])), str(path)) from None
            raise


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file by name, without reading them."""
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (not a dict)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a `ValueError` for anything else."""
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        return tensors, file.metadata() or {}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; a `ValueError` if it is no plain file, or its header is larger than any network's."""
    check_file(path)
    with path.open("rb") as file:
        if int.from_bytes(file.read(8), "little") > MAX_HEADER:
            raise ValueError(f"{path.name} is not a safetensors file")
    with _unicode_path(path) as name, safe_open(name, framework="pt") as tensors:
        yield tensors


@contextmanager
def _unicode_path(path: Path) -> Iterator[Path]:
    """The path, or a temporary link to it if its name is not valid Unicode, which safetensors cannot open."""
    if not re.search(r"[\ud800-\udfff]", str(path)):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        link.symlink_to(path.absolute())
        yield link


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(math.isfinite(value.abs().max()) for value in tensors if value.is_floating_point() and value.numel())


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
