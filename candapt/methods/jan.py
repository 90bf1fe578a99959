"""JAN: joint adaptation network, joint MMD of features and outputs (Long et al., ICML 2017, arXiv:1605.06636)."""

from dataclasses import dataclass

import torch.nn.functional as F

from candapt.losses.mmd import JAN_MIXTURES, Estimator, joint_maximum_mean_discrepancy
from candapt.methods.base import Batch, Losses, Method, Phase
from candapt.methods.dan import equal_counts
from candapt.methods.dann import ramped
from candapt.settings import Range, setting


@dataclass(frozen=True)
class JANSettings:
    """JAN's own settings."""

    weight: float = setting(0.3, search=Range(0.03, 3, log=True))
    """Weight of the joint discrepancy, relative to the source cross-entropy; the authors' for ResNet-50."""
    estimator: Estimator = "unbiased"
    """Average the kernel over pairs of distinct samples, over all pairs (biased), or over neighbors only (linear)."""
    ramp: float | None = None
    """How fast the weight rises from 0: 2 / (1 + exp(-ramp·p)) - 1 at progress p, 10 in the paper's text; null: full
    weight from the start, as in all releases."""


class JAN(Method):
    """Align the joint distribution of features and predictions, so that the alignment takes classes into account."""

    title = "JAN"
    reference = "Long et al., ICML 2017, arXiv:1605.06636"
    Settings = JANSettings
    settings: JANSettings

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, plus the discrepancy under the product of the layers' kernels."""
        settings = self.settings
        source, target = self.both(batch)
        samples = equal_counts(source, target) if settings.estimator == "linear" else None
        layers = ([side.features[:samples], side.probabilities[:samples]] for side in (source, target))
        discrepancy = joint_maximum_mean_discrepancy(*layers, estimator=settings.estimator, mixtures=JAN_MIXTURES)
        strength = 1.0 if settings.ramp is None else ramped(progress, settings.ramp)
        return {
            "classification": F.cross_entropy(source.logits, batch["source"].labels),
            "discrepancy": settings.weight * strength * discrepancy,
        }
