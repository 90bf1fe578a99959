"""An adapted classifier: what `candapt adapt` leaves in a run folder and `candapt.load` gives back."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from candapt.clustering import Clusters, cosine_distances
from candapt.data.domains import Domain, Side
from candapt.data.features import MAX_CLASSES
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.evaluation.predict import outputs_of
from candapt.files import all_finite, read_tensors, tensor_shapes, tensors_below, write_atomically, write_tensors
from candapt.frozen import behind
from candapt.methods import METHODS
from candapt.methods.base import Method
from candapt.network.backbones import BottleneckStride
from candapt.network.build import Layers, build_layers
from candapt.network.network import Outputs
from candapt.settings import NetworkSettings
from candapt.untrusted import contained, fitted, from_plain, read_json, shortened

FORMAT = 1
"""Version of the files; a later one that reads differently counts up."""
MAX_BATCH = 2**31
"""Bytes of a batch when predicting: what a description asks for beyond that is cut into smaller batches."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the model says of each sample, in the order of the domain."""

    names: Sequence[str]
    probabilities: Tensor
    """Shape (n, classes)."""
    features: Tensor
    """Shape (n, num_features)."""
    cluster_labels: Tensor
    """Class of the nearest cluster center, shape (n,)."""
    cluster_distances: Tensor
    """Cosine distance to that center, shape (n,)."""
    kept: Tensor
    """Whether the sample lies in the part of its cluster that training would use, shape (n,)."""

    @property
    def labels(self) -> Tensor:
        """Predicted class of each sample, shape (n,)."""
        return self.probabilities.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, shape (n,)."""
        return self.probabilities.amax(1)

    def write_csv(self, path: Path, classes: Sequence[str]) -> None:
        """Write one line a sample; names are kept byte for byte."""
        columns = (self.labels, self.confidence, self.cluster_labels, self.cluster_distances, self.kept)
        with (
            write_atomically(path) as part,
            part.open("w", newline="", encoding="utf-8", errors="surrogateescape") as f,
        ):
            writer = csv.writer(f)
            writer.writerow(["path", "label", "confidence", "cluster_label", "cluster_distance", "kept"])
            for name, label, confidence, cluster, distance, kept in zip(
                self.names, *(column.tolist() for column in columns), strict=True
            ):
                writer.writerow(
                    [name, classes[label], f"{confidence:.6f}", classes[cluster], f"{distance:.6f}", int(kept)]
                )


@dataclass(eq=False)
class Model:
    """A trained method with all that is needed to use it: class names, input, and the target's cluster centers."""

    method: Method
    method_name: str
    layers: Layers
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    """Shape of one sample as it is read."""
    images: ImageSettings | None
    """How an image file becomes a sample; None for a model over feature files."""
    batch_size: int
    centers: Tensor
    """Final cluster centers of the target, shape (classes, num_features)."""
    reach: Tensor
    """Largest distance to its center at which a sample of each class was kept, shape (classes,); -1 if none was."""

    @torch.no_grad()
    def predict(self, domain: Domain, side: Side = Side.TARGET) -> Predictions:
        """Predictions for every sample; by default with the target's batch norm."""
        if tuple(domain.samples.shape) != tuple(self.shape):
            raise UserError(
                f"The model takes samples of shape {tuple(self.shape)}, but these have {tuple(domain.samples.shape)}: "
                "give what it was trained on."
            )
        prepared = behind(self.layers.frozen, domain)
        return self.read_off(outputs_of(self.method, prepared, side, batch_size=self.batch_size), domain.names)

    def read_off(self, outputs: Outputs, names: Sequence[str]) -> Predictions:
        """Predictions for samples of which the method has given its outputs."""
        distances, nearest = cosine_distances(outputs.features, self.centers).min(1)
        kept = distances <= self.reach[nearest]
        return Predictions(names, outputs.probabilities, outputs.features, nearest, distances, kept)

    def save(self, folder: Path) -> None:
        """Write `model.safetensors` and `model.json`."""
        write_tensors(folder / "model.safetensors", self.tensors())
        with write_atomically(folder / "model.json") as part:
            # Escapes carry class names that are not valid Unicode, as folder names may be.
            part.write_text(json.dumps(self.describe(), indent=2) + "\n", encoding="utf-8")

    def tensors(self) -> dict[str, Tensor]:
        """What `model.safetensors` holds."""
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        if self.layers.frozen is not None:
            tensors |= {f"frozen.{name}": value for name, value in self.layers.frozen.state_dict().items()}
        return tensors | {"centers": self.centers, "reach": self.reach}

    def describe(self) -> dict[str, Any]:
        """What `model.json` holds: all but the tensors."""
        network = asdict(self.layers.settings) | {"weights": None}  # they are in model.safetensors
        return {
            "format": FORMAT,
            "method": self.method_name,
            "settings": asdict(self.method.settings),
            "classes": list(self.classes),
            "shape": list(self.shape),
            "images": asdict(self.images) if self.images else None,
            "network": network,
            "layout": self.layers.layout,
            "batch_size": self.batch_size,
        }


