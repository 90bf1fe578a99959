"""MCD: maximum classifier discrepancy (Saito et al., CVPR 2018, arXiv:1712.02560)."""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F

from candapt.losses import absolute_disagreement, class_balance
from candapt.methods.base import Batch, Losses, Method, Phase
from candapt.network.modules import HeadPair, dropout_head
from candapt.network.network import Network
from candapt.settings import Range, setting

AUTHORS_CLASSES = 12  # the most that the authors trained on, with weight 1
CLASSES_PER_WEIGHT = 3  # tllib: 10 for 31 classes, 30 for 65, 120 for 345


@dataclass(frozen=True)
class MCDSettings:
    """MCD's own settings."""

    weight: float = setting(1.0, search=Range(0.1, 10, log=True))
    """Weight of the disagreement, a mean over samples and classes."""
    by_classes: bool = True
    """With more than 12 classes, multiply the weight by a third of their number, as tllib does (10 for Office-31): the
    mean over classes shrinks with it. The authors' weight is 1 for 10 and 12 classes."""
    balance: float = 0.01
    """Weight of the term that keeps the classes of the target balanced, as in the paper's runs on objects."""
    agreements: int = setting(4, low=0, search=Range(1, 6, whole=True))
    """Steps of the backbone on each batch."""
    hidden: int = 1
    """Hidden layers of the two heads."""
    width: int = 256
    """Width of the heads' hidden layers."""
    dropout: float = 0.5
    """Dropout in front of every layer of the heads."""


class MCD(Method):
    """Two heads find target samples on which they disagree; the backbone moves these to where they agree."""

    title = "MCD"
    reference = "Saito et al., CVPR 2018, arXiv:1712.02560"
    Settings = MCDSettings
    settings: MCDSettings

    def __init__(self, network: Network, settings: MCDSettings) -> None:
        width, hidden, dropout = settings.width, settings.hidden, settings.dropout
        heads = [
            dropout_head(network.num_features, network.num_classes, width=width, hidden=hidden, dropout=dropout)
            for _ in range(2)
        ]
        super().__init__(network.with_head(HeadPair(*heads)), settings)
        self.phases = (
            Phase("classify", ("network.backbone", "network.head")),
            Phase("disagree", ("network.head",)),
            Phase("agree", ("network.backbone",), repeats=settings.agreements),
        )

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Classify the source; let the heads disagree on the target; let the backbone make them agree."""
        with torch.set_grad_enabled("network.backbone" in phase.updates):
            target, *source = self.features(batch, *(["target"] if phase.name == "agree" else ["target", "source"]))
        heads = cast(HeadPair, self.network.head)
        pair = heads.both(target)
        disagreement = self.weight * absolute_disagreement(*pair)
        if phase.name == "agree":
            return {"disagreement": disagreement}

        labels = batch["source"].labels
        first, second = heads.both(source[0])
        losses = {"classification": F.cross_entropy(first, labels) + F.cross_entropy(second, labels)}
        if self.settings.balance:
            losses["balance"] = self.settings.balance * (class_balance(pair[0]) + class_balance(pair[1]))
        if phase.name == "disagree":
            losses["opposition"] = -disagreement
        return losses

    @property
    def weight(self) -> float:
        """The weight of the disagreement for the task's number of classes."""
        settings, classes = self.settings, self.network.num_classes
        scaled = settings.by_classes and classes > AUTHORS_CLASSES
        return settings.weight * (classes / CLASSES_PER_WEIGHT if scaled else 1)
