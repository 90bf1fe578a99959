"""`candapt embed`: features of images, to adapt later without them."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from candapt.commands.parser import Parser, flags_of, positional, print_help, required, switch
from candapt.console import counting
from candapt.data.domains import LabeledDomain
from candapt.data.inputs import Reading, is_feature_file, read_domain, read_labeled_domain
from candapt.errors import UserError
from candapt.network.activations import compute_features
from candapt.network.backbones import SMALL_CNN, build_backbone
from candapt.network.build import decide, expected_images
from candapt.settings import ImageChoice, NetworkSettings, TrainingSettings, image_choice
from candapt.storage.files import require_new, write_atomically, writing
from candapt.training.batches import make_fabric

log = logging.getLogger(__name__)

HEAD_SETTINGS = {"finetune", "views", "head", "bottleneck", "rank", "dropout"}
"""Settings of the network that only a training uses."""


@dataclass(frozen=True)
class EmbedOptions:
    """Options of `candapt embed`."""

    input: Path = positional()
    """Folder of images, or .txt file that lists them."""
    out: Path = required()
    """.npz file to write: x, names; with labels y, classes."""
    labeled: bool = switch()
    """INPUT has one subfolder per class; write y and classes."""
    strict: bool = switch()
    """Stop at files that do not decode and classes without an image, rather than leave them out."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    images: ImageChoice = field(default_factory=ImageChoice)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    run(parse(arguments))


def parse(arguments: Sequence[str]) -> EmbedOptions:
    """Options from the command line."""
    groups = [
        *flags_of(NetworkSettings, "network.", skip=HEAD_SETTINGS),
        *flags_of(ImageChoice, "images.", skip={"augmentation"}),
    ]
    parser = Parser("embed", [*flags_of(EmbedOptions, skip={"network", "images"}), *groups])
    given = parser.parse(arguments)
    if given.wants_help:
        print_help(parser.help({}))
    if "out" not in given.values:
        raise UserError("--out is missing; `candapt embed --help` explains it.")
    prefix = "network."
    network = {name.removeprefix(prefix): v for name, v in given.values.items() if name.startswith(prefix)}
    own = {name: value for name, value in given.values.items() if "." not in name}
    return EmbedOptions(**own, network=NetworkSettings(**network), images=image_choice(given.values))


def run(options: EmbedOptions) -> None:
    """Write the features of every image, by a frozen backbone, to an `.npz` file."""
    images, out, network = options.input, options.out, options.network
    require_new(out)
    if is_feature_file(images):
        raise UserError(f"{str(images)!r} holds arrays already: give a folder of images to `candapt embed`.")
    if not is_feature_file(out) or not out.absolute().parent.is_dir():
        raise UserError(f"--out is {str(out)!r}, but must be a file ending in .npz in a folder that exists.")
    name = decide(network, (3, 224, 224)).backbone
    if name == SMALL_CNN and network.weights is None:
        raise UserError(f"{SMALL_CNN} was not pretrained: give its --weights, or another --backbone.")
    backbone = build_backbone(name, weights=network.weights)
    with counting("checking images") as count:
        reading = Reading(expected_images(network, options.images), os.cpu_count() or 1, options.strict, count)
        domain, _ = (read_labeled_domain if options.labeled else read_domain)(images, reading)
    with counting("features") as count:
        features = compute_features(backbone.to(make_fabric(TrainingSettings()).device), domain, count)
    arrays: dict[str, Any] = {"x": features.numpy(), "names": np.array(domain.names)}
    if isinstance(domain, LabeledDomain):
        arrays |= {"y": domain.labels.numpy(), "classes": np.array(domain.classes)}
    with writing(out), write_atomically(out) as part, part.open("wb") as file:
        np.savez(file, **arrays)
    log.info("%d features of %d images by %s: %s", features.shape[1], len(features), name, out)
