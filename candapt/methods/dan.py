"""DAN: deep adaptation network, multi-kernel MMD on several layers (Long et al., ICML 2015, arXiv:1502.02791)."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from candapt.losses.mmd import Estimator, maximum_mean_discrepancy
from candapt.methods.base import Batch, Losses, Method, Phase
from candapt.network.network import Outputs
from candapt.settings import Range, setting


@dataclass(frozen=True)
class DANSettings:
    """DAN's own settings."""

    weight: float = setting(1.0, search=Range(0.1, 10, log=True))
    """Weight of the discrepancy beside the source cross-entropy."""
    output: Literal["logits", "probabilities", "none"] = "logits"
    """Output of the classifier that is aligned besides the features; CAN's authors align the probabilities."""
    estimator: Estimator = "unbiased"
    """Average the kernel over pairs of distinct samples, over all pairs (biased), or over neighbors only (linear)."""


class DAN(Method):
    """Align the distribution of each layer over all classes at once, by maximum mean discrepancy."""

    title = "DAN"
    reference = "Long et al., ICML 2015, arXiv:1502.02791"
    Settings = DANSettings
    settings: DANSettings

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, plus the discrepancy of features and outputs, added."""
        source, target = self.both(batch)
        samples = equal_counts(source, target) if self.settings.estimator == "linear" else None
        layers = self.layers(source, samples), self.layers(target, samples)
        discrepancy = maximum_mean_discrepancy(*layers, estimator=self.settings.estimator)
        return {
            "classification": F.cross_entropy(source.logits, batch["source"].labels),
            "discrepancy": self.settings.weight * discrepancy,
        }

    def layers(self, outputs: Outputs, samples: int | None) -> list[Tensor]:
        """The aligned layers, (n, d) each, of the first `samples` samples."""
        layers = [outputs.features]
        if self.settings.output != "none":
            layers.append(outputs.logits if self.settings.output == "logits" else outputs.probabilities)
        return [layer[:samples] for layer in layers]


def equal_counts(source: Outputs, target: Outputs) -> int:
    """How many samples both domains have: the linear estimator needs equally many."""
    return min(len(source.features), len(target.features))
