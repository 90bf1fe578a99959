"""CAN: Contrastive Adaptation Network (Kang et al., CVPR 2019, arXiv:1901.00976)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from candapt.clustering import Clusters, cosine_distances
from candapt.data.domains import Side
from candapt.data.sampling import class_aware_batches, steps_per_round
from candapt.evaluation.reference import support
from candapt.losses import contrastive_domain_discrepancy, minimum_class_confusion
from candapt.methods.base import Batch, BatchPart, Draw, Losses, Method, Part, Phase, Round, mean_cross_entropy
from candapt.network.network import Outputs
from candapt.randomness import generator
from candapt.settings import Range, setting

WARMUP = 1  # rounds on the source alone for a new classifier over pretrained features; at most a quarter of all
RANDOM_WARMUP = 5  # the same for a network that starts at random
PARTS = ("source", "aligned_source", "aligned_target", "target")  # random samples and class-aware ones, if any


@dataclass(frozen=True)
class SelectionSettings:
    """Which target samples and classes take part, in which batches and with which weight."""

    weight: float = setting(0.3, search=Range(0.03, 3, log=True))
    """Weight of the discrepancy beside the source cross-entropy (β)."""
    start_share: float = setting(0.2, low=0, high=1, search=Range(0.1, 1))
    """Share of each cluster that the first alignment keeps, in the order of `selection`; it grows evenly to the whole
    cluster. Unlike a distance, a share means the same for every network and class. If the head is adapted before a last
    stage learns, whole clusters are kept from the start."""
    max_distance: float = setting(1.0, search=Range(0.05, 1, log=True))
    """A target sample is kept if its cosine distance (0 to 1) to its cluster's center is below this (D₀)."""
    full_share: float = setting(0.9, low=0)
    """Share of the training after which whole clusters are kept."""
    min_samples: int = setting(3, search=Range(1, 10, whole=True))
    """A class is kept if its cluster still holds this many target samples (N₀)."""
    min_samples_rule: Literal["at-least", "more-than"] = "at-least"
    """Keep classes with `min_samples` samples or more (the authors' code), or only with more (the paper)."""
    classes: int = setting(10, low=1, search=Range(5, 20, whole=True))
    """Classes in one class-aware batch."""
    samples: int = setting(3, low=1, search=Range(2, 6, whole=True))
    """Samples of each class and domain in one class-aware batch."""
    epoch_share: float = setting(1.0, low=0)
    """If `training.steps` is null: steps of a round as a share of one pass over the larger domain of each class."""
    unit_centers: bool = True
    """Sum unit vectors into centers (the paper), or the features as they are (the authors' code)."""
    selection: Literal["distance", "evidence"] = "distance"
    """Order in which samples of a class are kept: the nearest to the center first (the paper), or, if there are
    features that no adaptation has touched, those first whose label these support most."""
    warmup: int | None = setting(None, low=0)
    """Rounds of source cross-entropy alone before the first alignment; null: a quarter of the rounds, at most 1, or
    at most 5 for a network that starts at random, whose first clusters mean nothing. Without a warm-up, predictions are
    pushed apart before they mean anything and can end up in each other's place."""


@dataclass(frozen=True)
class ClusteringSettings(SelectionSettings):
    """How the target is clustered, beside the selection."""

    labels: Literal["clusters", "vote"] = "clusters"
    """What labels the target: its clusters (the paper), or a vote of clusters and classifier. A network that starts at
    random uses the clusters alone: its classifier and clusters would learn from each other's first mistakes."""
    sharpness: float = setting(30.0, low=0)
    """How clearly a cluster votes: its probabilities are the softmax of minus this times the distances to the
    centers."""
    align_centers: bool = False
    """Match clusters to classes again after clustering (the authors' code)."""
    clustering_steps: int = setting(100, low=0)
    """Maximum number of steps in one clustering."""


