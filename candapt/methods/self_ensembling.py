"""Self-ensembling: a mean teacher for domain adaptation (French et al., ICLR 2018, arXiv:1706.05208)."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candapt.clustering import Clusters
from candapt.data.domains import Side
from candapt.losses import consistency_balance, masked_consistency
from candapt.methods.base import Batch, BatchPart, Draw, Losses, Method, Phase, Round
from candapt.network.dropout import Dropout
from candapt.network.network import Network, Piece
from candapt.network.sharing import deviation, noise_like, sharing
from candapt.settings import Range, setting

PIXEL_NOISE = 0.1


@dataclass(frozen=True)
class SelfEnsemblingSettings:
    """Self-ensembling's own settings; the defaults are the authors' for photographs, without their two slips."""

    weight: float = setting(10.0, search=Range(1, 30, log=True))
    """Weight of the consistency between student and teacher."""
    threshold: float = setting(0.9, search=Range(0.5, 0.98))
    """Consistency counts only for target samples to which the teacher gives one class a probability above this."""
    balance: float = 0.01
    """Weight of the class balance, relative to the consistency."""
    balance_loss: Literal["bce", "log", "bug"] = "bce"
    """How balance is measured: binary cross-entropy, logarithm, or the cross-entropy with the authors' mistake."""
    double_softmax: bool = False
    """Apply the softmax twice in the source cross-entropy, a mistake in the authors' code."""
    decay: float = 0.99
    """Decay of the moving average: share of the teacher's weights that stays at each step."""
    dropout: float = 0.5
    """Dropout on the features, drawn separately for student and teacher, as in the authors' network."""
    noise: float | None = setting(None, low=0)
    """Gaussian noise on the target samples, relative to their common standard deviation and drawn separately for
    student and teacher. null: `feature_noise` for feature vectors, 0.1 for images (the authors' for small ones)."""
    feature_noise: float = setting(0.6, low=0)
    """The same for feature vectors, relative to the standard deviation of each feature. The default is as far as strong
    views of images lie apart in the features of a ResNet-50."""


class SelfEnsembling(Method):
    """A student learns to predict on the target what its teacher, its own moving average, predicts for another view.

    `network` is the teacher, which predicts; the student is what the optimizer updates.
    """

    title = "Self-ensembling"
    reference = "French et al., ICLR 2018, arXiv:1706.05208"
    Settings = SelfEnsemblingSettings
    settings: SelfEnsemblingSettings
    phases = (Phase(updates=("student",)),)

    def __init__(self, network: Network, settings: SelfEnsemblingSettings) -> None:
        student = network.with_head(nn.Sequential(Dropout(settings.dropout), network.head))
        super().__init__(copy.deepcopy(student).requires_grad_(False), settings)
        self.student = student

    @property
    def learner(self) -> Network:
        """The student."""
        return self.student

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """Random batches; the target's is read twice, each time as another view."""
        return [{**draw, "target_again": draw["target"]} for draw in super().draws(round, clusters)]

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy and target consistency of the student."""
        settings = self.settings
        parts, source_batch = (batch["target_again"], batch["target"]), self.piece(batch["source"])
        with torch.no_grad():  # the source's batch norm of the teacher sees it only here
            again, _ = self.network.each([self.noisy_piece(parts[0]), source_batch])
        target, source = self.student.each([self.noisy_piece(parts[1]), source_batch])
        student, teacher = target.logits, again.logits
        classified = source.probabilities if settings.double_softmax else source.logits
        balance = consistency_balance(student, teacher, threshold=settings.threshold, variant=settings.balance_loss)
        return {
            "classification": F.cross_entropy(classified, batch["source"].labels),
            "consistency": settings.weight * masked_consistency(student, teacher, threshold=settings.threshold),
            "balance": settings.weight * settings.balance * balance,
        }

    def noisy_piece(self, part: BatchPart) -> Piece:
        """What the network takes of a part with noise on its samples."""
        with sharing(part.share):
            return self.noisy(part.x), Side.TARGET, part.share

    def noisy(self, x: Tensor) -> Tensor:
        """The samples with noise in proportion to their standard deviation, or to that of each feature."""
        if self.settings.noise is None and x.dim() == 2:
            scale = self.settings.feature_noise * deviation(x, dim=0)
        else:
            scale = (PIXEL_NOISE if self.settings.noise is None else self.settings.noise) * deviation(x)
        return x + scale * noise_like(x) if scale.any() else x

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the teacher's parameters a little towards the student's; its batch norm statistics are its own."""
        for slow, fast in zip(self.network.parameters(), self.student.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.settings.decay)
