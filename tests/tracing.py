"""Exports of one network in several tests trace it once: torch takes seconds for what is a moment's work elsewhere."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import pytest
from torch import Tensor

from candapt.export import exporting, formats
from candapt.export.formats import Traced
from candapt.export.network import BankConfidence, TargetNetwork
from candapt.model import Model


def trace_once(patch: pytest.MonkeyPatch) -> None:
    """Let `export_run` reuse the graph and the ONNX model of a network that it has traced before, bit by bit the same.

    All that depends on a call is done anew: checks, metadata, quantization, writing, and the comparison with PyTorch.
    """
    traces: dict[str, Traced] = {}
    models: dict[tuple[int, int], Any] = {}

    def trace(model: Model) -> Traced:
        key = digest(model)
        if key not in traces:
            traces[key] = formats.trace(model)
        return traces[key]

    def to_onnx(traced: Traced) -> Any:
        key = id(traced), formats.MAX_ONNX
        if key not in models:
            models[key] = formats.to_onnx(traced)
        copy = type(models[key])()
        copy.CopyFrom(models[key])  # the caller adds metadata
        return copy

    patch.setattr(exporting, "trace", trace)
    patch.setattr(exporting, "to_onnx", to_onnx)


def digest(model: Model) -> str:
    """The same for models whose networks have the same layers and the same bits."""
    network = TargetNetwork(model)
    found = hashlib.sha256(repr((network, model.shape)).encode())
    bank = network.confidence if isinstance(network.confidence, BankConfidence) else None
    outside = (bank.reference, bank.means, bank.densities) if bank else ()  # of the graph, but no buffers
    for tensor in tensors((network.state_dict(), outside)):
        found.update(repr((tensor.dtype, tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested values, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors(each)
    elif is_dataclass(value):
        yield from tensors(vars(value))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)
