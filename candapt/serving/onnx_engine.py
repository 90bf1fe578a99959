"""A model that `candapt export` wrote, computed by onnxruntime."""

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from PIL import Image

from candapt.errors import UserError
from candapt.export import OnnxModel
from candapt.export.metadata import SIMILAR
from candapt.model import Model
from candapt.serving.engine import Array, Near, Outcome
from candapt.storage.safe_reading import contained

log = logging.getLogger(__name__)

FILE = "model.onnx"  # in a run folder
Choice = Literal["auto", "onnx", "pytorch"]


class OnnxEngine:
    """An exported model."""

    def __init__(self, model: OnnxModel, *, tells_unknown: bool) -> None:
        """Take a model, and whether it knows what is none of its classes: files say 0 for all if it does not."""
        self.model, self.tells_unknown = model, tells_unknown
        self.name = f"ONNX Runtime{f', {kind}' if (kind := model.metadata.quantized) else ''}"

    @property
    def stores_source(self) -> bool:
        """Whether the file finds similar source samples."""
        return {output.name for output in self.model.session.get_outputs()} >= set(SIMILAR)

    def prepare(self, image: Image.Image) -> Array:
        """The evaluation view."""
        return self.model.preprocess(image)

    def predict(self, batch: Array) -> Outcome:
        """Probabilities, confidence and, with stored source samples, neighbors."""
        outputs = self.model.outputs(batch)
        near = Near(*(outputs[name] for name in SIMILAR)) if self.stores_source else None
        unknown = outputs["unknown"] if self.tells_unknown else None
        return Outcome(outputs["probabilities"], outputs["confidence"], unknown, near)


def find_onnx(run: Path, model: Model, file: Path | None, choice: Choice) -> OnnxEngine | None:
    """The exported model to compute with: the given file, or that in the run folder; None for PyTorch."""
    if choice == "pytorch":
        return None
    if file is None:
        if not (run / FILE).exists():
            if choice == "onnx":
                raise UserError(
                    f"{str(run)!r} has no {FILE}: write it with `candapt export`, or give a file by --onnx."
                )
            return None
        if choice == "auto" and find_spec("onnxruntime") is None:
            log.info("%s is not used: onnxruntime is missing; install it with: pip install 'candapt[export]'.", FILE)
            return None
    try:
        exported = OnnxModel.load(contained(run, FILE) if file is None else file)
    except UserError:
        raise
    except ValueError as error:  # a link out of the folder
        raise UserError(f"{str(run / FILE)!r} cannot be used ({error}).") from None
    own = (model.classes, tuple(model.shape), model.method_name)
    if (exported.classes, exported.shape, exported.metadata.method) != own:
        raise UserError(f"{str(file or run / FILE)!r} is the model of another run: it has other classes or inputs.")
    return OnnxEngine(
        exported, tells_unknown=model.calibrator is not None and model.calibrator.bank_unknown is not None
    )
