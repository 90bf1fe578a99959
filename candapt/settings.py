"""Settings of a run: frozen dataclasses whose fields become flags, help texts, YAML and checks.

A field says everything about its setting: type, default, meaning (the sentence below it), and through `setting` the
values that it may take, what `candapt tune` searches, and a short name for its flag.
"""

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from candapt.errors import UserError, known_name

LAST = "last"  # the value of `select` that keeps the last round, whatever its scores are


@dataclass(frozen=True)
class Range:
    """The values of a setting that `candapt tune` searches."""

    low: float
    high: float
    log: bool = False  # search evenly over orders of magnitude
    whole: bool = False  # whole numbers only

    def including(self, value: float) -> "Range":
        """The range, widened to hold the value."""
        log = self.log and value > 0
        return replace(self, low=min(self.low, value), high=max(self.high, value), log=log)

    def holds(self, value: object) -> bool:
        """Whether the value is a number within the range."""
        kind = int if self.whole else int | float
        return isinstance(value, kind) and not isinstance(value, bool) and self.low <= value <= self.high


def setting(
    default: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    below: float = math.inf,
    search: Range | None = None,
    alias: str = "",
    switch: bool = False,
) -> Any:
    """A field whose values lie from `low` to `high` and below `below`, that `candapt tune` may search in a range.

    The alias is a short name of its flag, without dashes. The flag of a switch needs no value.
    """
    metadata = {"low": low, "high": high, "below": below, "search": search, "alias": alias, "switch": switch}
    return field(default=default, metadata=metadata)


def check_limits(group: Any, prefix: str) -> None:
    """Raise a `UserError` for the first field of a group of settings that is outside its limits."""
    for item in fields(group):
        value = getattr(group, item.name)
        if isinstance(value, int | float) and (limit := _broken_limit(item, value)):
            raise UserError(f"{prefix}{item.name} is {value}, but must be {limit}.")


def _broken_limit(item: Field[Any], value: float) -> str:
    """What the field requires of its value, if the value, which may be NaN, does not comply."""
    low, high, below = (item.metadata.get(name, math.nan) for name in ("low", "high", "below"))
    if math.isfinite(low) and not value >= low:
        return f"at least {low:g}"
    if math.isfinite(high) and not value <= high:
        return f"at most {high:g}"
    return f"less than {below:g}" if math.isfinite(below) and not value < below else ""


@dataclass(frozen=True)
class ImageChoice:
    """How image files become samples; what is not chosen follows from the backbone."""

    size: int | Literal["auto"] | None = setting("auto", alias="size")
    """Height and width of the network's input; null: the size that the backbone was made for; auto: the same, or, for a
    head over a frozen backbone, larger views with mirror images if the labeled source prefers them."""
    resize: int | None = None
    """Height and width of the whole image before it is cropped to the input; null: 256 for an input of 224."""
    augmentation: Literal["paper", "strong", "none"] = "paper"
    """Training views: random crop and flip (paper), zoom, flip and colors (strong), or none."""
    shrink: bool = True
    """Let the decoder shrink large JPEGs while it decodes them, which is much faster and changes features little."""


def image_choice(values: Mapping[str, Any]) -> ImageChoice:
    """The choices about image files among values by flag name, such as {"images.size": 96}."""
    prefix, items = "images.", {item.name for item in fields(ImageChoice)}
    own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    for item in own:
        known_name(f"{prefix}{item}", [f"{prefix}{each}" for each in sorted(items)], "setting")
    return ImageChoice(**own)


