"""Settings of a run: frozen dataclasses whose fields become flags, help texts and YAML."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from candapt.training.schedules import Schedule


@dataclass(frozen=True)
class ImageChoice:
    """What may be chosen about image files; the rest follows from the backbone."""

    size: int | None = None
    """Height and width of the network's input; null: what the backbone was made for."""
    resize: int | None = None
    """Height and width of the whole image before it is cropped to the input; null: 256 for an input of 224."""
    augmentation: Literal["paper", "strong", "none"] = "paper"
    """Training views: random crop and flip (paper), zoom, flip and colors (strong), or none."""
    shrink: bool = True
    """Let the decoder shrink large JPEGs on its way, which is much faster and changes features little."""


@dataclass(frozen=True)
class NetworkSettings:
    """How the network is built."""

    backbone: str = "auto"
    """A timm model, `small-cnn`, or `auto`: small-cnn for small grey images, else resnet50; feature files need none."""
    weights: Path | None = None
    """Pretrained weights of the backbone, .safetensors or .pth; without it timm's own are downloaded."""
    finetune: Literal["auto", "all", "last-stage", "head"] = "auto"
    """Train all layers above the stem (the paper), the last stage over cached activations, or a head over cached
    features; auto: all on a GPU, else head."""
    views: int = 2
    """Training views of each image that are cached where layers are frozen; 0 trains on the evaluation view."""
    head: Literal["auto", "linear", "bottleneck"] = "auto"
    """What is trained over the features: one linear layer (the paper), or a bottleneck layer with domain batch norm
    before it; auto: linear where all layers are trained, else bottleneck."""
    bottleneck: int | None = 1024
    """Width of the bottleneck layer; null: as wide as the features, and starting from them as they are."""
    rank: int = 256
    """Rank of what a bottleneck layer that starts from the features as they are learns on top of them."""
    dropout: float = 0.5
    """Share of the inputs of the bottleneck layer that are hidden in training; it makes up for few views of images."""


@dataclass(frozen=True)
class TrainingSettings:
    """How every method is trained; the defaults are the paper's for Office-31 where it has one."""

    steps: int | None = 50
    """Steps in a round; null lets the method choose (CAN: the authors' rule, about one pass over the source)."""
    batch_size: int = 30
    """Samples of each domain in a class-agnostic batch."""
    learning_rate: float = 0.001
    """Initial learning rate of pretrained layers."""
    new_layers: float | None = None
    """New layers learn this many times faster; null: 10 with sgd (the paper), 1 with adam."""
    optimizer: Literal["auto", "sgd", "adam"] = "auto"
    """Stochastic gradient descent (the paper), or Adam with decoupled weight decay; auto: adam where nothing but a head
    over frozen layers is trained, else sgd."""
    momentum: float = 0.9
    """Momentum of the stochastic gradient descent."""
    nesterov: bool = False
    """Use Nesterov's momentum in it."""
    weight_decay: float = 5e-4
    """Weight decay on all trained parameters."""
    schedule: Schedule = "progress"
    """Decay with the share of the training done (the paper), with the iteration (the authors' code), or not at all."""
    slope: float = 10.0
    """a in the decay (1 + a·p)^-b."""
    power: float = 0.75
    """b in the decay (1 + a·p)^-b."""
    statistics: Literal["auto", "running", "domain"] = "auto"
    """What batch norm evaluates with: running averages of the batches, or statistics of the whole domain, taken anew
    each round (auto: for networks with batch norms that were not pretrained)."""
    head_rounds: int = 20
    """Rounds in which the head learns alone, over features of the evaluation views, before a last stage below a
    bottleneck layer learns too: a new head spoils pretrained layers before its gradients mean anything. 0: none."""
    settled: float = 0.001
    """Stop when the share of labels that change and the centers' move between rounds are below this; 0 never stops."""
    held_out: float = 0.0
    """Share of the source that is held out of training to score rounds on; without it the scores that look at source
    accuracy are taken on samples that were trained on, and so are too good."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do when a loss or a gradient is NaN or infinite: stop, or skip that step."""
    evaluation_batch: int = 256
    """Samples in one batch when nothing is learned."""
    workers: int = 0
    """Processes that read training batches ahead; 0 reads between the steps."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """What computes; auto takes the best that there is."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Number format of the training; 16-mixed needs a GPU. Weights and final predictions stay in single precision."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run besides its data."""

    method: str = "can"
    seed: int = 0
    rounds: int = 20
    select: str = "last"
    """The round that is kept: the last, or the best one by a label-free score, a name in `SCORES`."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    adaptation: Any = None
    """The method's own settings, an instance of its `Settings`."""
