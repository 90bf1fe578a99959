"""From settings and the shape of a sample to a network, and to the frozen layers in front of it if there are any."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from candapt.errors import UserError
from candapt.network.backbones import SMALL_CNN, Backbone, build_backbone, split
from candapt.network.network import FeatureBackbone, Network
from candapt.settings import NetworkSettings

PAPER_BACKBONE = "resnet50.tv_in1k"
"""ResNet-50 with the ImageNet weights of the paper's time; what timm calls plain `resnet50` was trained otherwise."""


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
    if len(shape) == 1:
        return replace(settings, backbone="features", finetune="head")
    backbone, finetune = settings.backbone, settings.finetune
    if backbone == "auto":
        backbone = SMALL_CNN if shape[0] == 1 and max(shape) <= 64 else PAPER_BACKBONE
    if finetune == "auto":
        finetune = "all" if backbone == SMALL_CNN or torch.cuda.is_available() else "head"
    return replace(settings, backbone=backbone, finetune=finetune)


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
        return Layers(None, over_features(shape[0], num_classes, settings), settings, {})
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
    if settings.finetune == "head":
        frozen = backbone.eval().requires_grad_(False)
        return Layers(frozen, over_features(backbone.num_features, num_classes, settings), settings, layout)
    pretrained = settings.backbone != SMALL_CNN or settings.weights is not None
    return Layers(None, over_images(backbone, num_classes, pretrained=pretrained), settings, layout)


def over_features(num_inputs: int, num_classes: int, settings: NetworkSettings) -> Network:
    """A network over feature vectors: batch norm, bottleneck, classifier."""
    backbone = FeatureBackbone(num_inputs, settings.bottleneck, settings.dropout)
    random = backbone.num_features != num_inputs
    return Network(backbone, backbone.num_features, num_classes, starts_at_random=random)


def over_images(backbone: Backbone, num_classes: int, *, pretrained: bool) -> Network:
    """A network that trains a backbone, all but the stem of a ResNet: the authors stop the gradient after `layer1`."""
    _, body = split(backbone, "all")
    if pretrained:
        for name in ("conv1", "bn1", "layer1"):
            if hasattr(backbone.model, name):
                getattr(backbone.model, name).requires_grad_(False)
    return Network(body, backbone.num_features, num_classes, pretrained=pretrained)