@dataclass(frozen=True)
class CANSettings(ClusteringSettings):
    """CAN's own settings."""

    divisor: Literal["batch", "task"] = "batch"
    """Average the discrepancy over the classes of the batch, or divide by all classes of the task as the authors do."""
    confusion: float = setting(0.0, low=0)
    """Weight of the class confusion in predictions for random target samples, as MCC minimizes it: the discrepancy sees
    only samples that are kept. 0 (the paper): none; a network that starts at random never has it."""


class CAN(Method):
    """Alternate: label the target by clustering, then align the domains class by class."""

    title = "CAN"
    reference = "Kang et al., CVPR 2019, arXiv:1901.00976"
    Settings: ClassVar[type[Any]] = CANSettings
    settings: CANSettings
    recipe: ClassVar[Mapping[str, Any]] = {
        "network.heads": 4,
        "network.bottleneck": 256,
        "can.labels": "vote",
        "can.selection": "evidence",
        "can.confusion": 2.0,
    }  # chosen on PACS: docs/results.md
    intra_only: bool = False  # leave out the part of the discrepancy that pushes different classes apart

    @property
    def uses_view(self) -> bool:
        """Whether untouched features select samples."""
        return self.settings.selection == "evidence"

    def warms_up(self, round: Round) -> bool:
        """Whether this round comes before the first alignment."""
        return round.index < self.warmup(round)

    def warmup(self, round: Round) -> int:
        """Rounds before the first alignment."""
        if self.settings.warmup is not None:
            return self.settings.warmup
        needed = RANDOM_WARMUP if self.network.starts_at_random else WARMUP
        return 0 if self.head_is_adapted else min(needed, round.rounds // 4)

    def cluster(self, round: Round) -> Clusters:
        """Label the target and keep what is confident."""
        return self.keep_confident(self.label(round), round)

    def keep_confident(self, clusters: Clusters, round: Round) -> Clusters:
        """Keep the samples near their center, ever more of them, in classes that have enough; all in a warm-up."""
        if self.warms_up(round):
            return clusters
        settings = self.settings
        least = settings.min_samples + int(settings.min_samples_rule == "more-than")
        near, doubt = clusters.within(settings.max_distance), self.doubt(clusters, round)
        if round.mixture.known is not None:
            near = near.only(round.mixture.known > 0.5)
        return near.closest(self.share(round), least=least, by=doubt).at_least(least)

    def doubt(self, clusters: Clusters, round: Round) -> Tensor:
        """What orders the samples of a class, shape (n,); those with the least are kept first."""
        if self.settings.selection == "distance" or round.view is None:
            return clusters.distances
        own = round.embed(Side.TARGET).probabilities.gather(1, clusters.labels[:, None]).squeeze(1)
        return -support(round.view, clusters.labels) - own

    def share(self, round: Round) -> float:
        """The share of each cluster that is kept in this round."""
        first, start = self.warmup(round), 1.0 if self.head_is_adapted else self.settings.start_share
        growing = max(1.0, self.settings.full_share * (round.rounds - first))  # rounds until all are kept
        return min(1.0, start + (1 - start) * (round.index - first) / growing)

    def label(self, round: Round) -> Clusters:
        """Cluster the target from the source's class centers."""
        settings, unit, present = self.settings, self.settings.unit_centers, round.mixture.present
        target, centers = round.embed(Side.TARGET), round.class_centers(unit=unit)
        steps, align = settings.clustering_steps, settings.align_centers
        clusters = round.kmeans(target.features, centers, max_steps=steps, unit=unit, align=align)
        return self.vote(clusters, target, present) if self.classifier_votes(round) else clusters

    def classifier_votes(self, round: Round) -> bool:
        """Whether the classifier helps to label the target; one that has learned nothing yet does not."""
        can_judge = not self.network.starts_at_random and not self.warms_up(round)
        return self.settings.labels == "vote" and can_judge

    def vote(self, clusters: Clusters, target: Outputs, present: Tensor | None = None) -> Clusters:
        """The clusters with labels by the mean of their own probabilities and the classifier's, of present classes."""
        distances = cosine_distances(target.features, clusters.centers)
        votes = (-self.settings.sharpness * distances).softmax(1) + target.probabilities
        if present is not None:
            votes = votes.masked_fill(~present, -1)
        labels = votes.argmax(1)
        return replace(clusters, labels=labels, distances=distances.gather(1, labels[:, None]).squeeze(1))

    def final_clusters(self, round: Round) -> Clusters:
        """The clusters that another round would start from."""
        return self.cluster(round)

    def steps(self, round: Round, clusters: Clusters) -> int:
        """Steps of the round: as set, else by the authors' rule, which has no answer where no class is kept."""
        if round.steps or not clusters.kept.any():
            return round.steps or round.epoch
        source, target, settings = round.task.source.labels, clusters.kept_labels, self.settings
        whole = steps_per_round(source, target, classes=settings.classes, samples=settings.samples)
        return max(1, math.ceil(settings.epoch_share * whole))

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """Random source batches for the cross-entropy, and class-aware ones of both domains for the discrepancy."""
        assert clusters is not None
        source, target = round.task.source.labels, clusters.kept_labels
        steps = self.steps(round, clusters)
        draws = round.random_draws(steps, *self.random_sides(round))
        if self.warms_up(round):
            return draws
        classes, samples, random = self.settings.classes, self.settings.samples, generator(round.seed, "classes")
        by_class = class_aware_batches(source, target, classes=classes, samples=samples, steps=steps, generator=random)
        for draw, (source_indices, target_indices) in zip(draws, by_class, strict=False):  # none if no class is kept
            if min(len(source_indices), len(target_indices)) > 1:  # batch norm cannot take a sample alone
                draw["aligned_source"] = Part(Side.SOURCE, source_indices, source[source_indices])
                draw["aligned_target"] = Part(Side.TARGET, target_indices, target[target_indices])
        return draws

    def random_sides(self, round: Round) -> Sequence[Side]:
        """The domains of which a step takes random samples beside the class-aware ones."""
        return (Side.SOURCE,) if self.warms_up(round) or not self.confusion_weight else tuple(Side)

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Source cross-entropy, the discrepancy of features and probabilities where classes are shared, confusion."""
        names = [name for name in PARTS if name in batch]
        outputs = dict(zip(names, self.head_outputs(batch, *names), strict=True))
        losses = {"classification": mean_cross_entropy(outputs["source"], batch["source"].labels)}
        if "aligned_target" in outputs:
            aligned = outputs["aligned_source"], outputs["aligned_target"]
            losses["discrepancy"] = self.settings.weight * self.discrepancy(batch, *aligned)
        if "target" in outputs:
            confusions = torch.stack([minimum_class_confusion(head.logits) for head in outputs["target"]])
            losses["confusion"] = self.confusion_weight * confusions.mean()
        return losses

    @property
    def confusion_weight(self) -> float:
        """Weight of the class confusion; relatives of CAN without the setting have none."""
        return 0.0 if self.network.starts_at_random else getattr(self.settings, "confusion", 0.0)

    def discrepancy(self, batch: Batch, source: Sequence[Outputs], target: Sequence[Outputs]) -> Tensor:
        """Contrastive domain discrepancy of the class-aware samples, over features and probabilities of each head.

        Layers are added up, and so are the heads, each of which has its own; the mean over the heads is returned.
        """
        total = contrastive_domain_discrepancy(
            [layer for head in source for layer in (head.features, head.probabilities)],
            [layer for head in target for layer in (head.features, head.probabilities)],
            batch["aligned_source"].labels,
            self.target_labels(batch["aligned_target"], target),
            num_classes=self.network.num_classes if self.settings.divisor == "task" else None,
            intra_only=self.intra_only,
        )
        return total / len(source)

    def target_labels(self, target: BatchPart, heads: Sequence[Outputs]) -> Tensor:
        """The target labels that the discrepancy uses, shape (n,): those of the clustering."""
        return target.labels
