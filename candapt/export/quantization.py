"""Eight-bit weights and activations, by onnxruntime's static quantization over samples of the target."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from candapt.export.formats import require_extra
from candapt.export.metadata import INPUT

if TYPE_CHECKING:
    from onnx import ModelProto

LAYERS = ("Conv", "Gemm", "MatMul")  # operators with weights, which take nearly all of the time and the size
BATCH = 16  # samples that onnxruntime sees at a time to find the range of every activation

Array = np.ndarray[Any, Any]


def quantize_int8(model: "ModelProto", samples: Array) -> "ModelProto":
    """The same ONNX model with layers of eight-bit numbers, whose ranges come from samples of shape (n, *shape).

    Only what leads to the probabilities is quantized: neighbors are searched in full precision. Weights have seven
    bits, since with eight the sums overflow on processors without VNNI.
    """
    require_extra("onnx", "onnxruntime")
    import onnx
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as name, _quiet():
        plain, made = Path(name, "plain.onnx"), Path(name, "int8.onnx")
        onnx.save(onnx.shape_inference.infer_shapes(model), plain)
        quantization.quantize_static(
            plain,
            made,
            _batches(samples),
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=list(LAYERS),
            nodes_to_exclude=[*others(model, "probabilities"), *_batched(model)],
            extra_options={"MatMulConstBOnly": True},  # products of two activations, as in attention, stay as they are
        )
        return onnx.load(made)


def others(model: "ModelProto", output: str) -> list[str]:
    """Names of the nodes on which an output does not depend."""
    needed, names = {output}, list[str]()
    for node in reversed(model.graph.node):  # in the order of computation
        if needed.isdisjoint(node.output):
            names.append(node.name)
        else:
            needed.update(node.input)
    return names


def _batched(model: "ModelProto") -> list[str]:
    """Names of products with a stack of matrices, one per head of an ensemble, for which onnxruntime has no code."""
    dims = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and dims.get(node.input[1], 2) > 2]


def _batches(samples: Array) -> Any:
    """The samples as onnxruntime wants to read them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.parts = iter([samples[start : start + BATCH] for start in range(0, len(samples), BATCH)])

        def get_next(self) -> dict[str, Array] | None:
            part = next(self.parts, None)
            return None if part is None else {INPUT: part}

    return Batches()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep onnxruntime from advising what the exporter has done already, and from adding a handler of all logs."""
    logger = logging.getLogger()
    level, handlers = logger.level, list(logger.handlers)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.handlers[:] = handlers
