"""The network: a backbone that gives features, and a linear head that gives logits."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candapt.network.batchnorm import Moments, add_sources, convert_batchnorm, current_norm, select_side
from candapt.network.dropout import Dropout
from candapt.network.sharing import sharing
from candapt.processes import Share, gathered


class Outputs(NamedTuple):
    """Outputs of the network for a batch; an ensemble's are those of one model."""

    features: Tensor  # input of the head, shape (n, num_features); those of an ensemble's heads side by side
    logits: Tensor  # shape (n, classes); of an ensemble the logarithm of the mean of its heads' probabilities

    @property
    def probabilities(self) -> Tensor:
        """Softmax of the logits, shape (n, classes)."""
        return self.logits.softmax(-1)


Piece = tuple[Tensor, int] | tuple[Tensor, int, Share | None]
"""Samples of one domain, the index of its batch norm and, where processes share the batch, this process's share."""


class Network(nn.Module):
    """Backbone and head, with one batch norm per domain wherever the backbone has one."""

    def __init__(
        self, backbone: nn.Module, num_features: int, num_classes: int, *, heads: int = 1, pretrained: bool = False
    ) -> None:
        """Convert the batch norms of a backbone, which maps a batch to features (n, num_features), and add the head.

        Several heads are an ensemble: each sees its own part of the features, all of the same width.
        """
        super().__init__()
        self.backbone = convert_batchnorm(backbone)
        own = heads == 1
        self.head = linear_head(num_features, num_classes) if own else HeadEnsemble(num_features, num_classes, heads)
        self.num_features = num_features
        self.num_classes = num_classes
        self.pretrained = pretrained  # whether the backbone, but for a bottleneck in it, learns at the lower rate
        self.starts_at_random = not pretrained  # whether features mean nothing before training
        self.num_sources = 1  # sources with a batch norm of their own
        self.layers_are_fixed = False  # whether layers below the bottleneck keep their statistics, in training too

    def add_sources(self, count: int) -> None:
        """Give each of `count` sources a batch norm of its own, wherever the backbone has one."""
        add_sources(self.backbone, count - self.num_sources + 1)
        self.num_sources = count

    @property
    def new_layers(self) -> list[nn.Module]:
        """Parts of the backbone that were not pretrained."""
        if not self.pretrained:
            return [self.backbone]
        return [part for part in self.backbone.children() if isinstance(part, Bottleneck)]

    def with_head(self, head: nn.Module) -> "Network":
        """A network that shares the backbone with this one and has another head."""
        other = copy.copy(self)
        other._modules = {**self._modules, "head": head}
        return other

    @contextmanager
    def over_features(self) -> Iterator[None]:
        """Within this context the network takes features of the layers below its bottleneck, in place of samples."""
        whole = self.backbone
        self.backbone = whole.get_submodule("bottleneck")
        try:
            yield
        finally:
            self.backbone = whole

    def pretrained_parameters(self) -> set[nn.Parameter]:
        """The parameters that learn at the lower rate."""
        return set(self.backbone.parameters()) - {p for layer in self.new_layers for p in layer.parameters()}

    def forward(self, x: Tensor, side: int) -> Outputs:
        """Features and logits of a batch from one domain; a batch never mixes the two."""
        select_side(self.backbone, side)
        features = self.backbone(x)
        return Outputs(features, self.head(features))

    def each(self, batches: Sequence[Piece]) -> list[Outputs]:
        """Outputs for several batches, each normalized on its own; faster than one `forward` after the other."""
        return [Outputs(features, self.head(features)) for features in self.features(batches)]

    def each_head(self, batches: Sequence[Piece]) -> list[list[Outputs]]:
        """Outputs of every head for several batches, each normalized on its own: one list of heads per batch."""
        return [self.heads(features) for features in self.features(batches)]

    def heads(self, features: Tensor) -> list[Outputs]:
        """Outputs of every head, from features (n, num_features); a network without an ensemble has one head."""
        if not isinstance(self.head, HeadEnsemble):
            return [Outputs(features, self.head(features))]
        pairs = zip(self.head.split(features), self.head.each(features), strict=True)
        return [Outputs(own, logits) for own, logits in pairs]

    def features(self, batches: Sequence[Piece]) -> list[Tensor]:
        """Features alone of several batches, each of shape (n, num_features).

        Of batches that processes share each computes its own part, and all get the whole: what follows, such as the
        heads and losses, is then the same in every process as it would be in one.
        """
        if isinstance(self.backbone, Bottleneck):
            features = self.backbone.each(batches)
        else:
            features = []
            for x, side, *share in batches:
                select_side(self.backbone, side)
                with sharing(*share or [None]):
                    features.append(self.backbone(x))
        shares = [piece[2] if len(piece) > 2 else None for piece in batches]
        return [own if share is None else gathered(own, share) for own, share in zip(features, shares, strict=True)]


