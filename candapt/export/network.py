"""The target-ready network as one module: from a sample to probabilities, confidence and label."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from candapt.clustering import cosine_distances
from candapt.data.domains import Side
from candapt.evaluation.confidence import (
    SampleConfidence,
    bank_densities,
    calibration,
    mean_evidence,
    sample_evidence,
)
from candapt.evaluation.reference import NEIGHBORS, View, standardized
from candapt.export.metadata import OUTPUTS, SIMILAR, ConfidenceKind
from candapt.model import Model
from candapt.network.activations import LARGEST
from candapt.network.batchnorm import keep_side

MAX_BANK = 2**26  # largest bank of neighbors in a file, in bytes: 2,000 samples of 8,192 features


class TargetNetwork(nn.Module):
    """Everything that `Model.predict` computes for the target, with the batch norms of one domain."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.frozen = copy.deepcopy(model.parts.frozen)
        self.method: Any = keep_side(model.method, model.method.normalizes_as(Side.TARGET))
        self.confidence: nn.Module = SoftmaxConfidence()
        if (calibrator := model.calibrator) is not None:
            self.confidence = BankConfidence(calibrator) if calibrator.needs_features else ClassConfidence(calibrator)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The outputs by name, each of n rows, for samples of shape (n, *shape)."""
        features = x if self.frozen is None else rounded(self.frozen(x))
        probabilities: Tensor = self.method.predict(features, Side.TARGET).probabilities
        confidence, unknown = self.confidence(probabilities, features)
        named = {"probabilities": probabilities, "confidence": confidence, "label": probabilities.argmax(1)}
        similar = self.confidence.similar(features) if isinstance(self.confidence, BankConfidence) else {}
        return named | {"unknown": unknown} | similar

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return (*OUTPUTS, *SIMILAR) if isinstance(self.confidence, BankConfidence) else OUTPUTS


def rounded(values: Tensor) -> Tensor:
    """Outputs of frozen layers as the network was trained on them: in half precision, as `FrozenSamples` gives them."""
    return values.clamp(-LARGEST, LARGEST).half().float()


def without_large_bank(model: Model) -> Model:
    """The model, whose confidence is that of class and softmax if its bank of neighbors is too large for a file."""
    if model.calibrator is None or bank_size(model) <= MAX_BANK:
        return model
    return replace(model, calibrator=SampleConfidence(model.calibrator.kind, model.calibrator.class_confidence))


def confidence_kind(model: Model) -> ConfidenceKind:
    """What the model's confidence comes from."""
    if model.calibrator is None:
        return "softmax"
    return "neighbors" if model.calibrator.needs_features else "class"


def bank_size(model: Model) -> int:
    """Bytes of the stored neighbors in single precision; 0 if there are none."""
    reference = None if model.calibrator is None else model.calibrator.reference
    return 0 if reference is None else 4 * (reference.source.numel() + reference.target.numel())


class SoftmaxConfidence(nn.Module):
    """The probability of the predicted class, for a model that stores nothing to calibrate it with."""

    def forward(self, probabilities: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Confidence of predictions (n, classes), and how likely a sample is unknown: not at all, both (n,)."""
        confidence = probabilities.amax(1)
        return confidence, torch.zeros_like(confidence)


class ClassConfidence(nn.Module):
    """Confidence from the softmax and the class alone."""

    def __init__(self, calibrator: SampleConfidence) -> None:
        super().__init__()
        self.kind = calibrator.kind
        self.register_buffer("class_confidence", calibrator.class_confidence)

    def forward(self, probabilities: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Confidence of predictions (n, classes), and how likely a sample is unknown: not at all, both (n,)."""
        confidence = SampleConfidence(self.kind, self.get_buffer("class_confidence")).of(probabilities)
        return confidence, torch.zeros_like(confidence)


class BankConfidence(nn.Module):
    """Confidence from untouched features and their neighbors among stored samples: `SampleConfidence.of` in one graph.

    What does not depend on the sample is computed here, once.
    """

    def __init__(self, calibrator: SampleConfidence) -> None:
        super().__init__()
        reference, means = calibrator.reference, calibrator.means
        assert reference is not None
        assert means is not None
        self.reference, self.means = reference, means
        fitted = calibration(calibrator.kind, "sample")
        self.names, self.bias = tuple(fitted.weights), fitted.bias
        self.register_buffer("weights", torch.tensor([[fitted.weights[name]] for name in self.names]))
        for place, name in enumerate(("low", "high")):
            self.register_buffer(name, torch.tensor([[fitted.ranges[each][place]] for each in self.names]))
        self.densities = bank_densities(reference, len(reference.centers))
        self.register_buffer("bank_labels", calibrator.bank_labels)
        unknown = calibrator.bank_unknown
        self.register_buffer("bank_unknown", torch.zeros(len(reference.target)) if unknown is None else unknown)
        self.register_buffer("bank_classifier", reference.classify(reference.target))

    def forward(self, probabilities: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Confidence of predictions (n, classes), and how likely samples are none of the classes, both of shape (n,).

        The features (n, d) are those that no adaptation has touched.
        """
        labels, classifier = self.get_buffer("bank_labels"), self.get_buffer("bank_classifier")
        view = self.view(features)
        evidence = sample_evidence(view, probabilities, labels, classifier, self.densities)
        evidence |= mean_evidence(self.means, probabilities.argmax(1))
        weights, low, high = (self.get_buffer(name) for name in ("weights", "low", "high"))
        # `Calibration.confidence` for all evidence at once, which makes the graph half as long.
        terms = torch.stack([evidence[name] for name in self.names]).maximum(low).minimum(high)
        unknown = self.get_buffer("bank_unknown")[view.target_neighbors].mean(1)
        return (1 - unknown) * ((weights * terms).sum(0) + self.bias).sigmoid(), unknown

    def similar(self, features: Tensor) -> dict[str, Tensor]:
        """The nearest stored source samples, the nearest first: their rows and cosines, each of shape (n, k)."""
        reference = self.reference
        units = standardized(features, reference.shift, reference.scale)
        found = (units @ reference.source.T).topk(min(NEIGHBORS, len(reference.source)), dim=1)
        return dict(zip(SIMILAR, (found.indices, found.values), strict=True))

    def view(self, features: Tensor) -> View:
        """What `Reference.view` gives, without its loop over parts of a batch, which no graph can have."""
        reference = self.reference
        units = standardized(features, reference.shift, reference.scale)
        near, sources = (
            (units @ bank.T).topk(min(NEIGHBORS, len(bank)), dim=1).indices
            for bank in (reference.target, reference.source)
        )
        clusters = cosine_distances(units, reference.centers, in_parts=False).argmin(1)
        return View(near, reference.source_labels[sources], reference.classify(units), clusters)
