"""MCC: minimum class confusion (Jin et al., ECCV 2020, arXiv:1912.03699). Not in CAN's tables: it came later."""

from dataclasses import dataclass

import torch

from candapt.losses import minimum_class_confusion
from candapt.methods.base import Batch, Losses, Method, Phase, mean_cross_entropy
from candapt.settings import Range, setting


@dataclass(frozen=True)
class MCCSettings:
    """MCC's own settings."""

    weight: float = setting(1.0, search=Range(0.1, 10, log=True))
    """Weight of the confusion beside the source cross-entropy."""
    temperature: float = setting(2.5, search=Range(1, 5))
    """Temperature of the softmax; it softens confident predictions."""
    constant_weights: bool = True
    """Detach the weights that make confident samples count more, as the authors' code does."""


class MCC(Method):
    """Minimize the confusion between classes in the target's predictions, without aligning the domains."""

    title = "MCC"
    reference = "Jin et al., ECCV 2020, arXiv:1912.03699"
    Settings = MCCSettings
    settings: MCCSettings

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, plus the confusion between classes in the target's predictions."""
        settings = self.settings
        source, target = self.head_outputs(batch, "source", "target")
        confusions = [
            minimum_class_confusion(
                head.logits, temperature=settings.temperature, constant_weights=settings.constant_weights
            )
            for head in target
        ]
        return {
            "classification": mean_cross_entropy(source, batch["source"].labels),
            "confusion": settings.weight * torch.stack(confusions).mean(),
        }
