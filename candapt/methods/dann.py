"""DANN, the paper's RevGrad: domain-adversarial training (Ganin and Lempitsky, ICML 2015, arXiv:1409.7495)."""

import math
from dataclasses import dataclass

import torch.nn.functional as F

from candapt.losses import domain_confusion, reverse_gradient
from candapt.methods.base import Batch, Losses, Method, Phase
from candapt.network.modules import DomainDiscriminator
from candapt.network.network import Network
from candapt.settings import Range, setting


@dataclass(frozen=True)
class DANNSettings:
    """DANN's own settings."""

    weight: float = setting(1.0, search=Range(0.1, 10, log=True))
    """Weight of the discriminator's cross-entropy beside that of the classifier."""
    width: int = 1024
    """Width of the two hidden layers of the discriminator."""
    dropout: float = 0.5
    """Dropout in the discriminator."""
    ramp: float = 10.0
    """How fast the reversed gradient reaches its full strength: 2 / (1 + exp(-ramp·p)) - 1 at progress p."""


class DANN(Method):
    """Train a discriminator to tell the domains apart, and the backbone to make that impossible."""

    title = "DANN"
    reference = "Ganin and Lempitsky, ICML 2015, arXiv:1409.7495"
    Settings = DANNSettings
    settings: DANNSettings
    phases = (Phase(updates=("network", "discriminator")),)

    def __init__(self, network: Network, settings: DANNSettings) -> None:
        super().__init__(network, settings)
        self.discriminator = DomainDiscriminator(network.num_features, width=settings.width, dropout=settings.dropout)

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, plus the discriminator's, whose gradient is reversed on its way to the backbone."""
        source, target = self.both(batch)
        strength = ramped(progress, self.settings.ramp)
        domains = [self.discriminator(reverse_gradient(side.features, strength)) for side in (source, target)]
        return {
            "classification": F.cross_entropy(source.logits, batch["source"].labels),
            "domain": self.settings.weight * domain_confusion(*domains),
        }


def ramped(progress: float, ramp: float) -> float:
    """A strength that rises from 0 to 1 during training, so that early, noisy features are not aligned.

    >>> ramped(0.0, 10.0), round(ramped(0.1, 10.0), 3), round(ramped(1.0, 10.0), 3)
    (0.0, 0.462, 1.0)
    """
    return 2 / (1 + math.exp(-ramp * progress)) - 1
