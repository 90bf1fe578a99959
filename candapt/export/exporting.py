"""From a run to a file that other programs use: traced, written, and compared with PyTorch before it is kept."""

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

from candapt.errors import UserError
from candapt.export.agreement import SAMPLES, Agreement, Array, Examples, Outputs, compare, find_examples
from candapt.export.formats import OPSET, Traced, require_extra, to_onnx, to_program_file, trace, with_metadata
from candapt.export.metadata import Metadata
from candapt.export.network import MAX_BANK, bank_size, confidence_kind, without_large_bank
from candapt.export.quantization import quantize_int8
from candapt.export.runtime import OnnxModel
from candapt.model import Model, load
from candapt.storage.files import require_new, write_atomically, writing
from candapt.storage.safe_reading import format_size

log = logging.getLogger(__name__)

Format = Literal["onnx", "torch"]
Quantization = Literal["int8"]

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
POOR = 0.95  # a quantized file that agrees on a smaller share of the samples is warned of


@dataclass(frozen=True, eq=False)
class Exported:
    """A file that was written, and how far it agrees with the run's own model."""

    path: Path
    metadata: Metadata
    agreement: Agreement
    size: int  # bytes
    full_size: int  # bytes without quantization


def export_run(
    run: Path,
    out: Path,
    *,
    format: Format = "onnx",
    quantize: Quantization | None = None,
    target: Path | None = None,
) -> Exported:
    """Write the target-ready network of a run as one file, once it has been compared with PyTorch.

    Args:
        run: run folder.
        out: new file, ending in `.onnx` or, for a program of `torch.export`, in `.pt2`.
        format: of the file.
        quantize: `int8` for layers of eight-bit numbers, whose ranges come from samples of the target.
        target: where samples of the target are; by default where the run found them.

    Raises:
        UserError: the file differs from PyTorch, exists already, or cannot be made.
    """
    check_output(out, format, quantize)
    model = _exportable(run)
    # Ranges of a quantization fit the samples that they come from too well: it is compared on others.
    examples = find_examples(model, run, target, 2 * SAMPLES if quantize else SAMPLES)
    if quantize and examples.inputs != "target":
        raise UserError(f"int8 needs samples of the target, which {str(run)!r} no longer finds: give them by --target.")
    traced, metadata = trace(model), describe(model, format)
    if format == "torch":
        content, full_size = to_program_file(traced, metadata), 0
        agreement = compare(model, _program(content), examples)
        agreement.require()
    else:
        content, agreement, full_size = _onnx(model, traced, metadata, examples, quantize)
    with writing(out), write_atomically(out) as part:
        part.write_bytes(content)
    made = Exported(out, replace(metadata, quantized=quantize), agreement, len(content), full_size or len(content))
    _log_outcome(made)
    return made


def check_output(out: Path, format: Format, quantize: Quantization | None) -> None:
    """Raise a `UserError` for a file that cannot be written, before any work is done."""
    require_new(out)
    if out.suffix.lower() != SUFFIXES[format]:
        other = next((name for name, suffix in SUFFIXES.items() if suffix == out.suffix.lower()), None)
        advice = f"give --format {other}, or another name" if other else "give another name"
        raise UserError(
            f"--out is {str(out)!r}, but a file in the format {format} ends in {SUFFIXES[format]}: {advice}."
        )
    if not out.absolute().parent.is_dir():
        raise UserError(f"{str(out)!r} cannot be written: its folder does not exist.")
    if quantize and format != "onnx":
        raise UserError("--quantize is for the format onnx: leave it out, or give --format onnx.")
    if format == "onnx":
        require_extra("onnx", "onnxscript", "onnxruntime")


def describe(model: Model, format: Format) -> Metadata:
    """What the file of a model says of itself."""
    opset = OPSET if format == "onnx" else None
    kind = confidence_kind(model)
    return Metadata(
        model.method_name,
        model.classes,
        tuple(model.shape),
        model.images,
        kind,
        opset,
        version("candapt"),
        names_unknown=model.names_unknown,
    )


def _onnx(
    model: Model, traced: Traced, metadata: Metadata, examples: Examples, quantize: Quantization | None
) -> tuple[bytes, Agreement, int]:
    """Content of an ONNX file, its agreement with PyTorch, and its size without quantization."""
    plain = to_onnx(traced)
    content = with_metadata(plain, metadata).SerializeToString()
    agreement = compare(model, _session(content), examples)
    agreement.require()
    if quantize is None:
        return content, agreement, len(content)
    log.info("%s (before quantization).", agreement.sentence)
    seen, unseen = examples.split()
    smaller = with_metadata(quantize_int8(plain, seen.array), replace(metadata, quantized=quantize))
    quantized = smaller.SerializeToString()
    return quantized, compare(model, _session(quantized), unseen), len(content)


def _session(content: bytes) -> Callable[[Array], Outputs]:
    return OnnxModel.from_bytes(content).outputs


def _program(content: bytes) -> Callable[[Array], Outputs]:
    module = torch.export.load(io.BytesIO(content)).module()
    return lambda batch: {name: value.numpy() for name, value in module(torch.from_numpy(batch)).items()}


def _exportable(run: Path) -> Model:
    """The model of a run as a file can hold it; the log says what its confidence lacks."""
    stored = load(run)
    model = without_large_bank(stored)
    if model is not stored:
        sizes = format_size(bank_size(stored)), format_size(MAX_BANK)
        sentence = "The neighbors of the confidence take %s, more than the %s that a file may hold: it is left to class"
        log.warning(f"{sentence} and softmax.", *sizes)
    elif confidence_kind(model) == "softmax":
        log.warning("The run stores nothing to calibrate with: the confidence in the file is the softmax.")
    return model


def _log_outcome(made: Exported) -> None:
    size = format_size(made.size)
    before = f", {format_size(made.full_size)} before quantization" if made.metadata.quantized else ""
    log.info("%s.", made.agreement.sentence)
    if made.metadata.quantized and made.agreement.same_class < POOR:
        log.warning("The quantized model predicts another class too often: use the one in full precision.")
    log.info("Exported: %s (%s%s)", made.path, size, before)
