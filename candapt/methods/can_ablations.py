"""CAN with one thing left out or replaced by pseudo labels: the ablations of its paper (Kang et al., CVPR 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from candapt.clustering import Clusters, class_centers, cosine_distances
from candapt.data.domains import Side
from candapt.data.sampling import random_batches
from candapt.methods.base import Batch, BatchPart, Draw, Losses, Method, Part, Phase, Round, mean_cross_entropy
from candapt.methods.can import CAN, CANSettings, ClusteringSettings, SelectionSettings
from candapt.network.network import Outputs
from candapt.randomness import generator
from candapt.settings import Range, setting


class IntraOnly(CAN):
    """CAN that pulls equal classes together but does not push different ones apart ("intra only")."""

    title = "CAN-intra"
    reference = "Kang et al., CVPR 2019, section 4.3"
    intra_only = True


@dataclass(frozen=True)
class NoAlternationSettings(SelectionSettings):
    """The settings of CAN without those of the clustering."""

    divisor: Literal["batch", "task"] = "batch"
    """Average the discrepancy over the classes of the batch, or divide by all classes of the task as the authors do."""

    RETIRED: ClassVar[frozenset[str]] = frozenset({"align_centers", "clustering_steps"})
    """Settings of earlier versions, which had no effect."""


class NoAlternation(CAN):
    """CAN with the classifier's labels in place of a clustering ("w/o AO"): labels and features change together."""

    title = "CAN-no-ao"
    reference = "Kang et al., CVPR 2019, section 4.3"
    Settings = NoAlternationSettings
    settings: NoAlternationSettings  # type: ignore[assignment]

    def label(self, round: Round) -> Clusters:
        """The classifier's labels, to sample classes by; each step then labels its samples anew."""
        outputs = round.embed(Side.TARGET)
        labels = outputs.logits.argmax(1)
        centers = class_centers(outputs.features, labels, round.task.num_classes, unit=self.settings.unit_centers)
        distances = cosine_distances(outputs.features, centers).gather(1, labels[:, None]).squeeze(1)
        return Clusters(labels, distances, centers, torch.ones_like(labels, dtype=torch.bool), steps=0)

    def target_labels(self, target: BatchPart, heads: Sequence[Outputs]) -> Tensor:
        """The classes that the network predicts in this very step, shape (n,)."""
        return torch.stack([head.probabilities for head in heads]).mean(0).argmax(1)

    def final_clusters(self, round: Round) -> Clusters:
        """A clustering of the target, as for the methods that never make one."""
        return Method.final_clusters(self, round)


@dataclass(frozen=True)
class NoClassSamplingSettings(CANSettings):
    """The settings of CAN; a batch for the discrepancy is as large as its own, but random."""

    classes: int = setting(10, low=1)  # not searched: batches hold random classes
    """A batch holds `classes` times `samples` random samples of each domain."""
    samples: int = setting(3, low=1, search=Range(2, 6, whole=True))
    """A batch holds `classes` times `samples` random samples of each domain."""


class NoClassSampling(CAN):
    """CAN with random batches ("w/o CAS"): a class that a domain lacks in a batch takes no part in its discrepancy."""

    title = "CAN-no-cas"
    reference = "Kang et al., CVPR 2019, section 4.3"
    Settings = NoClassSamplingSettings

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """Random source batches for the cross-entropy, and random ones of both domains for the discrepancy."""
        assert clusters is not None
        steps, size = self.steps(round, clusters), self.settings.classes * self.settings.samples
        draws = round.random_draws(steps, *self.random_sides(round))
        if self.warms_up(round) or int(clusters.kept.sum()) < 2:  # batch norm cannot take a sample alone
            return draws
        for side, labels in ((Side.SOURCE, round.task.source.labels), (Side.TARGET, clusters.kept_labels)):
            rows = (labels >= 0).nonzero().flatten()
            chosen = random_batches(len(rows), size, steps, generator(round.seed, "aligned", side.name))
            for draw, places in zip(draws, chosen, strict=True):
                draw[f"aligned_{side.name.lower()}"] = Part(side, rows[places], labels[rows[places]])
        return draws


@dataclass(frozen=True)
class PseudoSettings(ClusteringSettings):
    """The settings of CAN, whose clustering, filters and class-aware batches are used unchanged."""

    weight: float = setting(1.0, search=Range(0.1, 10, log=True))
    """Weight of the cross-entropy on the pseudo-labeled target."""
    source_weight: float = 1.0
    """Weight of the cross-entropy on the source; with 0 the network learns from pseudo labels only."""

    RETIRED: ClassVar[frozenset[str]] = frozenset({"divisor"})
    """A setting of earlier versions, which had no effect."""


class PseudoAlternating(CAN):
    """Cluster the target anew each round and train on the labels by cross-entropy (pseudo₁)."""

    title = "Pseudo-alternating"
    reference = "Kang et al., 2019"
    Settings = PseudoSettings
    settings: PseudoSettings  # type: ignore[assignment]

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """CAN's batches without those source samples that only its discrepancy uses."""
        draws = super().draws(round, clusters)
        return [{name: part for name, part in draw.items() if name != "aligned_source"} for draw in draws]

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Cross-entropy on the source and on the pseudo-labeled target."""
        source, *target = self.head_outputs(batch, *(name for name in ("source", "aligned_target") if name in batch))
        losses = {"classification": self.settings.source_weight * mean_cross_entropy(source, batch["source"].labels)}
        if target:
            pseudo_labels = mean_cross_entropy(target[0], batch["aligned_target"].labels)
            losses["pseudo_labels"] = self.settings.weight * pseudo_labels
        return losses


class PseudoFixed(PseudoAlternating):
    """Train on the labels of the first clustering, which are never corrected (pseudo₀)."""

    title = "Pseudo-fixed"
    settles = False  # the labels are still from the start: that says nothing of the network

    def cluster(self, round: Round) -> Clusters:
        """The labels of the first clustering, in every round; the share that is used grows as in CAN."""
        first = self.warmup(round) if self.network.starts_at_random else 0  # clusters of random features mean nothing
        if round.previous is None or (round.index <= first and not self.head_is_adapted):
            return super().cluster(round)
        return self.keep_confident(replace(round.previous, kept=torch.ones_like(round.previous.kept)), round)

    def final_clusters(self, round: Round) -> Clusters:
        """A clustering by the trained network."""
        return super().cluster(round)
