"""The network: a backbone that gives features, and a linear head that gives logits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candapt.data.domains import Side
from candapt.network.batchnorm import convert_batchnorm, select_side


class Outputs(NamedTuple):
    """What the network says of a batch."""

    features: Tensor
    """Input of the head, shape (n, num_features)."""
    logits: Tensor
    """Shape (n, classes)."""

    @property
    def probabilities(self) -> Tensor:
        """Softmax of the logits, shape (n, classes)."""
        return self.logits.softmax(-1)


class Network(nn.Module):
    """Backbone and head, with one batch norm per domain wherever the backbone has one."""

    def __init__(
        self,
        backbone: nn.Module,
        num_features: int,
        num_classes: int,
        *,
        pretrained: bool = False,
        starts_at_random: bool | None = None,
    ) -> None:
        """Convert the backbone's batch norms and add the head.

        Args:
            backbone: maps a batch to features, shape (n, num_features).
            num_features: width of the features.
            num_classes: number of classes.
            pretrained: whether the backbone, but for a bottleneck layer in it, learns at the lower rate of pretrained
                layers.
            starts_at_random: whether its features mean nothing before it is trained; by default unless pretrained.
        """
        super().__init__()
        self.backbone = convert_batchnorm(backbone)
        self.head = linear_head(num_features, num_classes)
        self.num_features = num_features
        self.num_classes = num_classes
        self.pretrained = pretrained
        self.starts_at_random = not pretrained if starts_at_random is None else starts_at_random
        self.is_adapted = False
        """Whether its head has learned to adapt before, over the other layers as they are."""

    @property
    def new_layers(self) -> list[nn.Module]:
        """Parts of the backbone that were not pretrained."""
        if not self.pretrained:
            return [self.backbone]
        return [part for part in self.backbone.children() if isinstance(part, FeatureBackbone)]

    @contextmanager
    def over_features(self) -> Iterator[None]:
        """Within this context it takes what the layers below its bottleneck give, in place of samples."""
        whole = self.backbone
        self.backbone = whole.get_submodule("bottleneck")
        try:
            yield
        finally:
            self.backbone = whole

    def pretrained_parameters(self) -> set[nn.Parameter]:
        """What learns at the lower rate."""
        return set(self.backbone.parameters()) - {p for layer in self.new_layers for p in layer.parameters()}

    def forward(self, x: Tensor, side: Side) -> Outputs:
        """Features and logits of a batch that comes from one side; the two are never mixed in one batch."""
        select_side(self.backbone, side)
        features = self.backbone(x)
        return Outputs(features, self.head(features))

    def each(self, batches: Sequence[tuple[Tensor, Side]]) -> list[Outputs]:
        """What `forward` says of several batches, each normalized on its own; faster than one after the other."""
        return [Outputs(features, self.head(features)) for features in self.features(batches)]

    def features(self, batches: Sequence[tuple[Tensor, Side]]) -> list[Tensor]:
        """Features alone of several batches, each of shape (n, num_features)."""
        if isinstance(self.backbone, FeatureBackbone):
            return self.backbone.each(batches)
        features = []
        for x, side in batches:
            select_side(self.backbone, side)
            features.append(self.backbone(x))
        return features


def linear_head(num_features: int, num_classes: int) -> nn.Linear:
    """The paper's classifier: one linear layer, Kaiming-normal weights and zero bias."""
    head = nn.Linear(num_features, num_classes)
    nn.init.kaiming_normal_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class FeatureBackbone(nn.Module):
    """A trainable layer over a backbone's features: batch norm, then a linear map with a batch norm of its own.

    The features are scaled to unit length first, as the clustering sees them; the batch norm on the inputs then
    removes from each domain its own mean and scale, which is most of the shift between domains in frozen features.
    Dropout on the inputs stands in for the random views that images would have: without it, classifier and clusters
    agree after a few rounds and confirm each other's mistakes from then on. The linear map starts at random, or as the
    identity: then the first clustering is of the pretrained features, as in the paper.
    """

    def __init__(self, num_inputs: int, width: int | None = None, *, dropout: float = 0.5, rank: int = 256) -> None:
        """Build the layer.

        Args:
            num_inputs: width of the frozen features.
            width: width of the result, which starts at random; None: as wide as the inputs and starting from them.
            dropout: share of the inputs that are hidden in training.
            rank: rank of what is learned on top of the identity.
        """
        super().__init__()
        self.num_features = width or num_inputs
        self.input_norm = nn.BatchNorm1d(num_inputs, affine=False)  # the linear map can scale
        self.dropout = nn.Dropout(dropout)
        self.bottleneck = _linear(num_inputs, width, rank)
        self.norm = nn.BatchNorm1d(self.num_features)  # its shift is the bias

    def forward(self, x: Tensor) -> Tensor:
        """Features of shape (n, width) from frozen ones of shape (n, num_inputs)."""
        return self.after(self.bottleneck(self.before(x)))

    def each(self, batches: Sequence[tuple[Tensor, Side]]) -> list[Tensor]:
        """The same of several batches, each normalized on its own; the map's many weights are gone through once."""
        inputs = []
        for x, side in batches:
            select_side(self.input_norm, side)
            inputs.append(self.before(x))
        features = []
        mapped = self.bottleneck(torch.cat(inputs)).split([len(x) for x in inputs])
        for y, (_, side) in zip(mapped, batches, strict=True):
            select_side(self.norm, side)
            features.append(self.after(y))
        return features

    def before(self, x: Tensor) -> Tensor:
        """What the map takes."""
        hidden: Tensor = self.dropout(self.input_norm(F.normalize(x, dim=1)))
        return hidden

    def after(self, y: Tensor) -> Tensor:
        """What is made of its result."""
        return F.relu(self.norm(y))


def _linear(num_inputs: int, width: int | None, rank: int) -> nn.Module:
    """A map that starts at random, or without a width the identity and a correction to learn."""
    if width is None:
        return Correction(num_inputs, min(rank, num_inputs))
    linear = nn.Linear(num_inputs, width, bias=False)
    nn.init.kaiming_normal_(linear.weight)
    return linear


class Correction(nn.Module):
    """The identity plus a linear map of low rank, which starts at zero: x + up(down(x)).

    A full matrix over 2,048 features has four million numbers to learn from a few thousand samples, and takes most of
    the time of a step. `down` starts with entries of variance 1 / rank: then downᵀ·down is the identity on average,
    and the first steps move the whole map as far as they would move a full matrix, whatever the rank.
    """

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.normal_(self.down.weight, std=rank**-0.5)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape as x, (n, width)."""
        corrected: Tensor = x + self.up(self.down(x))
        return corrected
