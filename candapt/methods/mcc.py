"""MCC: minimum class confusion (Jin et al., ECCV 2020, arXiv:1912.03699). Not in CAN's tables: it came later."""

from dataclasses import dataclass

import torch.nn.functional as F

from candapt.losses import minimum_class_confusion
from candapt.methods.base import Batch, Losses, Method, Phase


@dataclass(frozen=True)
class MCCSettings:
    """MCC's own settings."""

    weight: float = 1.0
    """Weight of the confusion beside the source cross-entropy."""
    temperature: float = 2.5
    """Divides the logits before the softmax, so that confident predictions count less than they would."""
    constant_weights: bool = True
    """Let no gradient into the weights by which certain samples count more, as the authors' code does."""


class MCC(Method):
    """Make target predictions that do not waver between classes, without aligning the domains."""

    Settings = MCCSettings
    settings: MCCSettings

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, plus the confusion between classes in the target's predictions."""
        settings = self.settings
        source, target = self.both(batch)
        confusion = minimum_class_confusion(
            target.logits, temperature=settings.temperature, constant_weights=settings.constant_weights
        )
        return {
            "classification": F.cross_entropy(source.logits, batch["source"].labels),
            "confusion": settings.weight * confusion,
        }
