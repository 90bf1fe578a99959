"""Backbones: timm's models by name, a small network for small grey images, and their weights."""

import copy
import difflib
import socket
import urllib.request
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from candapt import torchvision_ops  # noqa: F401  (must come before timm)
from candapt.errors import UserError
from candapt.files import all_finite, read_tensors
from candapt.network.small_cnn import SmallCNN
from candapt.untrusted import shortened

import timm  # isort: skip

SMALL_CNN = "small-cnn"
"""Name of the built-in network for small grey images."""

Depth = Literal["all", "last-stage", "head"]
BottleneckStride = Literal["1x1", "3x3"]

State = dict[str, Tensor]


@dataclass(frozen=True)
class InputSpec:
    """The images that a backbone expects."""

    size: int
    """Height and width."""
    mean: tuple[float, ...]
    """Mean of each channel, for values in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel."""

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self.mean)


class Backbone(nn.Module):
    """Images (n, c, h, w) to features (n, num_features)."""

    def __init__(
        self, name: str, model: nn.Module, *, num_features: int, expects: InputSpec, bottleneck_stride: BottleneckStride
    ) -> None:
        """Wrap a model that has no classifier.

        Args:
            name: what `build_backbone` was asked for.
            model: has `forward_features` and `forward_head`, and maps images to features.
            num_features: width of the features.
            expects: the images it was made for.
            bottleneck_stride: which convolution of a ResNet's bottleneck has the stride; needed to build it again.
        """
        super().__init__()
        self.name = name
        self.model = model
        self.num_features = num_features
        self.expects = expects
        self.bottleneck_stride: BottleneckStride = bottleneck_stride

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
    """Make a backbone, with weights unless a random start is asked for.

    Args:
        name: a model of timm, with or without the tag of its weights (`resnet50`, `resnet101.tv_in1k`), or `small-cnn`.
        weights: a `.safetensors`, `.pth` or `.pt` file to load; a classifier in it is passed over.
        pretrained: without a file, load timm's own weights. `small-cnn` has none and always starts at random.
        bottleneck_stride: the layout of a ResNet's bottlenecks; by default what the weights file says, else timm's 3x3.

    Raises:
        UserError: the name is unknown, or the weights cannot be had or do not fit.
    """
    download = pretrained and weights is None
    model: Any
    model, expects = (SmallCNN(), SMALL_INPUT) if name == SMALL_CNN else _timm_model(name, download=download)
    state, metadata = read_weights(weights) if weights is not None else ({}, {})
    stride = bottleneck_stride or _stride_of(metadata, weights)
    if stride != "3x3":
        _move_stride_to_first(model, name)
    if weights is not None:
        _load(model, state, weights, name)
    # Some families widen the features once more in the head, which `num_features` does not tell.
    num_features = int(getattr(model, "head_hidden_size", None) or model.num_features)
    return Backbone(name, model, num_features=num_features, expects=expects, bottleneck_stride=stride)


def split(backbone: Backbone, depth: Depth = "last-stage") -> tuple[nn.Module, nn.Module]:
    """Cut a backbone where training is to begin: `suffix(prefix(x))` is `backbone(x)`.

    Both parts share their modules with the backbone, name them as it does, and have none in common.

    Args:
        backbone: what to cut.
        depth: `all` leaves nothing in front, `head` nothing behind; `last-stage` cuts before a ResNet's `layer4`, a
            ConvNeXt's last stage, the last quarter of a ViT's blocks, or the last convolution of `small-cnn`.

    Returns:
        The part in front of the cut and the part behind it.

    Raises:
        UserError: the last stage of such a model is not known.
    """
    if depth not in get_args(Depth):
        raise UserError(f"The depth of training must be one of {get_args(Depth)}, not {depth!r}.")
    if depth == "all":
        return nn.Identity(), backbone
    if depth == "head":
        return backbone, nn.Identity()
    layout = _layout(backbone)
    return _Prefix(backbone.model, layout), _Suffix(backbone.model, layout)


