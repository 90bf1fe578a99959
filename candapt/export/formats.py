"""The target-ready network traced once, and written as ONNX or as a program of `torch.export`."""

import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim, ExportedProgram

from candapt.errors import UserError
from candapt.export.folding import fold_batch_norms
from candapt.export.metadata import INPUT, Metadata
from candapt.export.network import TargetNetwork
from candapt.model import Model
from candapt.storage.safe_reading import format_size, shortened

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 18  # version of ONNX's operators: what torch's exporter is made for, and every onnxruntime since 1.14 runs
BATCH = "batch"  # name of the dimension that may have any size
MAX_ONNX = 2**31 - 2**20  # bytes of one ONNX file, a limit of its format; the rest is for the graph
DETAILS = "candapt.json"  # metadata inside a torch.export program


@dataclass(frozen=True, eq=False)
class Traced:
    """The network as a graph over plain tensors."""

    program: ExportedProgram
    network: TargetNetwork

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(value.numel() * value.element_size() for value in self.program.state_dict.values())


def require_extra(*modules: str) -> None:
    """Raise a `UserError` if a package of the extra is not installed."""
    if missing := [name for name in modules if find_spec(name) is None]:
        packages = " and ".join(missing)
        raise UserError(f"This export needs {packages}: install it with: pip install 'candapt[export]'.")


@torch.no_grad()
def trace(model: Model) -> Traced:
    """Trace a model's network for batches of any size, and fold its batch norms."""
    network, example = TargetNetwork(model), torch.zeros(2, *model.shape)
    try:
        with _quiet():
            whole = _export(network, example).module(check_guards=False)
            program = _export(fold_batch_norms(whole), example)
    except Exception as error:  # a backbone can do what no graph can express, in many ways
        backbone = model.parts.settings.backbone
        reason = shortened(f"{type(error).__name__}: {error}", 160)
        raise UserError(f"torch cannot trace {backbone!r} for batches of any size ({reason}).") from error
    for node in program.graph.nodes:  # a file must not tell where its maker's code lies
        node.meta = {name: value for name, value in node.meta.items() if name == "val"}
    return Traced(program, network)


def _export(module: torch.nn.Module, example: torch.Tensor) -> ExportedProgram:
    return torch.export.export(module, (example,), dynamic_shapes=({0: Dim(BATCH, min=1)},))


def to_onnx(traced: Traced) -> "ModelProto":
    """The network as an ONNX model, without metadata."""
    require_extra("onnx", "onnxscript")
    if traced.size > MAX_ONNX:
        raise UserError(
            f"The network takes {format_size(traced.size)}, but an ONNX file holds at most {format_size(MAX_ONNX)}: "
            "give --format torch."
        )
    names = traced.network.output_names
    with _quiet():
        made = torch.onnx.export(
            traced.program, dynamo=True, opset_version=OPSET, input_names=[INPUT], output_names=names, verbose=False
        )
    assert made is not None
    model = made.model_proto
    _name_batch([*model.graph.input, *model.graph.output])
    for part in _described(model):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return model


def _described(model: Any) -> Iterator[Any]:
    """The parts of an ONNX model to which the exporter attaches how they came about, with paths of its machine."""
    yield from (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output)
    yield from (*model.graph.value_info, *model.graph.initializer)
    for function in model.functions:
        yield from (function, *function.node)


def _name_batch(values: Sequence[Any]) -> None:
    for value in values:
        value.type.tensor_type.shape.dim[0].dim_param = BATCH


def with_metadata(model: "ModelProto", metadata: Metadata) -> "ModelProto":
    """The ONNX model with what it says of itself."""
    model.ClearField("metadata_props")
    for name, value in metadata.describe().items():
        model.metadata_props.add(key=name, value=value)
    return model


def to_program_file(traced: Traced, metadata: Metadata) -> bytes:
    """The content of a `.pt2` file; its part `candapt.json` has the metadata."""
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(traced.program, buffer, extra_files={DETAILS: json.dumps(metadata.describe())})
    return buffer.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's exporters from writing of their own affairs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