@dataclass(frozen=True)
class NetworkSettings:
    """How the network is built."""

    backbone: str = setting("auto", alias="backbone")
    """A timm model, `efficientnet-lite0` to 2, `small-cnn`, or `auto`: small-cnn for small gray images, else resnet50,
    or efficientnet-lite0 if the weights of resnet50 cannot be downloaded; feature files need none."""
    weights: Path | None = setting(None, alias="weights")
    """Pretrained weights of the backbone, .safetensors or .pth; by default installed ones (EfficientNet-Lite), or
    timm's own, which are downloaded."""
    finetune: Literal["auto", "all", "last-stage", "head"] = setting("auto", alias="finetune")
    """Train all layers above the stem (the authors' code), the last stage over cached activations, or a head over
    cached features; auto: all on a GPU, else head."""
    frozen_stem: bool = True
    """If all layers are trained, keep a ResNet's first convolution and first stage as they are (the authors' code); the
    paper's text trains them too."""
    views: int | None = setting(None, low=0)
    """Training views of each image to cache if layers are frozen; 0 trains on the evaluation view; null: 2 for a last
    stage, 0 for a head over a pretrained backbone, where dropout takes their place."""
    mirror: bool = setting(False, alias="mirror", switch=True)
    """Add the features of the mirror image to those of each image, both scaled to unit length; for a head over a frozen
    backbone only."""
    head: Literal["auto", "linear", "bottleneck"] = "auto"
    """What is trained over the features: one linear layer (the paper), or a bottleneck layer with domain batch norm
    before it; auto: linear if all layers are trained, else bottleneck."""
    bottleneck: int | None = setting(1024, low=1)
    """Width of each head's bottleneck layer; null: as wide as the features, and starting from the identity."""
    heads: int = setting(1, low=1, high=64, alias="heads")
    """Heads over the bottleneck layer, each with a part of it; several are an ensemble, which predicts the mean of
    their probabilities. Always one if the bottleneck layer starts from the identity, since all heads would be equal."""
    rank: int = setting(256, low=1)
    """Rank of the learned correction in a bottleneck layer that starts from the identity."""
    dropout: float = setting(0.5, low=0, high=1)
    """Dropout on the inputs of the bottleneck layer; it makes up for few views of images."""


