"""What computes predictions: the PyTorch model of a run, or one exported to ONNX."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from candapt.data.domains import ArraySamples, Domain, Side
from candapt.data.transforms import Views
from candapt.evaluation.reference import NEIGHBORS, standardized
from candapt.model import Model
from candapt.network.activations import after_layers
from candapt.network.network import Outputs
from candapt.serving.source import SourceSamples
from candapt.training.outputs import outputs_of

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Predictions for a batch."""

    probabilities: Array  # the network's own, shape (n, classes)
    confidence: Array  # probability that each prediction is right, shape (n,)
    unknown: Array | None = None  # probability of being none of the classes, shape (n,); None if nothing tells it
    near: "Near | None" = None  # source samples that are similar; None if there are none to compare with

    def __getitem__(self, row: int) -> "Outcome":
        """The prediction for one sample, as a batch of one."""
        rows = slice(row, row + 1)
        unknown = None if self.unknown is None else self.unknown[rows]
        near = None if self.near is None else Near(self.near.rows[rows], self.near.similarity[rows])
        return Outcome(self.probabilities[rows], self.confidence[rows], unknown, near)


class Near(NamedTuple):
    """The source samples most similar to each sample of a batch, the most similar first."""

    rows: npt.NDArray[np.integer[Any]]  # places among those that are compared with, shape (n, k)
    similarity: Array  # cosine, shape (n, k)


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

    def __init__(self, model: Model, source: SourceSamples | None) -> None:
        self.model, self.source = model, source
        self.views = Views(model.images) if model.images is not None else None
        self.reference = model.calibrator.reference if model.calibrator is not None else None

    def prepare(self, image: Image.Image) -> Array:
        """The evaluation view."""
        assert self.views is not None  # a model over arrays takes no image files
        view: Array = self.views.evaluation(image).numpy()
        return view

    @torch.no_grad()
    def predict(self, batch: Array) -> Outcome:
        """Predictions, evidence and neighbors; the frozen layers, most of the work, are computed once."""
        model, samples = self.model, after_layers(self.model.parts.frozen, Domain(ArraySamples(batch))).samples
        features = samples.read(torch.arange(len(batch)))
        prepared = Domain(ArraySamples(features))
        outputs = outputs_of(model.method, prepared, Side.TARGET, batch_size=model.batch_size)
        predictions = model.predictions_from(outputs, prepared.names)
        calibrated, unknown = model.evidence_for(predictions.probabilities, prepared)
        confidence = predictions.confidence if calibrated is None else calibrated
        near = None if self.source is None else self._nearest(features, outputs, self.source.vectors)
        told = None if unknown is None else unknown.numpy()
        return Outcome(predictions.probabilities.numpy(), confidence.numpy(), told, near)

    def _nearest(self, features: Tensor, outputs: Outputs, vectors: Tensor) -> Near:
        """The nearest source samples by features before the adaptation or, without stored ones, after it."""
        if self.reference is None:
            units = normalize(outputs.features)
        else:
            units = standardized(features, self.reference.shift, self.reference.scale)
        found = (units @ vectors.T).topk(min(NEIGHBORS, len(vectors)), dim=1)
        return Near(found.indices.numpy(), found.values.numpy())
