"""What computes predictions: the PyTorch model of a run, or one exported to ONNX."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn.functional import normalize

from candapt.data.domains import ArraySamples, Domain, Side
from candapt.data.transforms import Views
from candapt.evaluation.reference import standardized
from candapt.model import Model
from candapt.network.activations import after_layers
from candapt.training.outputs import outputs_of

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Predictions for a batch."""

    probabilities: Array  # the network's own, shape (n, classes)
    confidence: Array  # probability that each prediction is right, shape (n,)
    vectors: Array | None = None  # of unit length, to be compared with those of source samples, shape (n, d)

    def __getitem__(self, row: int) -> "Outcome":
        """The prediction for one sample, as a batch of one."""
        rows = slice(row, row + 1)
        vectors = None if self.vectors is None else self.vectors[rows]
        return Outcome(self.probabilities[rows], self.confidence[rows], vectors)


class Engine(Protocol):
    """A loaded model."""

    name: str  # of the library that computes

    def prepare(self, image: Image.Image) -> Array:
        """The network's input for an image, shape (channels, height, width)."""

    def predict(self, batch: Array) -> Outcome:
        """Predictions for a batch of inputs, (n, …)."""


class TorchEngine:
    """The model of a run in PyTorch, which predicts as `candapt predict` does."""

    name = "PyTorch"

    def __init__(self, model: Model) -> None:
        self.model = model
        self.views = Views(model.images) if model.images is not None else None
        self.reference = model.calibrator.reference if model.calibrator is not None else None

    def prepare(self, image: Image.Image) -> Array:
        """The evaluation view."""
        assert self.views is not None  # a model over arrays takes no image files
        view: Array = self.views.evaluation(image).numpy()
        return view

    @torch.no_grad()
    def predict(self, batch: Array) -> Outcome:
        """Probabilities, confidence and vectors; the frozen layers, most of the work, are computed once."""
        model, samples = self.model, after_layers(self.model.parts.frozen, Domain(ArraySamples(batch))).samples
        features = samples.read(torch.arange(len(batch)))
        prepared = Domain(ArraySamples(features))
        outputs = outputs_of(model.method, prepared, Side.TARGET, batch_size=model.batch_size)
        predictions = model.predictions_from(outputs, prepared.names)
        calibrated = model.confidence_of(predictions.probabilities, prepared)
        confidence = predictions.confidence if calibrated is None else calibrated
        if self.reference is None:
            vectors = normalize(outputs.features)
        else:
            vectors = standardized(features, self.reference.shift, self.reference.scale)
        return Outcome(predictions.probabilities.numpy(), confidence.numpy(), vectors.numpy())