def linear_head(num_features: int, num_classes: int) -> nn.Linear:
    """The paper's classifier: one linear layer, Kaiming-normal weights and zero bias."""
    head = nn.Linear(num_features, num_classes)
    nn.init.kaiming_normal_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class HeadEnsemble(nn.Module):
    """Linear heads side by side, each over its own part of the features; together they predict their mean probability.

    They start from different weights and see different dropout, so that they make different mistakes.
    """

    def __init__(self, num_features: int, num_classes: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.weight = nn.Parameter(torch.empty(heads, num_classes, num_features // heads))
        self.bias = nn.Parameter(torch.zeros(heads, 1, num_classes))
        for weight in self.weight:
            nn.init.kaiming_normal_(weight)

    def split(self, features: Tensor) -> Tensor:
        """Each head's own features, shape (heads, n, num_features / heads)."""
        return features.reshape(features.shape[0], self.num_heads, -1).transpose(0, 1)  # `len` would fix n in a trace

    def each(self, features: Tensor) -> Tensor:
        """Logits of each head, shape (heads, n, classes)."""
        return torch.baddbmm(self.bias, self.split(features), self.weight.mT)

    def forward(self, features: Tensor) -> Tensor:
        """Logarithm of the mean probabilities, (n, classes): logits whose softmax is that mean."""
        return self.each(features).log_softmax(-1).logsumexp(0) - math.log(self.num_heads)


class Bottleneck(nn.Module):
    """A trainable layer over a backbone's features: batch norm, then a linear map with a batch norm of its own.

    The features are scaled to unit length first, as the clustering sees them; the batch norm on the inputs then
    removes from each domain its own mean and scale, which is most of the shift between domains in frozen features.
    Dropout on the inputs stands in for the random views that images would have: without it, classifier and clusters
    agree after a few rounds and confirm each other's mistakes from then on. The linear map starts at random, or as the
    identity: then the first clustering is of the pretrained features, as in the paper.

    The maps of several heads stand side by side in one matrix. In training each head has a dropout of its own.
    """

    def __init__(
        self, num_inputs: int, width: int | None = None, *, heads: int = 1, dropout: float = 0.5, rank: int = 256
    ) -> None:
        """The width is that of each head.

        Without one, the map is as wide as the inputs and starts from the identity; `rank` is of its change.
        """
        super().__init__()
        self.num_inputs, self.num_features, self.heads = num_inputs, heads * (width or num_inputs), heads
        self.input_norm = nn.BatchNorm1d(num_inputs, affine=False)  # the linear map can scale
        self.dropout = Dropout(dropout)
        if width is None:
            self.bottleneck: nn.Module = Correction(num_inputs, min(rank, num_inputs))
        else:
            self.bottleneck = nn.Linear(num_inputs, self.num_features, bias=False)
            nn.init.kaiming_normal_(self.bottleneck.weight)
        self.norm = nn.BatchNorm1d(self.num_features)  # its shift is the bias

    def forward(self, x: Tensor) -> Tensor:
        """Features of shape (n, num_features) from frozen ones of shape (n, num_inputs)."""
        return self.after(self.map(self.before(x)))

    def each(self, batches: Sequence[Piece]) -> list[Tensor]:
        """The same for several batches, each normalized on its own; the map's many weights are read only once."""
        inputs = []
        for x, side, *share in batches:
            select_side(self.input_norm, side)
            with sharing(*share or [None]):
                inputs.append(self.before(x))
        features = []
        mapped = torch.split(self.map(torch.cat(inputs, dim=-2)), [x.shape[-2] for x in inputs])
        for y, (_, side, *_) in zip(mapped, batches, strict=True):
            select_side(self.norm, side)
            features.append(self.after(y))
        return features

    @torch.no_grad()
    def whole(self, batches: Callable[[], Iterable[Tensor]], side: int, weights: Tensor | None = None) -> Tensor:
        """Features of a whole domain, shape (n, num_features), normalized with its own statistics, which stay.

        Both batch norms then have the statistics of the domain as one batch, with weights (n,) of its weighted samples,
        and the map's product is computed only once. `batches` gives the batches (m, num_inputs) in order, twice. Of
        several processes each gives some of the domain's batches, and gets the features of those.
        """
        self.eval()
        select_side(self, side)
        inputs, device = Moments(), next(self.parameters()).device
        for x, counts in _with_weights(batches(), weights):
            inputs.add(F.normalize(x, dim=1), counts)
        inputs.of_all(self.num_inputs).set(current_norm(self.input_norm))
        outputs, count = Moments(), inputs.samples
        features, done = torch.empty(count, self.num_features), 0  # filled in place: lists of parts would take twice it
        for x, counts in _with_weights(batches(), weights):
            mapped = self.map(self.before(x))
            outputs.add(mapped, counts)
            features[done : done + len(x)] = mapped
            done += len(x)
        outputs.of_all(self.num_features).set(current_norm(self.norm), norms_before=1)
        for part in torch.split(features, WHOLE_PART):
            part.copy_(self.after(part.to(device)))
        return features

    def before(self, x: Tensor) -> Tensor:
        """The input of the linear map, shape (n, num_inputs), or (heads, n, num_inputs) where dropout differs."""
        hidden: Tensor = self.input_norm(F.normalize(x, dim=1))
        if self.heads > 1 and self.training:
            hidden = hidden.expand(self.heads, -1, -1)
        dropped: Tensor = self.dropout(hidden)
        return dropped

    def map(self, hidden: Tensor) -> Tensor:
        """The output of the linear map, shape (n, num_features)."""
        if hidden.dim() == 2:
            mapped: Tensor = self.bottleneck(hidden)
            return mapped
        weight: Tensor = self.bottleneck.get_parameter("weight")
        by_head: Tensor = _SideBySide.apply(hidden, weight)  # type: ignore[no-untyped-call]
        return by_head.transpose(0, 1).flatten(1)

    def after(self, y: Tensor) -> Tensor:
        """The features from the output of the linear map."""
        return F.relu(self.norm(y))


WHOLE_PART = 2**14  # rows of a whole domain that pass through the last batch norm at a time


def _with_weights(batches: Iterable[Tensor], weights: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Batches with the weights of their samples, if there are any."""
    start = 0
    for batch in batches:
        yield batch, None if weights is None else weights[start : start + len(batch)]
        start += len(batch)


class _SideBySide(torch.autograd.Function):
    """Linear maps of all heads as one batched product, (heads, n, inputs) to (heads, n, width).

    Torch's own backward of the same product writes the gradient of the weights transposed and copies it, which takes
    as long as the product itself.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return hidden @ weight.reshape(len(hidden), -1, weight.shape[1]).mT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        hidden, weight = ctx.saved_tensors
        outer = gradients[0]  # in mixed precision of fewer digits than hidden and weight
        maps = weight.reshape(len(hidden), -1, weight.shape[1]).to(outer.dtype)
        inner = (outer @ maps).to(hidden.dtype) if ctx.needs_input_grad[0] else None
        return inner, (outer.mT @ hidden.to(outer.dtype)).flatten(0, 1).to(weight.dtype)


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
