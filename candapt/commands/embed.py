"""`candapt embed`: features of images, to adapt later without them."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from candapt.adaptation import make_fabric
from candapt.commands.job import expected_images
from candapt.commands.writing import refuse_existing, writing
from candapt.console import counting
from candapt.data.domains import LabeledDomain
from candapt.data.inputs import Reading, is_feature_file, read_domain, read_labeled_domain
from candapt.errors import UserError
from candapt.files import write_atomically
from candapt.frozen import all_rows
from candapt.network.backbones import SMALL_CNN, build_backbone
from candapt.network.build import decide
from candapt.settings import ImageChoice, NetworkSettings, TrainingSettings

log = logging.getLogger(__name__)


def embed(
    images: Path,
    out: Path,
    network: NetworkSettings,
    choice: ImageChoice,
    *,
    labeled: bool = False,
    strict: bool = False,
) -> None:
    """Write the features of every image, as a frozen backbone gives them, to an `.npz` file."""
    refuse_existing(out)
    if is_feature_file(images):
        raise UserError(f"{str(images)!r} holds arrays already: give a folder of images to `candapt embed`.")
    if not is_feature_file(out) or not out.absolute().parent.is_dir():
        raise UserError(f"--out is {str(out)!r}, but must be a file ending in .npz in a folder that exists.")
    name = decide(network, (3, 224, 224)).backbone
    if name == SMALL_CNN and network.weights is None:
        raise UserError(f"{SMALL_CNN} was not pretrained: give its --weights, or another --backbone.")
    backbone = build_backbone(name, weights=network.weights)
    with counting("checking images") as count:
        reading = Reading(expected_images(network, choice), os.cpu_count() or 1, strict, count)
        domain, _ = (read_labeled_domain if labeled else read_domain)(images, reading)
    with counting("features") as count:
        features = all_rows(backbone.to(make_fabric(TrainingSettings()).device), domain, count)
    arrays: dict[str, Any] = {"x": features.numpy(), "names": np.array(domain.names)}
    if isinstance(domain, LabeledDomain):
        arrays |= {"y": domain.labels.numpy(), "classes": np.array(domain.classes)}
    with writing(out), write_atomically(out) as part, part.open("wb") as file:
        np.savez(file, **arrays)
    log.info("%d features of %d images by %s: %s", features.shape[1], len(features), name, out)
