"""Confidence calibrated without target labels: how likely each prediction is right, from untouched evidence.

The log odds of being right are a weighted sum of evidence. `python -m benchmarks.calibration` fits the weights, in
`calibration.json`, on runs whose labels are known. The mean over the target is the estimate of the accuracy.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from candapt.evaluation.reference import BANK, NEIGHBORS, PART, Reference, View, some_rows

EDGE = 0.02  # log odds are taken of shares at least this far from 0 and 1
SOFTMAX_EDGE = 1e-4  # the same for the network's own probabilities, most of which are near 1
PRIOR = 3  # samples with the mean of the whole target that a class's mean starts from
STORED = 2000  # maximum number of samples that a model stores to find neighbors among
FILE = Path(__file__).with_name("calibration.json")

Kind = Literal["pretrained", "scratch"]  # whether features mean something before training, or only after it
Scope = Literal["domain", "sample", "class"]
"""What the evidence is about: a whole target, single samples beside a small bank, or their class and softmax alone."""

EVIDENCE = {
    "neighbors": "share of the nearest target samples with the same prediction",
    "source_neighbors": "share of the nearest source samples with that class",
    "classifier": "probability of that class by a plain classifier of the source",
    "neighbor_classifier": "the same, averaged over the nearest target samples",
    "clusters": "whether a clustering of the untouched features agrees",
    "softmax": "log odds of the network's own probability",
    "all_neighbor_classifier": "`neighbor_classifier` over the whole target, as log odds",
    "class_agreement": "share of the samples predicted as the class on which the classifier agrees, as log odds",
    "class_source_neighbors": "`source_neighbors` over the samples predicted as the class, as log odds",
    "target_density": "target samples to find neighbors among, per class, as decimal logarithm",
    "source_density": "the same of the source",
    "class_confidence": "confidence over the samples predicted as the class, as log odds",
}  # what there is for each prediction


@dataclass(frozen=True, eq=False)
class Means:
    """Evidence averaged over the whole target and over the samples predicted as each class."""

    neighbor_classifier: Tensor  # scalar
    agreement: Tensor  # shape (classes,)
    source_neighbors: Tensor  # shape (classes,)


@dataclass(frozen=True)
class Calibration:
    """Weights of the evidence, and the range of each that they were fitted on."""

    bias: float
    weights: Mapping[str, float]  # by names of `EVIDENCE`
    ranges: Mapping[str, tuple[float, float]]  # evidence outside of it counts as its end: nothing is extrapolated

    def confidence(self, evidence: Mapping[str, Tensor]) -> Tensor:
        """Probability that each prediction is right, shape (n,), from evidence of that shape."""
        terms = [weight * evidence[name].clamp(*self.ranges[name]) for name, weight in self.weights.items()]
        return (self.bias + torch.stack(terms).sum(0)).sigmoid()


def whole_domain(reference: Reference, view: View, probabilities: Tensor) -> tuple[dict[str, Tensor], Means]:
    """The evidence for predictions of the whole target, shape (n, classes), and its means."""
    labels, classes = probabilities.argmax(1), probabilities.shape[1]
    bank = labels[reference.target_rows]
    parts = [  # a few at a time: each sample's neighbors bring the probabilities of all classes
        _of_samples(reference, View(*(value[rows] for value in vars(view).values())), probabilities[rows], bank)
        for rows in torch.split(torch.arange(len(labels)), PART)
    ]
    evidence = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    agrees = (view.classifier.argmax(1) == labels).float()
    means = Means(
        evidence["neighbor_classifier"].mean(),
        class_means(agrees, labels, classes),
        class_means(evidence["source_neighbors"], labels, classes),
    )
    return evidence | mean_evidence(means, labels), means


def _of_samples(reference: Reference, view: View, probabilities: Tensor, bank_labels: Tensor) -> dict[str, Tensor]:
    """Evidence from each sample's own neighborhood; `bank_labels` are predictions for the bank's target samples."""
    densities = bank_densities(reference, probabilities.shape[1])
    return sample_evidence(view, probabilities, bank_labels, reference.classify(reference.target), densities)


def bank_densities(reference: Reference, classes: int) -> tuple[float, float]:
    """Samples per class in the banks of target and source, as decimal logarithms."""
    target, source = (math.log10(len(bank) / classes) for bank in (reference.target, reference.source))
    return target, source


def sample_evidence(
    view: View, probabilities: Tensor, bank_labels: Tensor, bank_classifier: Tensor, densities: tuple[float, float]
) -> dict[str, Tensor]:
    """Evidence from each sample's own neighborhood, from tensors alone, so that it can be exported.

    `bank_labels` (t,) and `bank_classifier` (t, classes) are predictions for the bank's target samples, by the network
    and by the plain source classifier.
    """
    labels = probabilities.argmax(1)
    own, softmax = labels[:, None], probabilities.amax(1)
    return {
        "neighbors": (bank_labels[view.target_neighbors] == own).float().mean(1),
        "source_neighbors": (view.source_neighbors == own).float().mean(1),
        "classifier": view.classifier.gather(1, own).squeeze(1),
        "neighbor_classifier": bank_classifier[view.target_neighbors].mean(1).gather(1, own).squeeze(1),
        "clusters": (view.clusters == labels).float(),
        "softmax": log_odds(softmax, SOFTMAX_EDGE),
        "target_density": torch.full_like(softmax, densities[0]),
        "source_density": torch.full_like(softmax, densities[1]),
    }


def mean_evidence(means: Means, labels: Tensor) -> dict[str, Tensor]:
    """Evidence from the target as a whole and from each prediction's class."""
    return {
        "all_neighbor_classifier": log_odds(means.neighbor_classifier).expand_as(labels),
        "class_agreement": log_odds(means.agreement)[labels],
        "class_source_neighbors": log_odds(means.source_neighbors)[labels],
    }


