"""Source-only: the network as it would be without adaptation, the paper's "source-finetune"."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from candapt.clustering import Clusters
from candapt.data.domains import Side
from candapt.methods.base import Batch, Draw, Losses, Method, Phase, Round
from candapt.network.network import Outputs


@dataclass(frozen=True)
class SourceOnlySettings:
    """Source-only has no settings of its own."""


class SourceOnly(Method):
    """Minimize the cross-entropy on the source, and treat the target as if it were source."""

    Settings = SourceOnlySettings

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """Random source batches."""
        return round.random_draws(round.steps or round.epoch, Side.SOURCE)

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy; the target is not looked at."""
        source = batch["source"]
        return {"classification": F.cross_entropy(self.network(source.x, Side.SOURCE).logits, source.labels)}

    def predict(self, x: Tensor, side: Side) -> Outputs:
        """Even the target is normalized with the source's statistics: nothing of it was learned."""
        return super().predict(x, Side.SOURCE)