def read_weights(path: Path) -> tuple[State, dict[str, str]]:
    """Tensors of a weights file, in single precision, and its metadata (safetensors only). No pickle is run.

    Raises:
        UserError: the file is missing, of another kind, or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"The weights file {str(path)!r} does not exist; check the path.")
    if path.suffix.lower() not in _READERS:
        raise UserError(f"The weights file {str(path)!r} must end in one of {', '.join(_READERS)}.")
    try:
        state, metadata = _READERS[path.suffix.lower()](path)
        if not all_finite(state.values()):
            raise ValueError("it holds values that are NaN or infinite")
        if any(value.is_complex() for value in state.values()):
            raise ValueError("it holds complex numbers")
    except Exception as error:  # damaged files make the readers raise almost anything
        raise UserError(
            f"The weights file {str(path)!r} cannot be read as plain tensors ({_first_line(error)})."
        ) from error
    return {name: _single_precision(value) for name, value in state.items()}, metadata


def input_settings(name: str) -> InputSpec:
    """The images that a backbone of this name expects, without building it."""
    return SMALL_INPUT if name == SMALL_CNN else _expected_input(_timm_config(name))


SMALL_INPUT = InputSpec(size=28, mean=(0.5,), std=(0.5,))
"""What `small-cnn` is given unless the user chooses otherwise; it takes any size from 8."""


# --- timm ---


def _timm_config(name: str) -> Any:
    """What timm notes of a model's weights; also the check that there is such a model."""
    if not timm.is_model(name.partition(".")[0]):
        near = difflib.get_close_matches(name[:100], [SMALL_CNN, *timm.list_models()], n=3)
        hint = f"did you mean {' or '.join(near)}" if near else "`timm.list_models()` lists those there are"
        raise UserError(f"There is no backbone named {shortened(name, 100)!r}; {hint}.")
    try:
        return timm.models.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise UserError(f"timm has no such weights: {_first_line(error)}; leave out what follows the dot.") from error


def _expected_input(config: Any) -> InputSpec:
    return InputSpec(size=int(config.input_size[-1]), mean=tuple(config.mean), std=tuple(config.std))


def _timm_model(name: str, *, download: bool) -> tuple[nn.Module, InputSpec]:
    """A model without classifier, its weights from the hub or random."""
    config = _timm_config(name)
    options: dict[str, Any] = {"num_classes": 0}
    if timm.models.is_model_in_modules(name, ["vision_transformer", "deit"]):
        options["dynamic_img_size"] = True  # any input size; position embeddings are interpolated where it differs
    if not download:
        return timm.create_model(name, pretrained=False, **options), _expected_input(config)
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=_source(config), **options)
    except Exception as error:  # the hub, the network and the cache each raise their own kinds
        reason = f"timm's weights for {name!r} could not be fetched ({_first_line(error)})"
        raise UserError(f"{reason}; give a weights file by `--network.weights FILE`, or try again online.") from error
    return model, _expected_input(config)


def _source(config: Any) -> dict[str, Any]:
    """Where timm shall load from: its usual place, or without a network the copy of an earlier download.

    Asking first keeps the user from waiting the better part of a minute while the hub is tried again and again; and
    where timm has no weights it would go on with random ones.
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


def _hub_answers(timeout: float = 5.0) -> bool:
    """Whether the hub can be reached; behind a proxy only trying will tell."""
    from huggingface_hub.constants import ENDPOINT

    if urllib.request.getproxies():
        return True
    address = urlsplit(ENDPOINT)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout).close()
    except OSError:
        return False
    return True


# --- weights files ---


def _read_torch(path: Path) -> tuple[State, dict[str, str]]:
    """A state dict, bare or under one of the usual keys, without the prefix of data-parallel training."""
    if zipfile.is_zipfile(path):
        _check_archive(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError("it holds something else than named tensors")
    if not all(_is_held(value) for value in content.values()):
        raise ValueError("it declares more values than it holds")
    return {name.removeprefix("module."): value for name, value in content.items()}, {}


def _check_archive(path: Path) -> None:
    """Refuse an archive that would grow when it is read: torch stores the parts of its files as they are."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise ValueError("its parts are compressed, which torch does not do")
    if sum(part.file_size for part in parts) > path.stat().st_size:
        raise ValueError("its parts overlap")


def _is_held(value: Tensor) -> bool:
    """Whether each element has a place of its own in memory, unlike those of a small tensor that looks large."""
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    return plain and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


_READERS = {".safetensors": read_tensors, ".pth": _read_torch, ".pt": _read_torch}


