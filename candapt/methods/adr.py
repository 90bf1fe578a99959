"""ADR: adversarial dropout regularization (Saito et al., ICLR 2018, arXiv:1711.01575)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from candapt.losses import class_balance, symmetric_divergence
from candapt.methods.base import Batch, Losses, Method, Phase
from candapt.network.batchnorm import share_affine
from candapt.network.modules import dropout_head
from candapt.network.network import Network
from candapt.settings import Range, setting


@dataclass(frozen=True)
class ADRSettings:
    """ADR's own settings."""

    weight: float = setting(1.0, search=Range(0.1, 10, log=True))
    """Weight of the sensitivity: how far two predictions with different dropout lie apart."""
    balance: float = 0.01
    """Weight of the term that keeps the classes of the target balanced; 0 leaves it out."""
    agreements: int = setting(4, low=0, search=Range(1, 6, whole=True))
    """Steps of the backbone on each batch."""
    reduction: Literal["element", "batch"] = "element"
    """Average the divergence over samples and classes (the authors' code), or over samples only."""
    constant_reference: bool = False
    """Detach the prediction that the other one is compared with, as the authors' code does."""
    double_softmax: bool = False
    """Apply the softmax twice before the divergence, a mistake in the authors' code."""
    shared_affine: bool = True
    """Scale and shift both domains alike after their batch norms. If the target has its own scale, the backbone
    can make it insensitive by moving all of it to one place, and the network collapses."""
    hidden: int = 1
    """Hidden layers of the head."""
    width: int = 256
    """Width of the head's hidden layers."""
    dropout: float = 0.5
    """Dropout in front of every layer of the head."""


class ADR(Method):
    """One head with dropout becomes sensitive to it on the target; the backbone moves samples to where it is not."""

    title = "ADR"
    reference = "Saito et al., ICLR 2018, arXiv:1711.01575"
    Settings = ADRSettings
    settings: ADRSettings

    def __init__(self, network: Network, settings: ADRSettings) -> None:
        width, hidden, dropout = settings.width, settings.hidden, settings.dropout
        head = dropout_head(network.num_features, network.num_classes, width=width, hidden=hidden, dropout=dropout)
        super().__init__(network.with_head(head), settings)
        self.phases = (
            Phase("classify", ("network.backbone", "network.head")),
            Phase("disagree", ("network.head",)),
            Phase("agree", ("network.backbone",), repeats=settings.agreements),
        )

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Classify the source; make the head sensitive on the target; let the backbone make it insensitive."""
        settings, head = self.settings, self.network.head
        with torch.set_grad_enabled("network.backbone" in phase.updates):
            target, *source = self.features(batch, *(["target"] if phase.name == "agree" else ["target", "source"]))
        first, second = head(target), head(target)  # with different dropout
        sensitivity = settings.weight * symmetric_divergence(
            first,
            second,
            reduction=settings.reduction,
            constant_reference=settings.constant_reference,
            double_softmax=settings.double_softmax,
        )
        if phase.name == "agree":
            return {"sensitivity": sensitivity}

        losses = {"classification": F.cross_entropy(head(source[0]), batch["source"].labels)}
        if settings.balance:
            losses["balance"] = settings.balance * class_balance(first)
        if phase.name == "disagree":
            losses["opposition"] = -sensitivity
        return losses

    def after_step(self) -> None:
        """Let the target's batch norms scale and shift as the source's do."""
        if self.settings.shared_affine:
            share_affine(self.network.backbone)
