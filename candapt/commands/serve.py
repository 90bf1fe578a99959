"""`candapt serve`: a JSON API and a page to drop images on, for the model of a run."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from candapt.commands.parser import parse_options, positional
from candapt.errors import UserError
from candapt.model import load

if TYPE_CHECKING:
    from candapt.serving.limits import Limits
    from candapt.serving.service import Service

log = logging.getLogger(__name__)

TOKEN = "CANDAPT_TOKEN"  # the environment variable; other users of a machine can see the flags of a command
IMAGES = 32  # samples of one request, if they are images, and half of them those of one batch
ROWS = 256  # samples of one request, and of one batch, if they are vectors


@dataclass(frozen=True)
class ServeOptions:
    """Options of `candapt serve`."""

    run: Path = positional()
    """Run folder."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs a token."""
    port: int = 8000
    """Port to listen on; 0 for any that is free."""
    token: str | None = None
    """Token that every request must bring (default: CANDAPT_TOKEN, which other users of the machine cannot see)."""
    onnx: Path | None = None
    """ONNX file made by candapt export to compute with (default: model.onnx in the run folder, if there is one)."""
    engine: Literal["auto", "onnx", "pytorch"] = "auto"
    """auto: onnxruntime if it is installed and there is an ONNX file, else PyTorch."""
    pictures: bool = True
    """Show source images from where the run says that they are; false reads nothing outside its folder."""
    source_samples: int = 500
    """Source samples to compare with if the model stores none, as with a fine-tuned network; 0 for none."""
    max_files: int | None = None
    """Samples in one request (default: 32 images or 256 vectors)."""
    max_file_mib: float = 20
    """Size of one file in MiB."""
    max_request_mib: float = 64
    """Size of one request in MiB."""
    max_uploads_mib: float = 512
    """Size of all requests together that are not answered yet, in MiB."""
    max_pixels: int = 50_000_000
    """Pixels of one image."""
    upload_seconds: float = 60
    """Time within which a request must have arrived."""
    queue: int | None = None
    """Samples that may wait; above it, requests get status 503 (default: 16 full requests)."""
    batch: int | None = None
    """Samples that the network takes at once (default: 16 images or 256 vectors)."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    run(parse_options(ServeOptions, "serve", arguments))


def run(options: ServeOptions) -> None:
    """Serve until a signal comes."""
    _require_packages()
    from candapt.serving.api import make_app
    from candapt.serving.guard import Access, check_token
    from candapt.serving.server import address_of, bind, is_private, listen

    token = options.token if options.token is not None else os.environ.get(TOKEN) or None
    check_token(token)
    with bind(options.host, options.port) as bound:  # before the model is loaded, which takes seconds
        if token is None and not is_private(bound):
            raise UserError(f"Other machines can reach {options.host}: give a --token or {TOKEN}, or leave out --host.")
        service = _load(options)
        address = address_of(bound)
        announcement = f"Serving {options.run} at {address} (Ctrl-C stops it); API: {address}docs"
        listen(make_app(service, Access(token)), bound, announcement)
    log.info("Stopped.")


def _load(options: ServeOptions) -> "Service":
    """The model and all that belongs to it; PyTorch's is gone again if an exported one computes."""
    from candapt.serving.onnx_engine import find_onnx
    from candapt.serving.service import make_service

    model = load(options.run)
    limits = _limits(options, images=len(model.shape) == 3)
    onnx = find_onnx(options.run, model, options.onnx, options.engine)
    service = make_service(
        options.run, model, limits, onnx=onnx, pictures=options.pictures, source=options.source_samples
    )
    log.info("Model: %s, %d classes, computed by %s.", model.method_name, len(model.classes), service.engine.name)
    return service


def _limits(options: ServeOptions, *, images: bool) -> "Limits":
    """The bounds of requests; those that are not given depend on what a sample is."""
    from candapt.serving.limits import MIB, Limits

    samples = options.max_files if options.max_files is not None else IMAGES if images else ROWS
    return Limits(
        samples=samples,
        file_bytes=int(options.max_file_mib * MIB),
        request_bytes=int(options.max_request_mib * MIB),
        upload_bytes=int(options.max_uploads_mib * MIB),
        pixels=options.max_pixels,
        seconds=options.upload_seconds,
        queue=options.queue if options.queue is not None else 16 * samples,
        batch=options.batch if options.batch is not None else IMAGES // 2 if images else ROWS,
    )


def _require_packages() -> None:
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        advice = "install them with: pip install 'candapt[serve]'"
        raise UserError(f"`candapt serve` needs FastAPI, uvicorn and python-multipart: {advice}.") from None