def _single_precision(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def _load(model: nn.Module, state: State, path: Path, name: str) -> None:
    """Load all but the classifier; anything else missing or left over is refused."""
    classifiers = _classifier_names(model)
    state = {key: value for key, value in state.items() if not key.startswith(classifiers)}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        wrong = " ".join(str(error).split("\n\t")[1:2]) or _first_line(error)
        raise UserError(f"The weights in {str(path)!r} do not fit {name!r}: {wrong.rstrip('. ')}.") from error
    # Files made before torch counted batches lack the counters, and nothing depends on them.
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    if missing or unexpected:
        parts = [f"{kind} {_some(keys)}" for kind, keys in (("without", missing), ("with", unexpected)) if keys]
        raise UserError(f"The weights in {str(path)!r} are not of {name!r}: {' and '.join(parts)}.")


def _classifier_names(model: nn.Module) -> tuple[str, ...]:
    """Beginnings of the names of the classifier's tensors."""
    named = (getattr(model, "pretrained_cfg", None) or {}).get("classifier", ())
    return tuple(f"{name}." for name in ((named,) if isinstance(named, str) else named or ()))


def _some(keys: Sequence[str], count: int = 3) -> str:
    return ", ".join(keys[:count]) + (f" and {len(keys) - count} more" if len(keys) > count else "")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .") if lines else type(error).__name__


# --- the layout of a ResNet's bottlenecks ---


def _stride_of(metadata: dict[str, str], path: Path | None) -> BottleneckStride:
    """What the file says of its layout; timm's where it says nothing."""
    stride = metadata.get("bottleneck_stride", "3x3")
    if stride == "1x1":
        return "1x1"
    if stride == "3x3":
        return "3x3"
    raise UserError(f"The weights in {str(path)!r} name an unknown bottleneck_stride {stride!r}; known: 1x1, 3x3.")


def _move_stride_to_first(model: nn.Module, name: str) -> None:
    """Put the stride of a stage on the first 1x1 convolution of its first bottleneck, as the original ResNet has it.

    The tensors of both layouts have the same names and shapes, so nothing would complain of the wrong one.
    """
    for stage in (model.layer2, model.layer3, model.layer4) if isinstance(model, timm.models.ResNet) else (None,):
        first = stage[0] if isinstance(stage, nn.Sequential) else None
        if not isinstance(first, timm.models.resnet.Bottleneck) or first.conv2.stride == (1, 1):
            raise UserError(f"A bottleneck_stride of 1x1 is of ResNets with plain bottlenecks, which {name!r} is not.")
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride


# --- cutting a backbone in two ---


@dataclass(frozen=True)
class _Layout:
    """Where the last stage of a model is."""

    stages: str
    """Child that holds the stages or blocks, or that is the last stage itself."""
    last: int | None = None
    """How many of them at the end are the last stage; by default the whole child is."""
    after: tuple[str, ...] = ()
    """Children between the last stage and the head."""


def _layout(backbone: Backbone) -> _Layout:
    """The layout of a model of a known family."""
    model = backbone.model
    if isinstance(model, timm.models.ResNet):
        return _Layout("layer4")
    if isinstance(model, timm.models.ConvNeXt):
        return _Layout("stages", 1, after=("norm_pre",))
    if isinstance(model, timm.models.VisionTransformer):
        return _Layout("blocks", max(1, len(model.blocks) // 4), after=("norm",))
    if isinstance(model, SmallCNN):
        return _Layout("stages", 1)
    raise UserError(
        f"Where the last stage of {backbone.name!r} begins is not known: `last-stage` works with timm's ResNets, "
        f"ConvNeXts and ViTs and with {SMALL_CNN}; choose one of them, or train `all` or the `head`."
    )


class _Prefix(nn.Module):
    """A model up to its last stage."""

    def __init__(self, model: nn.Module, layout: _Layout) -> None:
        """Share the children in front of the cut; those behind it do nothing."""
        super().__init__()
        before, stages, behind = _around(model, layout)
        children = {**before, layout.stages: stages[0], **{name: nn.Identity() for name in behind}}
        self.model: Any = _share(model, children, dict(model._parameters))

    def forward(self, images: Tensor) -> Tensor:
        """What goes into the last stage."""
        maps: Tensor = self.model.forward_features(images)
        return maps


class _Suffix(nn.Module):
    """A model from its last stage on."""

    def __init__(self, model: nn.Module, layout: _Layout) -> None:
        """Share the children behind the cut; there are no others."""
        super().__init__()
        _, stages, behind = _around(model, layout)
        self.order = (layout.stages, *layout.after)
        self.model: Any = _share(model, {layout.stages: stages[1], **behind}, {})

    def forward(self, maps: Tensor) -> Tensor:
        """Features of what the prefix gave."""
        for name in self.order:
            maps = self.model.get_submodule(name)(maps)
        features: Tensor = self.model.forward_head(maps)
        return features


Children = dict[str, nn.Module]


def _around(model: nn.Module, layout: _Layout) -> tuple[Children, tuple[nn.Module, nn.Module], Children]:
    """Children in front of the stages, the two parts of the stages, children behind.

    The models of these families register their children in the order in which they use them.
    """
    children = list(model.named_children())
    at = [name for name, _ in children].index(layout.stages)
    return dict(children[:at]), _cut(children[at][1], layout.last), dict(children[at + 1 :])


def _cut(stages: nn.Module, last: int | None) -> tuple[nn.Module, nn.Module]:
    """The stages without the last ones, and those; each keeps its name, so the names of its tensors stay."""
    if last is None:
        return nn.Identity(), stages
    items = list(stages.named_children())
    return nn.Sequential(OrderedDict(items[:-last])), nn.Sequential(OrderedDict(items[-last:]))


def _share(model: nn.Module, children: Children, parameters: dict[str, nn.Parameter | None]) -> nn.Module:
    """A model of the same class with other children and own parameters; what it is given is shared, not copied."""
    shared = copy.copy(model)
    shared.__dict__.update(_modules=dict(children), _parameters=parameters)
    return shared
