"""An exported ONNX file in use, with Pillow, numpy and onnxruntime alone: nothing here imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from candapt.data.decoding import read_image, upright_pixels
from candapt.errors import UserError
from candapt.export.metadata import INPUT, OUTPUTS, Metadata
from candapt.settings import ImageSettings
from candapt.storage.safe_reading import check_file, shortened

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A classifier in an ONNX file that `candapt export` wrote. Several threads may use one at the same time."""

    session: "InferenceSession"
    metadata: Metadata

    @classmethod
    def load(cls, path: str | Path, *, threads: int | None = None) -> "OnnxModel":
        """Open a file; a `UserError` if candapt has not written it. By default onnxruntime uses all cores."""
        path = Path(path)
        try:
            check_file(path)
            return cls._open(str(path), threads)
        except Exception as error:  # a damaged file makes onnxruntime raise almost anything
            if isinstance(error, UserError):
                raise
            reason = shortened(f"{type(error).__name__}: {error}", 160)
            raise UserError(f"{str(path)!r} is no model made by `candapt export` ({reason}).") from error

    @classmethod
    def from_bytes(cls, content: bytes, *, threads: int | None = None) -> "OnnxModel":
        """The same from the content of a file."""
        return cls._open(content, threads)

    @classmethod
    def _open(cls, model: str | bytes, threads: int | None) -> "OnnxModel":
        try:
            import onnxruntime
        except ImportError:
            raise UserError("An ONNX file needs onnxruntime: install it with: pip install 'candapt[export]'.") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = {output.name for output in session.get_outputs()}
        if [each.name for each in session.get_inputs()] != [INPUT] or not names >= set(OUTPUTS):
            raise ValueError("its inputs and outputs are others")
        return cls(session, Metadata.read(session.get_modelmeta().custom_metadata_map))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the probabilities."""
        return self.metadata.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.metadata.shape

    @property
    def images(self) -> ImageSettings | None:
        """How an image becomes a sample; None for a model over features."""
        return self.metadata.images

    def outputs(self, batch: Array) -> dict[str, Array]:
        """All outputs by name, for samples of shape (n, *shape): those of `OUTPUTS`, and more of later versions."""
        batch = np.asarray(batch, dtype=np.float32)
        if batch.shape[1:] != self.shape or not batch.ndim:
            raise UserError(
                f"The model takes a batch of shape (n, {', '.join(map(str, self.shape))}), not {batch.shape}."
            )
        names = [output.name for output in self.session.get_outputs()]
        if not len(batch):  # onnxruntime cannot process an empty batch in every operator
            return {name: value[:0] for name, value in self.outputs(np.zeros((1, *self.shape))).items()}
        return dict(zip(names, self.session.run(names, {INPUT: batch}), strict=True))

    def predict(self, batch: Array) -> tuple[Array, Array]:
        """Probabilities (n, classes) and the confidence of each prediction (n,), for samples of shape (n, *shape)."""
        outputs = self.outputs(batch)
        return outputs["probabilities"], outputs["confidence"]

    def predict_files(self, paths: Sequence[str | Path]) -> tuple[Array, Array]:
        """The same for image files; a `UserError` for one that does not decode."""
        settings = self._image_settings()
        read = (read_image(Path(path), grey=settings.grey, min_size=settings.min_size) for path in paths)
        samples = [self.preprocess(image) for image in read]
        return self.predict(np.stack(samples) if samples else np.zeros((0, *self.shape)))

    def preprocess(self, image: Image.Image) -> Array:
        """One sample, shape (channels, height, width), from an image of any size and mode."""
        settings = self._image_settings()
        return evaluation_view(image, settings)

    def _image_settings(self) -> ImageSettings:
        if self.images is None:
            raise UserError(f"The model takes arrays of shape {self.shape} for a sample, not image files.")
        return self.images


def evaluation_view(image: Image.Image, settings: ImageSettings) -> Array:
    """An image as the network sees it, shape (channels, size, size): what `Views.evaluation` makes with torch."""
    pixels, whole = upright_pixels(image, grey=settings.grey), (settings.resize, settings.resize)
    if pixels.size != whole:
        pixels = pixels.resize(whole, Image.Resampling.BICUBIC)
    start = round((settings.resize - settings.size) / 2)
    values = np.asarray(pixels.crop((start, start, start + settings.size, start + settings.size)), dtype=np.float32)
    values = np.float32(1 / 255) * values.reshape(settings.size, settings.size, settings.channels).transpose(2, 0, 1)
    mean, std = (np.array(each, dtype=np.float32)[:, None, None] for each in (settings.mean, settings.std))
    return np.ascontiguousarray((values - mean) / std)
