"""MADA: multi-adversarial domain adaptation, one discriminator a class (Pei et al., AAAI 2018, arXiv:1809.02176)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from candapt.losses import classwise_domain_confusion, reverse_gradient
from candapt.methods.base import Batch, Losses, Method, Phase
from candapt.methods.dann import ramped
from candapt.network.modules import ClassDiscriminators
from candapt.network.network import Network, Outputs


@dataclass(frozen=True)
class MADASettings:
    """MADA's own settings."""

    weight: float = 0.3
    """Weight of the discriminators' cross-entropy, added over the classes, as in the authors' code."""
    constant_weights: bool = False
    """Let no gradient into the probabilities that weigh the features, as the authors' code does."""
    width: int = 128
    """Width of the two hidden layers of each discriminator; the authors' code has 1024."""
    dropout: float = 0.5
    """Dropout in the discriminators."""
    ramp: float = 10.0
    """How fast the reversed gradient reaches its full strength: 2 / (1 + exp(-ramp·p)) - 1 at progress p."""


class MADA(Method):
    """Confuse one discriminator for each class, which sees the features as far as they are predicted to be of it."""

    Settings = MADASettings
    settings: MADASettings
    phases = (Phase(updates=("network", "discriminators")),)

    def __init__(self, network: Network, settings: MADASettings) -> None:
        super().__init__(network, settings)
        self.discriminators = ClassDiscriminators(
            network.num_features, network.num_classes, width=settings.width, dropout=settings.dropout
        )

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, plus that of every discriminator; predictions weigh both domains, labels do not."""
        source, target = self.both(batch)
        domains = self.discriminate(source, target, ramped(progress, self.settings.ramp))
        return {
            "classification": F.cross_entropy(source.logits, batch["source"].labels),
            "domain": self.settings.weight * classwise_domain_confusion(*domains),
        }

    def discriminate(self, source: Outputs, target: Outputs, strength: float) -> tuple[Tensor, ...]:
        """Logits of every discriminator for both domains, (n, classes) and (m, classes)."""
        features = torch.cat([source.features, target.features])
        weights = torch.cat([source.probabilities, target.probabilities])
        if self.settings.constant_weights:
            weights = weights.detach()
        # Reversing the gradient of both factors is the same as reversing that of their product.
        logits: Tensor = self.discriminators(reverse_gradient(features, strength), reverse_gradient(weights, strength))
        return logits.split_with_sizes([len(source.features), len(target.features)])
