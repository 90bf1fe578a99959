"""CAN with one thing left out: the ablations of its paper (Kang et al., CVPR 2019, section 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from candapt.clustering import Clusters, class_centers, cosine_distances
from candapt.data.domains import Side
from candapt.data.sampling import random_batches
from candapt.methods.base import BatchPart, Draw, Method, Part, Round
from candapt.methods.can import CAN, CANSettings
from candapt.network.network import Outputs
from candapt.randomness import generator


class IntraOnly(CAN):
    """CAN that pulls equal classes together but does not push different ones apart ("intra only")."""

    intra_only = True


@dataclass(frozen=True)
class NoAlternationSettings(CANSettings):
    """The settings of CAN; those of the clustering itself have no effect."""

    align_centers: bool = False
    """Has no effect: there are no clusters to match."""
    clustering_steps: int = 100
    """Has no effect: nothing is clustered."""


class NoAlternation(CAN):
    """CAN that believes the classifier in place of a clustering ("w/o AO"): labels and features change together."""

    Settings = NoAlternationSettings

    def label(self, round: Round) -> Clusters:
        """What the classifier says now, as a table to sample classes from; each step then labels its samples anew."""
        outputs = round.embed(Side.TARGET)
        labels = outputs.logits.argmax(1)
        centers = class_centers(outputs.features, labels, round.task.num_classes, unit=self.settings.unit_centers)
        distances = cosine_distances(outputs.features, centers).gather(1, labels[:, None]).squeeze(1)
        return Clusters(labels, distances, centers, torch.ones_like(labels, dtype=torch.bool), steps=0)

    def target_labels(self, target: BatchPart, outputs: Outputs) -> Tensor:
        """The classes that the network predicts in this very step, shape (n,)."""
        return outputs.logits.argmax(1)

    def final_clusters(self, round: Round) -> Clusters:
        """A clustering of the target, as for the methods that never make one."""
        return Method.final_clusters(self, round)


@dataclass(frozen=True)
class NoClassSamplingSettings(CANSettings):
    """The settings of CAN; a batch for the discrepancy is as large as its own, but random."""

    classes: int = 10
    """A batch holds `classes` times `samples` random samples of each domain."""
    samples: int = 3
    """A batch holds `classes` times `samples` random samples of each domain."""


class NoClassSampling(CAN):
    """CAN with random batches ("w/o CAS"): a class that a domain lacks in a batch takes no part in its discrepancy."""

    Settings = NoClassSamplingSettings

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """Random source batches for the cross-entropy, and random ones of both domains for the discrepancy."""
        assert clusters is not None
        settings = self.settings
        source, target = round.task.source.labels, clusters.kept_labels
        steps = self.steps(round, clusters)
        draws = round.random_draws(steps, Side.SOURCE)
        if self.warms_up(round) or int(clusters.kept.sum()) < 2:  # batch norm cannot take a sample alone
            return draws
        for side, labels in ((Side.SOURCE, source), (Side.TARGET, target)):
            rows = (labels >= 0).nonzero().flatten()
            purpose = generator(round.seed, "aligned", side.name)
            chosen = random_batches(len(rows), settings.classes * settings.samples, steps, purpose)
            for draw, places in zip(draws, chosen, strict=True):
                draw[f"aligned_{side.name.lower()}"] = Part(side, rows[places], labels[rows[places]])
        return draws