def load(run: str | Path) -> Model:
    """The adapted classifier of a run folder, which may come from a stranger: see `docs/security.md`."""
    folder = Path(run)
    if not (folder / "model.json").exists():
        raise UserError(
            f"{str(folder)!r} holds no finished run (no model.json): give a folder made by `candapt adapt`."
        )
    try:
        told = read_json(contained(folder, "model.json"))
        if told["format"] != FORMAT:
            found = shortened(repr(told["format"]), 40)
            raise UserError(f"{str(folder)!r} was written in format {found}; this version reads {FORMAT}.")
        return _rebuild(told, contained(folder, "model.safetensors"))
    except UserError:
        raise
    except Exception as error:  # a damaged description makes torch and timm raise almost anything
        reason = shortened(f"{type(error).__name__}: {error}", 160)
        raise UserError(f"The model in {str(folder)!r} is damaged ({reason}).") from error


def _rebuild(told: dict[str, Any], weights: Path) -> Model:
    """Build the network that `model.json` describes and fill in its weights.

    It is first built without memory, on torch's meta device: a description that does not fit the weights beside it is
    refused before it can ask for more memory than they take.
    """
    with torch.device("meta"):
        expected = _build(told).tensors()
    if {name: tuple(value.shape) for name, value in expected.items()} != tensor_shapes(weights):
        raise ValueError("model.safetensors does not hold the tensors of the network that model.json describes")
    tensors, _ = read_tensors(weights)
    if not all_finite(tensors.values()):
        raise ValueError("model.safetensors holds values that are NaN or infinite")
    if any(value.is_floating_point() != expected[name].is_floating_point() for name, value in tensors.items()):
        raise ValueError("model.safetensors holds values of another kind than the network")
    model = _build(told)
    model.method.load_state_dict(tensors_below("method.", tensors))
    if model.layers.frozen is not None:
        model.layers.frozen.load_state_dict(tensors_below("frozen.", tensors))
    model.centers.copy_(tensors["centers"])
    model.reach.copy_(tensors["reach"])
    return model


def _build(told: dict[str, Any]) -> Model:
    """A model as described, before its tensors are filled in. No path that is named there is looked at."""
    shape = fitted(told["shape"], tuple[int, ...], "shape")
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise ValueError(f"shape is {shape}")
    classes = fitted(told["classes"], tuple[str, ...], "classes")
    if not 2 <= len(set(classes)) == len(classes) <= MAX_CLASSES:
        raise ValueError(f"{len(classes)} classes are named, {len(set(classes))} of them different")
    images = None if told["images"] is None else from_plain(ImageSettings, told["images"])
    if images is not None and shape != (images.channels, images.size, images.size):
        raise ValueError(f"shape is {shape}, which the image settings do not make")
    settings = from_plain(NetworkSettings, {**told["network"], "weights": None})
    layout = fitted(told["layout"], dict, "layout")  # with one, nothing is loaded: neither a file nor from the hub
    if layout.get("bottleneck_stride") not in (None, *get_args(BottleneckStride)):
        raise ValueError(f"layout is {shortened(repr(layout), 40)}")
    layers = build_layers(settings, shape, len(classes), layout)
    kind = METHODS[fitted(told["method"], str, "method")]
    method = kind(layers.network, from_plain(kind.Settings, told["settings"]))
    batch_size = fitted(told["batch_size"], int, "batch_size")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}")
    return Model(
        method.eval(),
        told["method"],
        layers,
        classes,
        shape,
        images,
        min(batch_size, max(1, MAX_BATCH // (4 * math.prod(shape)))),
        torch.zeros(len(classes), layers.network.num_features),
        torch.zeros(len(classes)),
    )


def reach_of(clusters: Clusters) -> Tensor:
    """The largest distance at which a sample of each class is kept, shape (classes,); -1 where none is."""
    reach = torch.full((len(clusters.centers),), -1.0, dtype=clusters.distances.dtype)
    return reach.scatter_reduce(0, clusters.labels[clusters.kept], clusters.distances[clusters.kept], "amax")
