"""Weights files: reading them without running pickles, and loading them into a model that they fit."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from candapt.errors import UserError
from candapt.storage.files import all_finite, read_tensors

Tensors = dict[str, Tensor]


def read_weights(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Tensors of a weights file, in single precision, and its metadata; a `UserError` if it cannot be read safely."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"The weights file {str(path)!r} does not exist; check the path.")
    if path.suffix.lower() not in _READERS:
        raise UserError(f"The weights file {str(path)!r} must end in one of {', '.join(_READERS)}.")
    try:
        state, metadata = _READERS[path.suffix.lower()](path)
        if not all_finite(state.values()):
            raise ValueError("it holds values that are NaN or infinite")
        if any(value.is_complex() for value in state.values()):
            raise ValueError("it holds complex numbers")
    except Exception as error:  # damaged files make the readers raise almost anything
        reason = first_line(error)
        raise UserError(f"The weights file {str(path)!r} cannot be read as plain tensors ({reason}).") from error
    return {name: value.float() if value.is_floating_point() else value for name, value in state.items()}, metadata


def load_state(model: nn.Module, state: Tensors, path: Path, name: str) -> None:
    """Load all but a classifier; a `UserError` if anything else is missing or left over."""
    classifiers = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    beginnings = tuple(f"{each}." for each in ([classifiers] if isinstance(classifiers, str) else classifiers))
    state = {key: value for key, value in state.items() if not key.startswith(beginnings)}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        wrong = " ".join(str(error).split("\n\t")[1:2]) or first_line(error)
        raise UserError(f"The weights in {str(path)!r} do not fit {name!r}: {wrong.rstrip('. ')}.") from error
    # Files made before torch counted batches lack the counters, and nothing depends on them.
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    if missing or unexpected:
        parts = [f"{kind} {_some(keys)}" for kind, keys in (("without", missing), ("with", unexpected)) if keys]
        raise UserError(f"The weights in {str(path)!r} are not of {name!r}: {' and '.join(parts)}.")


def first_line(error: BaseException) -> str:
    """The first line of an error's message without its period, or else the error's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(" .")


def _some(keys: Sequence[str], count: int = 3) -> str:
    return ", ".join(keys[:count]) + (f" and {len(keys) - count} more" if len(keys) > count else "")


def _read_torch(path: Path) -> tuple[Tensors, dict[str, str]]:
    """A state dict, bare or under one of the usual keys, without the prefix of data-parallel training."""
    if zipfile.is_zipfile(path):
        _check_archive(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError("it holds something else than named tensors")
    if not all(_is_held(value) for value in content.values()):
        raise ValueError("it declares more values than it holds")
    return {name.removeprefix("module."): value for name, value in content.items()}, {}


def _check_archive(path: Path) -> None:
    """Raise a `ValueError` for an archive that grows when read: torch stores the parts of its files as they are."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise ValueError("its parts are compressed, which torch does not do")
    if sum(part.file_size for part in parts) > path.stat().st_size:
        raise ValueError("its parts overlap")


def _is_held(value: Tensor) -> bool:
    """Whether each element has a place of its own in memory, unlike those of a small tensor that looks large."""
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    return plain and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


_READERS = {".safetensors": read_tensors, ".pth": _read_torch, ".pt": _read_torch}
