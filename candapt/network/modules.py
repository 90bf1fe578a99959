"""Parts that single methods add to the network: domain discriminators, and classifiers with dropout."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candapt.network.network import linear_head


class DomainDiscriminator(nn.Sequential):
    """Tells source from target by the features, (n, num_features) to logits (n, 1): two hidden layers with dropout."""

    def __init__(self, num_features: int, *, width: int = 1024, dropout: float = 0.5) -> None:
        super().__init__(
            nn.Linear(num_features, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
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
        self.dropout = nn.Dropout(dropout)

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


def dropout_head(
    num_features: int, num_classes: int, *, width: int, hidden: int, dropout: float = 0.5
) -> nn.Sequential:
    """A classifier with dropout in front of every layer, features (n, num_features) to logits (n, num_classes).

    It has no batch norm: its input comes out of the domain's own one.

    Args:
        num_features: width of the features.
        num_classes: number of classes.
        width: width of the hidden layers.
        hidden: how many hidden layers there are.
        dropout: share of the inputs that a layer does not see in training.
    """
    layers: list[nn.Module] = []
    for _ in range(hidden):
        layers += [nn.Dropout(dropout), nn.Linear(num_features, width), nn.ReLU()]
        num_features = width
    return nn.Sequential(*layers, nn.Dropout(dropout), linear_head(num_features, num_classes))


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