@dataclass(frozen=True)
class TrainingSettings:
    """How every method is trained; the defaults are the paper's for Office-31 where it has one."""

    steps: int | None = setting(50, low=1)
    """Steps in a round, for each source if there are several; null lets the method choose (CAN: the authors' rule,
    about one pass over the source)."""
    batch_size: int = setting(30, low=2)
    """Samples of each domain in a class-agnostic batch."""
    learning_rate: float = setting(0.001, low=0, high=1e30, search=Range(1e-4, 1e-2, log=True))
    """Initial learning rate of pretrained layers."""
    new_layers: float | None = setting(None, low=0, high=1e6)
    """Factor on the learning rate of new layers; null: 10 with sgd (the paper), 1 with adam."""
    optimizer: Literal["auto", "sgd", "adam"] = "auto"
    """Stochastic gradient descent (the paper), or Adam with decoupled weight decay; auto: adam if only a head over
    frozen layers is trained, else sgd."""
    momentum: float = setting(0.9, low=0, high=1)
    """Momentum of stochastic gradient descent."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: float = setting(5e-4, low=0, high=1e6)
    """Weight decay on all trained parameters."""
    known_weight: float = setting(1.0, low=0, high=1e6)
    """Weight of the cross-entropy on target samples whose labels are known, beside that on the source."""
    schedule: Literal["progress", "iteration", "constant"] = "progress"
    """Let the learning rate decay with the share of the training done (the paper), with the iteration (the authors'
    code), or not at all."""
    slope: float = 10.0
    """a in the decay of the learning rate, (1 + a·p)^-b."""
    power: float = 0.75
    """b in the decay of the learning rate, (1 + a·p)^-b."""
    statistics: Literal["auto", "running", "domain"] = "auto"
    """Statistics that batch norm evaluates with: running averages over batches, or those of the whole domain, taken
    anew each round (auto: for networks with batch norms that were not pretrained)."""
    proportions: Literal["auto", "off"] = "auto"
    """Let source classes count as often as the target seems to have them, and absent ones start no cluster: if
    pretrained features show that the proportions clearly differ (auto), or never (off)."""
    unknown: Literal["auto", "off", "label"] = setting("auto", alias="unknown")
    """Objects of none of the classes: mark them in the predictions and let them hardly count in the training (auto),
    also name their class `unknown` (label), or do not look for them (off). It needs pretrained features."""
    clustering_views: Literal["evaluation", "training"] = "evaluation"
    """Views of the images that are clustered: those of evaluation, or random training views drawn anew in every round
    (the authors' code). Feature files have one view only."""
    head_rounds: int = setting(20, low=0)
    """Rounds in which the head learns alone, over features of the evaluation views, before a last stage below a
    bottleneck layer learns too: a new head spoils pretrained layers before its gradients mean anything. 0: none."""
    settled: float = 0.001
    """Stop when the share of labels that change and the shift of the centers between rounds are below this; 0 never
    stops early."""
    held_out: float = setting(0.0, low=0, below=1)
    """Share of the source to hold out of training for scoring; without it, scores that measure source accuracy use
    samples that were trained on, and are too optimistic."""
    score_every: int = setting(1, low=1)
    """Score every so many rounds, and always the last one; every round is scored if a score selects the one to keep.
    For methods that do not cluster, scoring takes a pass over both domains of its own."""
    on_nonfinite: Literal["stop", "skip"] = setting("stop", alias="on-nonfinite")
    """What to do when a loss or a gradient is NaN or infinite: stop, or skip that step."""
    evaluation_batch: int = setting(256, low=2)
    """Batch size of evaluation passes."""
    accumulate: int = setting(1, low=1, high=100_000)
    """Batches whose gradients are averaged before each step of the optimizer."""
    compile: bool = setting(False, alias="compile")
    """Compile the trained layers of a backbone with torch.compile, which pays off in long trainings."""
    sync_batchnorm: bool = setting(True, alias="sync-batchnorm")
    """With several processes, normalize over the batch of all of them; false: each over its own share, and running
    statistics are averaged before they are used or saved."""
    global_losses: bool = setting(True, alias="global-losses")
    """With several processes, compute losses over the batch of all of them, as one process would; false: each over its
    own share of whole classes, which exchanges less and gives other results."""
    workers: int = setting(0, low=0, high=1024)
    """Processes that read training batches ahead; 0 reads between the steps."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device; auto takes the best one available."""
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"
    """Number format of the training; 16-mixed needs a GPU; auto: bf16-mixed if layers of a pretrained backbone are
    trained on a processor or GPU with instructions for it, else 32-true. Weights and final predictions stay in single
    precision."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run besides its data. Values outside their limits raise a `UserError`."""

    method: str = "can"
    seed: int = 0
    rounds: int = setting(20, low=1)
    select: str = LAST
    """The round to keep: the last, or the best one by a label-free score, a name in `SCORES`."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    method_settings: Any = None
    """The method's own settings, an instance of its `Settings`."""

    GROUPS: ClassVar[tuple[str, ...]] = ("network", "training", "method_settings")

    def __post_init__(self) -> None:
        """Check every value."""
        check_limits(self, "")
        check_limits(self.network, "network.")
        check_limits(self.training, "training.")
        if self.method_settings is not None:
            check_limits(self.method_settings, f"{self.method}.")
        training = self.training
        if training.nesterov and training.optimizer == "adam":
            raise UserError("training.nesterov is for sgd, but training.optimizer is adam: leave one of them out.")
        if training.nesterov and not training.momentum:
            raise UserError("training.nesterov needs a momentum, but training.momentum is 0.")

    def group_of(self, name: str) -> tuple[str, str]:
        """Group and field of a setting by the name of its flag: `can.weight` → (`method_settings`, `weight`)."""
        group, _, item = name.rpartition(".")
        return ("method_settings" if group == self.method else group), item

    def names(self) -> list[str]:
        """The flag names of all settings."""
        own = [item.name for item in fields(self) if item.name not in self.GROUPS]
        groups = {"network": self.network, "training": self.training, self.method: self.method_settings}
        return own + [f"{name}.{item.name}" for name, group in groups.items() if group for item in fields(group)]

    def has(self, name: str) -> bool:
        """Whether there is a setting with this flag name."""
        return name in self.names()

    def value(self, name: str) -> Any:
        """The value of a setting by the name of its flag."""
        group, item = self.group_of(name)
        return getattr(getattr(self, group) if group else self, item)

    def changed(self, changes: Mapping[str, Any]) -> "Settings":
        """The settings with other values, by the names of their flags."""
        by_group: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            group, item = self.group_of(name)
            by_group.setdefault(group, {})[item] = value
        own = by_group.pop("", {})
        groups = {group: replace(getattr(self, group), **values) for group, values in by_group.items()}
        return replace(self, **own, **groups)


Augmentation = Literal["paper", "strong", "none"]

MAX_SIDE = 8192  # largest height and width that an image is resized to
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageSettings:
    """How an image becomes the network's input; the defaults are the authors'."""

    size: int = 224  # height and width of the network's input in pixels, cut from the resized image
    resize: int = 256
    """Height and width to which a whole image is first resized (bicubic; the aspect ratio is not kept)."""
    mean: tuple[float, ...] = IMAGENET_MEAN  # mean of each channel, subtracted from values in [0, 1]
    std: tuple[float, ...] = IMAGENET_STD  # standard deviation of each channel, by which the difference is divided
    grey: bool = False  # give the network one gray channel in place of red, green and blue
    augmentation: Augmentation = "paper"
    """Training view: `paper` (random crop, flip), `strong` (random zoom, flip, colors) or `none` (as evaluated)."""
    shrink: bool = True  # let a decoder shrink large JPEGs down to `min_size`

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.resize <= MAX_SIDE:
            raise UserError(
                f"the input size {self.size} must be above 0 and at most the resize size {self.resize}, and that at "
                f"most {MAX_SIDE}."
            )
        if not len(self.mean) == len(self.std) == self.channels:
            kind, lengths = "gray" if self.grey else "color", f"{len(self.mean)} and {len(self.std)}"
            raise UserError(
                f"mean and std must have {self.channels} value(s) each for {kind} images, but have {lengths}."
            )
        if min(self.std) <= 0:
            raise UserError(f"every value of std must be above 0, but std is {self.std}.")
        if self.augmentation not in get_args(Augmentation):
            raise UserError(f"augmentation must be one of {get_args(Augmentation)}, not {self.augmentation!r}.")

    @property
    def channels(self) -> int:
        """Number of channels of the network's input."""
        return 1 if self.grey else 3

    @property
    def min_size(self) -> int | None:
        """Smallest side down to which a decoder may shrink an image before it is resized; None if it may not.

        Twice the resize size: the bicubic filter then still sees finer pixels than it makes. On 20 photos enlarged to
        2100 pixels, ResNet-50 features kept a cosine of 0.9990 at worst to those of the full image; with the resize
        size itself it was 0.92. It also covers the zoom of the strong augmentation.
        """
        return 2 * self.resize if self.shrink else None

    @classmethod
    def for_input(
        cls,
        size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        resize: int | None = None,
        augmentation: Augmentation = "paper",
        shrink: bool = True,
    ) -> Self:
        """Settings for a network's expected input; a single mean makes them gray."""
        resize = resize_for(size) if resize is None else resize
        return cls(size, resize, tuple(mean), tuple(std), len(mean) == 1, augmentation, shrink)


def resize_for(size: int) -> int:
    """Height and width to resize an image to before its center of this size is cut out: the paper's proportion.

    The margin is even, so that the center is one.

    >>> resize_for(224), resize_for(288), resize_for(32)
    (256, 328, 36)
    """
    return size + 2 * (size // 14)
