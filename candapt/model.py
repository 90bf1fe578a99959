"""An adapted classifier: what `candapt adapt` writes to a run folder and `candapt.load` reads."""

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from candapt.clustering import Clusters, cosine_distances
from candapt.data.domains import Domain, Side
from candapt.data.features import MAX_CLASSES
from candapt.errors import UserError
from candapt.evaluation.confidence import Kind, SampleConfidence
from candapt.evaluation.unknown import LIKELY
from candapt.methods import METHODS
from candapt.methods.base import Method
from candapt.network.activations import after_layers
from candapt.network.backbones import BottleneckStride
from candapt.network.build import NetworkParts, build_parts
from candapt.network.network import Bottleneck, Outputs
from candapt.settings import ImageSettings, NetworkSettings
from candapt.storage import files
from candapt.storage.files import tensors_below
from candapt.storage.safe_reading import contained, fitted, from_plain, read_json, shortened
from candapt.training.outputs import batches_of, outputs_of, read_in_order

CONFIDENCE = "confidence.safetensors"  # what tells the confidence of new samples, in half precision
FORMAT = 1  # version of the files; it increases when they must be read differently
MAX_SOURCES = 1000  # sources with a batch norm of their own; more are taken for a mistake
UNKNOWN = "unknown"  # what the class of an unknown object is called, if it shall have a name
MAX_BATCH = 2**31  # largest batch in bytes when predicting; a larger batch size in a model file is lowered to this


class PredictionRow(NamedTuple):
    """The prediction for one sample: a line of `predictions.csv`."""

    path: str
    label: str  # name of the predicted class
    confidence: float  # probability that the prediction is right, calibrated where the model can
    softmax: float  # the network's own probability of the class
    unknown: float | None  # probability of being none of the classes; None if nothing tells it
    cluster_label: str  # class of the nearest cluster
    cluster_distance: float  # cosine distance to its center
    kept: bool  # whether training would use the sample


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for each sample, in the order of the domain."""

    names: Sequence[str]
    probabilities: Tensor  # shape (n, classes)
    features: Tensor  # shape (n, num_features); none after a training on a large target
    cluster_labels: Tensor  # class of the nearest cluster center, shape (n,)
    cluster_distances: Tensor  # cosine distance to that center, shape (n,)
    kept: Tensor  # whether the sample lies in the part of its cluster that training would use, shape (n,)
    calibrated: Tensor | None = None  # probability that each prediction is right, shape (n,); None where it is unknown
    unknown: Tensor | None = None  # probability of being none of the classes, shape (n,); None if nothing tells it

    @property
    def labels(self) -> Tensor:
        """Predicted class of each sample, shape (n,)."""
        return self.probabilities.argmax(1)

    @property
    def softmax(self) -> Tensor:
        """The network's own probability of the predicted class, shape (n,); usually too high."""
        return self.probabilities.amax(1)

    @property
    def confidence(self) -> Tensor:
        """Probability that each prediction is right, shape (n,): calibrated, or else the softmax."""
        return self.softmax if self.calibrated is None else self.calibrated

    def names_of(self, classes: Sequence[str], *, name_unknown: bool = False) -> list[str]:
        """Name of each sample's class; of one that is likely none of them, if wanted, `unknown`."""
        is_unknown = [False] * len(self.names)
        if name_unknown and self.unknown is not None:
            is_unknown = (self.unknown > LIKELY).tolist()
        labels = self.labels.tolist()
        return [UNKNOWN if other else classes[label] for label, other in zip(labels, is_unknown, strict=True)]

    def rows(self, classes: Sequence[str], *, name_unknown: bool = False) -> list[PredictionRow]:
        """The predictions one by one, with the names of the classes."""
        labels = self.names_of(classes, name_unknown=name_unknown)
        unknown = [None] * len(self.names) if self.unknown is None else self.unknown.tolist()
        clusters = [classes[label] for label in self.cluster_labels.tolist()]
        confidence, softmax = self.confidence, self.softmax.tolist()
        if name_unknown and self.unknown is not None:
            confidence = torch.where(self.unknown > LIKELY, self.unknown, confidence)  # of the name that is given
        evidence = (clusters, self.cluster_distances.tolist(), self.kept.tolist())
        columns = zip(self.names, labels, confidence.tolist(), softmax, unknown, *evidence, strict=True)
        return [PredictionRow(*values) for values in columns]

    def write_csv(self, path: Path, classes: Sequence[str], *, name_unknown: bool = False) -> None:
        """Write one line per sample; names are kept byte for byte."""
        with files.write_atomically(path) as part, files.open_table(part) as file:
            writer = csv.writer(file)
            writer.writerow(PredictionRow._fields)
            for row in self.rows(classes, name_unknown=name_unknown):
                writer.writerow([_as_text(value) for value in row])


