"""From settings and the shape of a sample to a network, and to the frozen layers in front of it if there are any."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from candapt.errors import UserError
from candapt.network.backbones import SMALL_CNN, Depth, build_backbone, split
from candapt.network.network import FeatureBackbone, Network
from candapt.settings import NetworkSettings

PAPER_BACKBONE = "resnet50.tv_in1k"
"""ResNet-50 with the ImageNet weights of the paper's time; what timm calls plain `resnet50` was trained otherwise."""
SMALLEST = 8
"""Height and width that `small-cnn` can halve three times."""
MAX_WEIGHTS = 2**29
"""Weights of the layer over feature vectors: 2 GiB, and its training takes four times that."""


@dataclass(frozen=True)
class Layers:
    """What was built: samples go through `frozen`, which is not trained, and then through `network`."""

    frozen: nn.Module | None
    network: Network
    settings: NetworkSettings
    """The settings with every `auto` decided."""
    layout: dict[str, Any]
    """What is needed besides the settings to build the same again without the weights file."""


def decide(settings: NetworkSettings, shape: tuple[int, ...]) -> NetworkSettings:
    """Replace `auto` by what fits samples of this shape on this machine."""
    backbone, finetune, head = settings.backbone, settings.finetune, settings.head
    if len(shape) == 1:
        backbone, finetune = "features", "head"
    if backbone == "auto":
        backbone = SMALL_CNN if shape[0] == 1 and max(shape) <= 64 else PAPER_BACKBONE
    if finetune == "auto":
        finetune = "all" if backbone == SMALL_CNN or torch.cuda.is_available() else "head"
    if head == "auto":
        head = "linear" if finetune == "all" else "bottleneck"
    return replace(settings, backbone=backbone, finetune=finetune, head=head)


def build_layers(
    settings: NetworkSettings, shape: tuple[int, ...], num_classes: int, layout: dict[str, Any] | None = None
) -> Layers:
    """Build the network; with the `layout` of an earlier one no weights are loaded, because a saved model follows.

    Args:
        settings: how to build it.
        shape: shape of one sample.
        num_classes: number of classes.
        layout: the layout of the network that was saved.
    """
    settings = decide(settings, shape)
    if len(shape) == 1:
        return Layers(None, build_network(nn.Identity(), shape[0], num_classes, settings), settings, {})
    if settings.backbone == SMALL_CNN and min(shape[1:]) < SMALLEST:
        raise UserError(f"{SMALL_CNN} takes images from {SMALLEST}×{SMALLEST} pixels, but these have {shape[1:]}.")
    again = layout is not None
    backbone = build_backbone(
        settings.backbone,
        weights=None if again else settings.weights,
        pretrained=not again,
        bottleneck_stride=layout["bottleneck_stride"] if layout else None,
    )
    if backbone.expects.channels != shape[0]:
        raise UserError(
            f"{settings.backbone} takes images with {backbone.expects.channels} channel(s), but the samples have "
            f"{shape[0]}: choose another --network.backbone."
        )
    layout = {"bottleneck_stride": backbone.bottleneck_stride}
    pretrained = settings.backbone != SMALL_CNN or settings.weights is not None
    depth: Depth = settings.finetune if settings.finetune != "auto" else "all"
    frozen, trained = split(backbone, depth)
    if pretrained and depth == "all":
        freeze_stem(backbone.model)
    network = build_network(trained, backbone.num_features, num_classes, settings, pretrained=pretrained)
    return Layers(None if depth == "all" else frozen.eval().requires_grad_(False), network, settings, layout)


def check_weights(settings: NetworkSettings) -> None:
    """Refuse a weights file that does not fit a backbone for images, before anyone waits for these to be read."""
    if settings.weights is not None:
        with torch.random.fork_rng():
            build_backbone(decide(settings, (3, 224, 224)).backbone, weights=settings.weights)


def build_network(
    trained: nn.Module, num_features: int, num_classes: int, settings: NetworkSettings, *, pretrained: bool = True
) -> Network:
    """What is trained: layers of a backbone, a bottleneck layer if there shall be one, and the classifier.

    Args:
        trained: the layers; nothing but an identity where the samples are features.
        num_features: width of the features that come out of them.
        num_classes: number of classes.
        settings: how to build the head, with every `auto` decided.
        pretrained: whether the layers were pretrained, or the features made by layers that were.
    """
    if settings.head == "linear":
        return Network(trained, num_features, num_classes, pretrained=pretrained)
    width = settings.bottleneck or num_features
    if num_features * width > MAX_WEIGHTS:
        raise UserError(
            f"A layer from {num_features:,} features to {width:,} has more than {MAX_WEIGHTS:,} weights: "
            "give a smaller --network.bottleneck."
        )
    bottleneck = FeatureBackbone(num_features, settings.bottleneck, dropout=settings.dropout, rank=settings.rank)
    only = isinstance(trained, nn.Identity)
    backbone = bottleneck if only else nn.Sequential(OrderedDict(layers=trained, bottleneck=bottleneck))
    # A random map keeps the neighborhoods of pretrained features, so what comes out of it means something at once.
    return Network(
        backbone,
        bottleneck.num_features,
        num_classes,
        pretrained=pretrained and not only,
        starts_at_random=not pretrained,
    )


def freeze_stem(model: nn.Module) -> None:
    """Keep the stem of a ResNet as it is: the authors stop the gradient after `layer1`."""
    for name in ("conv1", "bn1", "layer1"):
        if hasattr(model, name):
            getattr(model, name).requires_grad_(False)
