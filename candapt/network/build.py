"""From settings and the shape of a sample to a network, and the frozen layers in front of it if there are any."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from candapt.errors import UserError
from candapt.network.backbones import (
    PAPER_BACKBONE,
    SMALL_CNN,
    Depth,
    build_backbone,
    check_weights,
    default_backbone,
    input_settings,
    split,
)
from candapt.network.modules import Mirrored
from candapt.network.network import Bottleneck, Network
from candapt.network.packaged import full_name
from candapt.settings import ImageChoice, ImageSettings, NetworkSettings

SMALLEST = 8  # height and width that `small-cnn` can halve three times
PHOTOGRAPH = (3, 224, 224)  # a shape of samples that are photographs
MAX_WEIGHTS = 2**29  # weights of the layer over feature vectors: 2 GiB, and its training takes four times that


@dataclass(frozen=True)
class NetworkParts:
    """A network in two parts: samples pass through `frozen`, which is not trained, and then through `network`."""

    frozen: nn.Module | None
    network: Network
    settings: NetworkSettings  # the settings with every `auto` decided
    layout: dict[str, Any]  # what is needed besides the settings to rebuild it without the weights file


def decide(settings: NetworkSettings, shape: tuple[int, ...]) -> NetworkSettings:
    """Replace `auto` by what fits samples of this shape on this machine."""
    backbone, finetune, head = settings.backbone, settings.finetune, settings.head
    if len(shape) == 1:
        backbone, finetune = "features", "head"
    if backbone == "auto" and shape[0] == 1 and max(shape) <= 64:
        backbone = SMALL_CNN
    elif backbone == "auto":
        backbone = default_backbone()[0] if settings.weights is None else PAPER_BACKBONE
    if finetune == "auto":
        finetune = "all" if backbone == SMALL_CNN or torch.cuda.is_available() else "head"
    if head == "auto":
        head = "linear" if finetune == "all" else "bottleneck"
    heads = settings.heads if head == "bottleneck" and settings.bottleneck is not None else 1  # else all start alike
    # A small CNN that starts at random has learned nothing of views, and dropout alone would not make up for it.
    views = 0 if finetune == "head" and backbone != SMALL_CNN and len(shape) > 1 else 2
    views = views if settings.views is None else settings.views
    return replace(settings, backbone=full_name(backbone), finetune=finetune, head=head, heads=heads, views=views)


def depends_on_machine(settings: NetworkSettings) -> NetworkSettings:
    """The settings for photographs with those decided that another machine or another day would decide otherwise."""
    decided = decide(settings, PHOTOGRAPH)
    return replace(settings, backbone=decided.backbone, finetune=decided.finetune)


def build_parts(
    settings: NetworkSettings, shape: tuple[int, ...], num_classes: int, layout: dict[str, Any] | None = None
) -> NetworkParts:
    """Build the network for samples of this shape.

    With the `layout` of a saved network no weights are loaded, since those of the saved one follow.
    """
    settings = decide(settings, shape)
    if settings.mirror and (len(shape) == 1 or settings.finetune != "head"):
        kind = "features have none" if len(shape) == 1 else f"network.finetune is {settings.finetune}"
        raise UserError(
            f"network.mirror is for a head over the features of a frozen backbone and of its mirror images, but {kind}."
        )
    if len(shape) == 1:
        return NetworkParts(None, build_network(nn.Identity(), shape[0], num_classes, settings), settings, {})
    name, weights = settings.backbone, settings.weights
    if name == SMALL_CNN and min(shape[1:]) < SMALLEST:
        raise UserError(f"{SMALL_CNN} takes images from {SMALLEST}×{SMALLEST} pixels, but these have {shape[1:]}.")
    new, stride = layout is None, layout["bottleneck_stride"] if layout else None
    backbone = build_backbone(name, weights=weights if new else None, pretrained=new, bottleneck_stride=stride)
    if backbone.expects.channels != shape[0]:
        raise UserError(
            f"{name} takes images with {backbone.expects.channels} channel(s), but the samples have {shape[0]}: "
            "choose another --network.backbone."
        )
    pretrained = name != SMALL_CNN or weights is not None
    depth: Depth = settings.finetune if settings.finetune != "auto" else "all"
    frozen, trained = split(backbone, depth)
    if pretrained and depth == "all" and settings.frozen_stem:
        freeze_stem(backbone.model)
    network = build_network(trained, backbone.num_features, num_classes, settings, pretrained=pretrained)
    layout = {"bottleneck_stride": backbone.bottleneck_stride}
    frozen = (Mirrored(frozen) if settings.mirror else frozen).eval().requires_grad_(False)
    return NetworkParts(None if depth == "all" else frozen, network, settings, layout)


def check_named_weights(settings: NetworkSettings) -> None:
    """Raise a `UserError` for a weights file that does not fit the backbone, before images are read."""
    if settings.weights is not None:
        check_weights(decide(settings, PHOTOGRAPH).backbone, settings.weights)


def expected_images(network: NetworkSettings, choice: ImageChoice) -> ImageSettings:
    """How image files become the input of the backbone, unless the user chose otherwise; `auto` is its own size."""
    expects = input_settings(decide(network, PHOTOGRAPH).backbone)
    size = choice.size if isinstance(choice.size, int) else expects.size
    return ImageSettings.for_input(
        size, expects.mean, expects.std, resize=choice.resize, augmentation=choice.augmentation, shrink=choice.shrink
    )


def build_network(
    trained: nn.Module, num_features: int, num_classes: int, settings: NetworkSettings, *, pretrained: bool = True
) -> Network:
    """The part that is trained: layers of a backbone, a bottleneck layer if the settings ask for one, and the head.

    Without layers, samples are features and `trained` is an identity; `pretrained` then is about what made them.
    """
    if settings.head == "linear":
        return Network(trained, num_features, num_classes, pretrained=pretrained)
    width = settings.heads * (settings.bottleneck or num_features)
    if num_features * width > MAX_WEIGHTS:
        raise UserError(
            f"A layer from {num_features:,} features to {width:,} has more than {MAX_WEIGHTS:,} weights: "
            "give a smaller --network.bottleneck or fewer --network.heads."
        )
    heads, dropout = settings.heads, settings.dropout
    layer = Bottleneck(num_features, settings.bottleneck, heads=heads, dropout=dropout, rank=settings.rank)
    alone = isinstance(trained, nn.Identity)
    backbone = layer if alone else nn.Sequential(OrderedDict(layers=trained, bottleneck=layer))
    network = Network(backbone, width, num_classes, heads=heads, pretrained=pretrained and not alone)
    # A random map keeps the neighborhoods of pretrained features, so its outputs are meaningful at once.
    network.starts_at_random = not pretrained
    return network


def freeze_stem(model: nn.Module) -> None:
    """Keep the stem of a ResNet as it is: the authors stop the gradient after `layer1`; its statistics still move."""
    for name in ("conv1", "bn1", "layer1") if hasattr(model, "layer1") else ():
        if hasattr(model, name):
            getattr(model, name).requires_grad_(False)