def _as_text(value: str | float | bool | None) -> str:
    """A value as `predictions.csv` has it."""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6f}" if isinstance(value, float) else value or ""


@dataclass(eq=False)
class Model:
    """A trained method with everything that is needed to use it: class names, input, and cluster centers."""

    method: Method
    method_name: str
    parts: NetworkParts
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # shape of one sample as it is read
    images: ImageSettings | None  # how an image file becomes a sample; None for a model over feature files
    batch_size: int
    centers: Tensor  # final cluster centers of the target, shape (classes, num_features)
    reach: Tensor
    """Largest distance to its center at which a sample of each class was kept, shape (classes,); -1 if none was."""
    calibrator: SampleConfidence | None = None  # confidence of new samples; None for models of older versions
    names_unknown: bool = False  # whether the class of an unknown object is called `unknown`

    @torch.no_grad()
    def predict(self, domain: Domain, side: Side = Side.TARGET, *, together: bool = False) -> Predictions:
        """Predictions for every sample; by default with the target's batch norm.

        If several processes ask for them `together`, each computes some.
        """
        if tuple(domain.samples.shape) != tuple(self.shape):
            raise UserError(
                f"The model takes samples of shape {tuple(self.shape)}, but these have {tuple(domain.samples.shape)}: "
                "give what it was trained on."
            )
        prepared = after_layers(self.parts.frozen, domain)
        outputs = outputs_of(self.method, prepared, side, batch_size=self.batch_size, together=together)
        predictions = self.predictions_from(outputs, domain.names)
        calibrated, unknown = self.evidence_for(predictions.probabilities, prepared, together=together)
        return replace(predictions, calibrated=calibrated, unknown=unknown)

    def evidence_for(
        self, probabilities: Tensor, prepared: Domain, *, together: bool = False
    ) -> tuple[Tensor | None, Tensor | None]:
        """Calibrated confidence and probability of being unknown, for samples after the frozen layers, where known."""
        if self.calibrator is None:
            return None, None
        if not self.calibrator.needs_features:
            return self.calibrator.of(probabilities), None
        confidences, unknowns = list[Tensor](), list[Tensor]()
        batches = batches_of(prepared, self.batch_size, together=together)
        for rows, features in zip(batches.own, read_in_order(self.method, prepared, batches), strict=True):
            confidences.append(self.calibrator.of(probabilities[rows], features.cpu()))
            unknown = self.calibrator.unknown_of(features.cpu())
            unknowns += [] if unknown is None else [unknown]
        finds_unknown = self.calibrator.bank_unknown is not None
        return batches.join(confidences), batches.join(unknowns) if finds_unknown else None

    def predictions_from(self, outputs: Outputs, names: Sequence[str]) -> Predictions:
        """Predictions for samples whose outputs are known."""
        distances, nearest = cosine_distances(outputs.features, self.centers).min(1)
        kept = distances <= self.reach[nearest]
        return Predictions(names, outputs.probabilities, outputs.features, nearest, distances, kept)

    def save(self, folder: Path) -> None:
        """Write `model.safetensors` and `model.json`."""
        files.write_tensors(folder / "model.safetensors", self.tensors())
        if self.calibrator is not None:
            halves = {n: v.half() if v.is_floating_point() else v for n, v in self.calibrator.tensors().items()}
            files.write_tensors(folder / CONFIDENCE, halves, {"kind": self.calibrator.kind})
        files.write_json(folder / "model.json", self.describe())

    def tensors(self) -> dict[str, Tensor]:
        """The content of `model.safetensors`."""
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        if self.parts.frozen is not None:
            tensors |= {f"frozen.{name}": value for name, value in self.parts.frozen.state_dict().items()}
        return tensors | {"centers": self.centers, "reach": self.reach}

    def describe(self) -> dict[str, Any]:
        """The content of `model.json`: everything but the tensors."""
        network = asdict(self.parts.settings) | {"weights": None}  # they are in model.safetensors
        return {
            "format": FORMAT,
            "method": self.method_name,
            "settings": asdict(self.method.settings),
            "classes": list(self.classes),
            "shape": list(self.shape),
            "images": asdict(self.images) if self.images else None,
            "network": network,
            "layout": self.parts.layout,
            "batch_size": self.batch_size,
            **({"sources": self.parts.network.num_sources} if self.parts.network.num_sources > 1 else {}),
            "names_unknown": self.names_unknown,
        }


