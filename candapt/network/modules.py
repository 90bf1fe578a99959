"""Small networks: discriminators, classifiers with dropout, a CNN for small gray images, mirrored views."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candapt.network.dropout import Dropout
from candapt.network.network import linear_head


class DomainDiscriminator(nn.Sequential):
    """Classifies features as source or target, (n, num_features) to logits (n, 1): two hidden layers with dropout."""

    def __init__(self, num_features: int, *, width: int = 1024, dropout: float = 0.5) -> None:
        super().__init__(
            *(nn.Linear(num_features, width), nn.ReLU(), Dropout(dropout)),
            *(nn.Linear(width, width), nn.ReLU(), Dropout(dropout)),
            nn.Linear(width, 1),
        )


class ClassDiscriminators(nn.Module):
    """One domain discriminator for each class, of the same shape as `DomainDiscriminator`, all computed at once."""

    def __init__(self, num_features: int, num_classes: int, *, width: int = 1024, dropout: float = 0.5) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.first = nn.Linear(num_features, num_classes * width)
        self.second = GroupedLinear(num_classes, width, width)
        self.last = GroupedLinear(num_classes, width, 1)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, weights: Tensor) -> Tensor:
        """Logits (n, classes); discriminator k sees the features (n, d) times column k of the weights (n, classes)."""
        # (w·x)·W = w·(x·W): weighing the product spares a copy of the features for each class.
        products = F.linear(features, self.first.weight).view(len(features), self.num_classes, -1)
        x = weights[..., None] * products + self.first.bias.view(self.num_classes, -1)
        x = self.dropout(self.second(self.dropout(x.relu()).transpose(0, 1)).relu())
        logits: Tensor = self.last(x).squeeze(-1).mT
        return logits


class GroupedLinear(nn.Module):
    """A linear layer of its own for each group, started like `nn.Linear`."""

    def __init__(self, groups: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(groups, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, num_outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """From (groups, n, num_inputs) to (groups, n, num_outputs)."""
        return torch.einsum("gni,gio->gno", x, self.weight) + self.bias[:, None]


def dropout_head(num_features: int, num_classes: int, *, width: int, hidden: int, dropout: float) -> nn.Sequential:
    """A classifier with `hidden` layers and dropout in front of each, (n, num_features) to logits (n, num_classes).

    It has no batch norm: its input comes out of the domain's own one.
    """
    layers: list[nn.Module] = []
    for _ in range(hidden):
        layers += [Dropout(dropout), nn.Linear(num_features, width), nn.ReLU()]
        num_features = width
    return nn.Sequential(*layers, Dropout(dropout), linear_head(num_features, num_classes))


class HeadPair(nn.Module):
    """Two classifiers that start from different weights; together they predict the mean of their probabilities."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def both(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of either classifier, (n, classes) each."""
        return self.first(features), self.second(features)

    def forward(self, features: Tensor) -> Tensor:
        """Logarithm of the mean probabilities, (n, classes): logits whose softmax is that mean."""
        first, second = self.both(features)
        return torch.logaddexp(first.log_softmax(1), second.log_softmax(1)) - math.log(2)


class SmallCNN(nn.Module):
    """Three convolutions with batch norm, then one layer, for gray images from 8x8 to 32x32 and above."""

    num_features = 256

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(_conv_stage(1, 32), _conv_stage(32, 64), _conv_stage(64, 128))
        linear = nn.Linear(4 * 128, self.num_features, bias=False)
        self.head = nn.Sequential(linear, nn.BatchNorm1d(self.num_features), nn.ReLU())

    def forward_features(self, images: Tensor) -> Tensor:
        """Maps of the last stage, shape (n, 128, h / 8, w / 8)."""
        maps: Tensor = self.stages(images)
        return maps

    def forward_head(self, maps: Tensor) -> Tensor:
        """Features (n, num_features) of the maps."""
        features: Tensor = self.head(_quarters(maps).flatten(1))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Features (n, num_features) of images (n, 1, h, w)."""
        return self.forward_head(self.forward_features(images))


def _quarters(maps: Tensor) -> Tensor:
    """Mean of each quarter of the maps, (n, c, h, w) to (n, c, 4), so that a digit's parts keep their places.

    This is `AdaptiveAvgPool2d(2)` in operations that every exporter knows.
    """
    height, width = maps.shape[2:]
    halves = maps[:, :, : (height + 1) // 2].mean(2), maps[:, :, height // 2 :].mean(2)  # (n, c, w) each
    quarters = [part.mean(2) for half in halves for part in (half[..., : (width + 1) // 2], half[..., width // 2 :])]
    return torch.stack(quarters, dim=2)


def _conv_stage(inputs: int, outputs: int) -> nn.Module:
    """Half the height and width, another number of channels."""
    convolution = _Convolution(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


class _Convolution(nn.Conv2d):
    """Keeps the channels of a pixel of its maps together in memory: a CPU pools them ten times as fast."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution; the layers that follow keep the memory layout, and weights stay as they are stored."""
        return super().forward(input).contiguous(memory_format=torch.channels_last)


class Mirrored(nn.Module):
    """Features of an image and of its mirror image, each scaled to unit length, summed and scaled again.

    What a backbone sees differently in the two is mostly noise to a classifier, and the sum has less of it.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """Features of unit length, (n, num_features), of images (n, c, h, w)."""
        both = [F.normalize(self.backbone(view)) for view in (images, images.flip(-1))]
        return F.normalize(both[0] + both[1])
