"""Features of a frozen backbone, computed once for all cells."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from candapt.adaptation import make_fabric
from candapt.benchmark.collections import Collection, EmbeddedCollection, ImageCollection
from candapt.benchmark.plan import Cell, Plan, portable_settings
from candapt.data.features import read_arrays
from candapt.files import write_atomically
from candapt.model import embed_frozen
from candapt.network.backbones import SMALL_CNN
from candapt.network.build import build_layers, decide
from candapt.settings import NetworkSettings, TrainingSettings

log = logging.getLogger(__name__)


def embedded(plan: Plan, missing: Sequence[Cell], out: Path) -> Collection:
    """The plan's collection, as features where a frozen pretrained backbone would make the same ones for every cell."""
    collection, networks = plan.collection, {row.settings.network for row in plan.rows}
    if not isinstance(collection, ImageCollection) or len(networks) > 1:
        return collection
    settings = missing[0].settings
    network = decide(settings.network, _shape(collection))
    if network.finetune != "head" or (network.backbone == SMALL_CNN and network.weights is None):
        return collection
    features = EmbeddedCollection(out / "features", collection, network.backbone)
    told = {"network": portable_settings(settings)["network"], "views": collection.views}
    keys = {name: json.dumps(told | {"data": collection.fingerprint(name)}) for name in _domains(missing)}
    wanted = {name: key for name, key in keys.items() if _key(features.path(name)) != key}
    if wanted:
        embed(features, wanted, network, settings.training)
    return features


def embed(
    features: EmbeddedCollection, keys: dict[str, str], network: NetworkSettings, training: TrainingSettings
) -> None:
    """Write the files of domains, each with a key that tells what it was made of."""
    frozen = build_layers(network, _shape(features.of), 2).frozen
    assert isinstance(frozen, nn.Module)
    frozen.to(make_fabric(training).device)
    features.folder.mkdir(exist_ok=True)
    for name, key in keys.items():
        domain = features.of.domain(name)
        log.info("Computing the frozen backbone's features of %d images of %s, once for all cells.", domain.size, name)
        x = embed_frozen(frozen, domain, training.evaluation_batch).samples.read(torch.arange(domain.size))
        with write_atomically(features.path(name)) as part, part.open("wb") as file:
            np.savez(file, x=x.numpy(), y=domain.labels.numpy(), classes=np.array(domain.classes), key=np.array(key))


def _domains(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in (cell.task.source, cell.task.target)))


def _shape(collection: ImageCollection) -> tuple[int, int, int]:
    return collection.images.channels, collection.images.size, collection.images.size


def _key(path: Path) -> str | None:
    """What a file of features was made of; None if there is no file."""
    return str(read_arrays(path, "key").get("key")) if path.exists() else None
