"""`candapt embed`: features of images, to adapt later without them."""

import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from candapt import processes
from candapt.commands.launch import ProcessOptions, launched
from candapt.commands.parser import Parser, flags_of, positional, print_help, required, switch
from candapt.console import counting
from candapt.data.domains import LabeledDomain
from candapt.data.features import write_features
from candapt.data.inputs import Reading, is_feature_file, read_domain, read_labeled_domain
from candapt.errors import UserError
from candapt.network.activations import feature_chunks
from candapt.network.backbones import SMALL_CNN, build_backbone, default_backbone
from candapt.network.build import PHOTOGRAPH, decide, expected_images
from candapt.network.modules import Mirrored
from candapt.settings import ImageChoice, NetworkSettings, TrainingSettings, image_choice
from candapt.storage.files import require_new, write_atomically, writing
from candapt.training.batches import make_fabric

log = logging.getLogger(__name__)

HEAD_SETTINGS = {"finetune", "frozen_stem", "views", "head", "bottleneck", "heads", "rank", "dropout"}
"""Settings of the network that only a training uses."""


@dataclass(frozen=True)
class EmbedOptions(ProcessOptions):
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
    options = parse(arguments)
    if not launched("embed", arguments, options):
        run(options)


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
    images = image_choice({"images.size": None, **given.values})  # no source chooses: the target is embedded alone
    return EmbedOptions(**own, network=NetworkSettings(**network), images=images)


def run(options: EmbedOptions) -> None:
    """Write the features of every image, by a frozen backbone, to an `.npz` file."""
    images, out, network = options.input, options.out, options.network
    fabric = make_fabric(TrainingSettings())
    processes.by_first(lambda: require_new(out))
    if is_feature_file(images):
        raise UserError(f"{str(images)!r} holds arrays already: give a folder of images to `candapt embed`.")
    if not is_feature_file(out) or not out.absolute().parent.is_dir():
        raise UserError(f"--out is {str(out)!r}, but must be a file ending in .npz in a folder that exists.")
    if options.images.size == "auto":
        raise UserError("--size auto is for `candapt adapt`: give a number, the same for the source and the target.")
    backbone = pretrained_layers(network)
    with counting("checking images") as count:
        reading = Reading(expected_images(network, options.images), os.cpu_count() or 1, options.strict, count)
        domain, _ = (read_labeled_domain if options.labeled else read_domain)(images, reading)
    arrays: dict[str, Any] = {"names": np.array(domain.names)}
    if isinstance(domain, LabeledDomain):
        arrays |= {"y": domain.labels.numpy(), "classes": np.array(domain.classes)}
    with counting("features") as count:
        chunks = feature_chunks(backbone.to(fabric.device), domain, count)
        first = next(chunks)
        if not processes.is_first():
            deque(chunks, maxlen=0)
            return
        shape = (domain.size, first.shape[1])
        with writing(out), write_atomically(out) as part, part.open("wb") as file:
            write_features(file, chain([first], chunks), shape, **arrays)
    size, mirrored = domain.samples.shape[-1], " with mirror images" if network.mirror else ""
    made = f"{shape[1]} features of {shape[0]} images, {size}×{size}{mirrored}"
    log.info("%s, by %s: %s", made, decide(network, PHOTOGRAPH).backbone, out)


def pretrained_layers(network: NetworkSettings) -> nn.Module:
    """The backbone that the settings name, with its pretrained weights."""
    name = decide(network, PHOTOGRAPH).backbone
    if name == SMALL_CNN and network.weights is None:
        raise UserError(f"{SMALL_CNN} was not pretrained: give its --weights, or another --backbone.")
    if network.backbone == "auto" and network.weights is None and (reason := default_backbone()[1]):
        log.info("%s", reason)
    backbone = build_backbone(name, weights=network.weights)
    return Mirrored(backbone) if network.mirror else backbone
