"""`candapt export`: the target-ready network of a run as one file for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from candapt.commands.parser import parse_options, positional
from candapt.errors import UserError
from candapt.export.card import model_card
from candapt.export.exporting import Format, Quantization, check_output, export_run
from candapt.export.hub import HubFolder


@dataclass(frozen=True)
class ExportOptions:
    """Options of `candapt export`."""

    run: Path = positional()
    """Run folder."""
    out: Path | None = None
    """File to write, ending in .onnx or .pt2."""
    format: Format = "onnx"
    """onnx: for onnxruntime in any language; torch: a program of torch.export (.pt2)."""
    quantize: Quantization | None = None
    """int8: eight-bit layers, by ranges from samples of the target; smaller and faster, less exact."""
    target: Path | None = None
    """Folder, list or .npz file with samples of the target, to compare and to quantize with (default: where the run
    found them)."""
    hub_folder: Path | None = None
    """New folder for model, card and run, ready to be pushed to the Hugging Face Hub."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    run(parse_options(ExportOptions, "export", arguments))


def run(options: ExportOptions) -> None:
    """Write a file, a folder for the Hub, or both."""
    how: dict[str, Any] = {"format": options.format, "quantize": options.quantize, "target": options.target}
    if options.out is None and options.hub_folder is None:
        raise UserError("--out is missing: give a file, or a folder by --hub-folder.")
    if options.hub_folder is None:
        export_run(options.run, options.out or Path(), **how)
        return
    if options.out is not None:
        check_output(options.out, options.format, options.quantize)
    model_card(options.run)  # what is wrong with the run must come up before the work
    with HubFolder.open(options.hub_folder) as folder:
        folder.fill(options.run, export_run(options.run, options.out or folder.model_path(options.format), **how))
