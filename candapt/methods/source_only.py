"""Source-only: the network as it would be without adaptation, the paper's "source-finetune"."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from candapt.clustering import Clusters
from candapt.data.domains import Side
from candapt.methods.base import Batch, Draw, Losses, Method, Phase, Round, mean_cross_entropy
from candapt.network.batchnorm import share_affine
from candapt.network.network import Bottleneck


@dataclass(frozen=True)
class SourceOnlySettings:
    """Source-only's own settings."""

    statistics: Literal["auto", "source", "target"] = "auto"
    """Batch norm statistics for the target: the source's, as a network that never saw the target has, or its own
    (auto: its own below a bottleneck layer, which standardizes each domain before anything is learned)."""


class SourceOnly(Method):
    """Minimize the cross-entropy on the source, and treat the target like the source."""

    title = "Source-only"
    Settings = SourceOnlySettings
    settings: SourceOnlySettings
    weighs_classes = False  # it is the network as it would be without knowing anything of the target

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """Random source batches."""
        return round.random_draws(round.steps or round.epoch, Side.SOURCE)

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy; the target is not used."""
        heads = self.head_outputs(batch, "source")[0]
        return {"classification": mean_cross_entropy(heads, batch["source"].labels)}

    def normalizes_as(self, norm: int) -> int:
        """Every domain is normalized as the settings say, and otherwise treated alike."""
        return norm if self.own_statistics else Side.SOURCE

    def after_step(self) -> None:
        """Nothing is learned of the target, so that its batch norm scales and shifts as the source's does."""
        if self.own_statistics:
            share_affine(self.network)

    @property
    def own_statistics(self) -> bool:
        """Whether the target is normalized with its own statistics."""
        standardizes = any(isinstance(layer, Bottleneck) for layer in self.network.backbone.modules())
        return self.settings.statistics == "target" or (self.settings.statistics == "auto" and standardizes)