def class_means(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean of the values of each class, shape (classes,), drawn to the mean of all by `PRIOR` samples."""
    sums = labels.bincount(values, minlength=classes)
    return ((sums + PRIOR * values.mean()) / (labels.bincount(minlength=classes) + PRIOR)).float()


def log_odds(share: Tensor, edge: float = EDGE) -> Tensor:
    """Log odds of shares, which are clamped away from 0 and 1, where they are infinite."""
    return share.clamp(edge, 1 - edge).logit()


@dataclass(frozen=True, eq=False)
class SampleConfidence:
    """Confidence of new samples one by one, with what a model stores of the target that it was adapted to."""

    kind: Kind
    class_confidence: Tensor  # mean confidence of the target samples predicted as each class, shape (classes,)
    reference: Reference | None = None  # with small banks; None if untouched features cannot be had later
    bank_labels: Tensor | None = None  # predictions for the target samples of its bank
    means: Means | None = None
    bank_unknown: Tensor | None = None  # how likely each target sample of its bank is unknown; None if nothing tells it

    def of(self, probabilities: Tensor, features: Tensor | None = None) -> Tensor:
        """Confidence of predictions (n, classes) for samples with these untouched features (n, d), shape (n,)."""
        labels = probabilities.argmax(1)
        if self.reference is None or self.bank_labels is None or self.means is None or features is None:
            own = {
                "softmax": log_odds(probabilities.amax(1), SOFTMAX_EDGE),
                "class_confidence": log_odds(self.class_confidence)[labels],
            }
            return calibration(self.kind, "class").confidence(own)
        view = self.reference.view(features)
        evidence = _of_samples(self.reference, view, probabilities, self.bank_labels)
        confidence = calibration(self.kind, "sample").confidence(evidence | mean_evidence(self.means, labels))
        unknown = self._unknown(view)
        return confidence if unknown is None else (1 - unknown) * confidence

    def unknown_of(self, features: Tensor) -> Tensor | None:
        """How likely samples with these untouched features (n, d) are none of the classes, shape (n,)."""
        return None if self.reference is None else self._unknown(self.reference.view(features))

    def _unknown(self, view: View) -> Tensor | None:
        """The mean over the nearest target samples."""
        return None if self.bank_unknown is None else self.bank_unknown[view.target_neighbors].mean(1)

    @property
    def needs_features(self) -> bool:
        """Whether it uses untouched features of new samples."""
        return self.reference is not None

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the kind, to be stored."""
        tensors = {"class_confidence": self.class_confidence}
        for name, part in (("reference", self.reference), ("means", self.means)):
            tensors |= {} if part is None else {f"{name}.{key}": value for key, value in vars(part).items()}
        banks = {"bank_labels": self.bank_labels, "bank_unknown": self.bank_unknown}
        return tensors | {name: each for name, each in banks.items() if each is not None}

    @classmethod
    def from_tensors(cls, kind: Kind, tensors: Mapping[str, Tensor]) -> "SampleConfidence":
        """The inverse of `tensors`; a `KeyError` or `TypeError` if some are missing."""
        if not any(name.startswith("reference.") for name in tensors):
            return cls(kind, tensors["class_confidence"])
        reference, means = (
            {name.removeprefix(f"{part}."): each for name, each in tensors.items() if name.startswith(f"{part}.")}
            for part in ("reference", "means")
        )
        banks = tensors["bank_labels"], tensors.get("bank_unknown")
        return cls(kind, tensors["class_confidence"], Reference(**reference), banks[0], Means(**means), banks[1])

    def check(self, classes: int, width: int) -> None:
        """Raise a `ValueError` for tensors, perhaps from a stranger, that do not fit a network of this size."""
        expected: dict[str, tuple[int, ...]] = {"class_confidence": (classes,)}
        if self.reference is not None:
            banks = len(self.reference.source), len(self.reference.target)
            if not all(0 < size <= STORED for size in banks):
                raise ValueError(f"the banks hold {banks} samples")
            expected |= {
                **{f"reference.{name}": (width,) for name in ("shift", "scale")},
                **{"reference.weights": (width, classes), "reference.bias": (classes,)},
                **{"reference.centers": (classes, width), "bank_labels": (banks[1],)},
                **{"reference.source": (banks[0], width), "reference.source_labels": (banks[0],)},
                **{"reference.target": (banks[1], width), "reference.target_rows": (banks[1],)},
                **{"means.neighbor_classifier": (), "means.agreement": (classes,)},
                "means.source_neighbors": (classes,),
            }
            expected |= {} if self.bank_unknown is None else {"bank_unknown": (banks[1],)}
        shapes = {name: tuple(value.shape) for name, value in self.tensors().items()}
        if shapes != expected:
            wrong = next(name for name in expected | shapes if shapes.get(name) != expected.get(name))
            raise ValueError(f"{wrong} has shape {shapes.get(wrong)}, not {expected.get(wrong)}")
        labels = [self.reference.source_labels, self.bank_labels] if self.reference is not None else []
        for each in labels:
            if each is None or each.is_floating_point() or not 0 <= int(each.min()) <= int(each.max()) < classes:
                raise ValueError("a label in a bank is not one of the classes")
        if (
            self.bank_unknown is not None
            and not 0 <= float(self.bank_unknown.min()) <= float(self.bank_unknown.max()) <= 1
        ):
            raise ValueError("bank_unknown holds values that are no probabilities")


def stored_source_rows(samples: int, classes: int) -> Tensor:
    """Rows of a source of this size that a model stores to find neighbors among: of its reference, reduced."""
    rows = some_rows(samples, max(BANK, NEIGHBORS * classes))
    return rows[some_rows(len(rows), STORED // 2)]


def calibration(kind: Kind, scope: Scope) -> Calibration:
    """The fitted weights for a kind of features and a scope of evidence."""
    each = _fitted()[kind][scope]
    return Calibration(
        each["bias"], each["weights"], {name: (low, high) for name, (low, high) in each["ranges"].items()}
    )


def margins() -> dict[str, dict[str, float]]:
    """By kind: how far nine of ten estimates were off at most, on targets left out, for good and for doubtful runs."""
    return {kind: each["margins"] for kind, each in _fitted().items()}


@cache
def _fitted() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content
