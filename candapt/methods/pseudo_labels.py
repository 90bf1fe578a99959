"""Training on pseudo labels directly, without a discrepancy: pseudo₀ and pseudo₁ of CAN's paper (Kang et al., 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from candapt.clustering import Clusters
from candapt.methods.base import Batch, Draw, Losses, Phase, Round
from candapt.methods.can import CAN, CANSettings


@dataclass(frozen=True)
class PseudoSettings(CANSettings):
    """The settings of CAN, whose clustering, filters and class-aware batches are used as they are."""

    weight: float = 1.0
    """Weight of the cross-entropy on the pseudo-labelled target."""
    source_weight: float = 1.0
    """Weight of the cross-entropy on the source; with 0 the network sees pseudo labels only."""
    divisor: Literal["batch", "task"] = "batch"
    """Has no effect: there is no discrepancy to divide."""


class PseudoAlternating(CAN):
    """Cluster the target anew each round and train on the labels by cross-entropy (pseudo₁)."""

    Settings = PseudoSettings
    settings: PseudoSettings

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """CAN's batches without those source samples that only its discrepancy looks at."""
        draws = super().draws(round, clusters)
        return [{name: part for name, part in draw.items() if name != "aligned_source"} for draw in draws]

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Cross-entropy on the source and on the pseudo-labelled target."""
        source, *target = self.outputs(batch, *(name for name in ("source", "aligned_target") if name in batch))
        classification = F.cross_entropy(source.logits, batch["source"].labels)
        losses = {"classification": self.settings.source_weight * classification}
        if target:
            pseudo_labels = F.cross_entropy(target[0].logits, batch["aligned_target"].labels)
            losses["pseudo_labels"] = self.settings.weight * pseudo_labels
        return losses


class PseudoFixed(PseudoAlternating):
    """Train on the labels of the first clustering, which are never corrected (pseudo₀)."""

    settles = False  # the labels are still from the start: that says nothing of the network

    def cluster(self, round: Round) -> Clusters:
        """The labels of the first clustering, in every round; how many of them are believed grows as in CAN."""
        first = self.warmup(round) if self.network.starts_at_random else 0  # clusters of random features mean nothing
        if round.previous is None or (round.index <= first and not self.network.is_adapted):
            return super().cluster(round)
        labels = replace(round.previous, kept=torch.ones_like(round.previous.kept))
        return self.keep_confident(labels, round)

    def final_clusters(self, round: Round) -> Clusters:
        """A clustering by the trained network."""
        return super().cluster(round)