def load(run: str | Path) -> Model:
    """Load the adapted classifier of a run folder, which may come from a stranger: see `docs/security.md`."""
    folder = Path(run)
    if not (folder / "model.json").exists():
        advice = "give a folder made by `candapt adapt`"
        raise UserError(f"{str(folder)!r} holds no finished run (no model.json): {advice}.")
    try:
        description = read_json(contained(folder, "model.json"))
        if description["format"] != FORMAT:
            version = shortened(repr(description["format"]), 40)
            raise UserError(f"{str(folder)!r} was written in format {version}; this version reads {FORMAT}.")
        model = _rebuild(description, contained(folder, "model.safetensors"))
        return replace(model, calibrator=_read_calibrator(folder, model))
    except UserError:
        raise
    except Exception as error:  # a damaged description makes torch and timm raise almost anything
        reason = shortened(f"{type(error).__name__}: {error}", 160)
        raise UserError(f"The model in {str(folder)!r} is damaged ({reason}).") from error


def _rebuild(description: dict[str, Any], weights: Path) -> Model:
    """Build the network that `model.json` describes and fill in its weights.

    It is first built without memory, on torch's meta device: a description that does not fit the weights beside it
    fails before it can claim more memory than they take.
    """
    with torch.device("meta"):
        expected = _build(description).tensors()
    if {name: tuple(value.shape) for name, value in expected.items()} != files.tensor_shapes(weights):
        raise ValueError("model.safetensors does not hold the tensors of the network that model.json describes")
    tensors, _ = files.read_tensors(weights)
    if not files.all_finite(tensors.values()):
        raise ValueError("model.safetensors holds values that are NaN or infinite")
    if any(value.is_floating_point() != expected[name].is_floating_point() for name, value in tensors.items()):
        raise ValueError("model.safetensors holds values of another kind than the network")
    model = _build(description)
    model.method.load_state_dict(tensors_below("method.", tensors))
    if model.parts.frozen is not None:
        model.parts.frozen.load_state_dict(tensors_below("frozen.", tensors))
    model.centers.copy_(tensors["centers"])
    model.reach.copy_(tensors["reach"])
    return model


def _read_calibrator(folder: Path, model: Model) -> SampleConfidence | None:
    """What tells the confidence of new samples; None if the run has none."""
    if not (folder / CONFIDENCE).exists():
        return None
    stored, metadata = files.read_tensors(contained(folder, CONFIDENCE))
    if not files.all_finite(stored.values()):
        raise ValueError(f"{CONFIDENCE} holds values that are NaN or infinite")
    tensors = {name: value.float() if value.is_floating_point() else value for name, value in stored.items()}
    calibrator = SampleConfidence.from_tensors(fitted(metadata.get("kind"), Kind, "kind"), tensors)
    network = model.method.network
    width = network.backbone.num_inputs if isinstance(network.backbone, Bottleneck) else network.num_features
    calibrator.check(len(model.classes), width)
    return calibrator


def _build(description: dict[str, Any]) -> Model:
    """A model as described, before its tensors are filled in. Paths in the description are not used."""
    shape = fitted(description["shape"], tuple[int, ...], "shape")
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise ValueError(f"shape is {shape}")
    classes = fitted(description["classes"], tuple[str, ...], "classes")
    if not 2 <= len(set(classes)) == len(classes) <= MAX_CLASSES:
        raise ValueError(f"{len(classes)} classes are named, {len(set(classes))} of them different")
    images = None if description["images"] is None else from_plain(ImageSettings, description["images"])
    if images is not None and shape != (images.channels, images.size, images.size):
        raise ValueError(f"shape is {shape}, which the image settings do not make")
    settings = from_plain(NetworkSettings, {**description["network"], "weights": None})
    # With a layout, nothing is loaded: neither a file nor from the hub.
    layout = fitted(description["layout"], dict, "layout")
    if layout.get("bottleneck_stride") not in (None, *get_args(BottleneckStride)):
        raise ValueError(f"layout is {shortened(repr(layout), 40)}")
    parts = build_parts(settings, shape, len(classes), layout)
    sources = fitted(description.get("sources", 1), int, "sources")
    if not 1 <= sources <= MAX_SOURCES:
        raise ValueError(f"sources is {sources}")
    parts.network.add_sources(sources)
    kind = METHODS[fitted(description["method"], str, "method")]
    method = kind(parts.network, from_plain(kind.Settings, description["settings"]))
    batch_size = fitted(description["batch_size"], int, "batch_size")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}")
    return Model(
        method.eval(),
        description["method"],
        parts,
        classes,
        shape,
        images,
        min(batch_size, max(1, MAX_BATCH // (4 * math.prod(shape)))),
        torch.zeros(len(classes), parts.network.num_features),
        torch.zeros(len(classes)),
        names_unknown=fitted(description.get("names_unknown", False), bool, "names_unknown"),
    )


def reach_of(clusters: Clusters) -> Tensor:
    """The largest distance at which a sample of each class is kept, shape (classes,); -1 where none is."""
    reach = torch.full((len(clusters.centers),), -1.0, dtype=clusters.distances.dtype)
    return reach.scatter_reduce(0, clusters.labels[clusters.kept], clusters.distances[clusters.kept], "amax")
