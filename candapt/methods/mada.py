"""MADA: multi-adversarial domain adaptation, one discriminator per class (Pei et al., AAAI 2018, arXiv:1809.02176)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from candapt.losses import classwise_domain_confusion, reverse_gradient
from candapt.methods.base import Batch, Losses, Method, Phase
from candapt.methods.dann import ramped
from candapt.network.modules import ClassDiscriminators
from candapt.network.network import Network
from candapt.settings import Range, setting


@dataclass(frozen=True)
class MADASettings:
    """MADA's own settings."""

    weight: float = setting(0.3, search=Range(0.03, 3, log=True))
    """Weight of the discriminators' cross-entropy, added over the classes, as in the authors' code."""
    constant_weights: bool = True
    """Detach the probabilities that weight the features, as the authors' code does; the paper's formula does not."""
    width: int = 128
    """Width of the two hidden layers of each discriminator; the authors' code has 1024."""
    dropout: float = 0.5
    """Dropout in the discriminators."""
    ramp: float = 10.0
    """How fast the reversed gradient reaches its full strength: 2 / (1 + exp(-ramp·p)) - 1 at progress p."""


class MADA(Method):
    """Confuse one discriminator per class, which sees the features weighted by the class's predicted probability."""

    title = "MADA"
    reference = "Pei et al., AAAI 2018, arXiv:1809.02176"
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
        strength = ramped(progress, self.settings.ramp)
        features = torch.cat([source.features, target.features])
        weights = torch.cat([source.probabilities, target.probabilities])
        if self.settings.constant_weights:
            weights = weights.detach()
        # Reversing the gradient of both factors is the same as reversing that of their product.
        logits = self.discriminators(reverse_gradient(features, strength), reverse_gradient(weights, strength))
        domains = logits.split_with_sizes([len(source.features), len(target.features)])  # (n, classes), (m, classes)
        return {
            "classification": F.cross_entropy(source.logits, batch["source"].labels),
            "domain": self.settings.weight * classwise_domain_confusion(*domains),
        }
