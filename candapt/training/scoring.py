"""Scores every round without target labels, on a sample of each domain where domains are large."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from candapt.clustering import Clusters, class_centers, spherical_kmeans
from candapt.data.domains import LabeledDomain, Side, Task, part_of
from candapt.evaluation.scores import Evidence, all_scores, nearest_neighbors, tell_domains_apart
from candapt.network.network import Outputs
from candapt.randomness import generator

if TYPE_CHECKING:
    from candapt.training.loop import Training

TARGET_SAMPLES = 2000
"""Target samples that are scored, at most."""
SOURCE_SAMPLES = 1000
"""Source samples that are looked at, at most, or ten of each class if that is more."""


def hold_out(task: Task, share: float, seed: int) -> tuple[Task, LabeledDomain | None]:
    """Set a random share of each source class aside; what is left of the task, and the share if it is not empty.

    Every class keeps a sample to train on.
    """
    labels, order = task.source.labels, torch.randperm(task.source.size, generator=generator(seed, "held out"))
    held = torch.zeros(task.source.size, dtype=torch.bool)
    for number in range(task.num_classes):
        members = order[labels[order] == number]
        held[members[: max(0, min(round(share * len(members)), len(members) - 1))]] = True
    if not held.any():
        return task, None
    trained, aside = (part_of(task.source, rows.nonzero().flatten()) for rows in (~held, held))
    return Task(trained, task.target), aside


class Scorer:
    """Looks at a training between rounds. It draws from generators of its own and leaves the training as it was."""

    def __init__(self, training: "Training", held_out: LabeledDomain | None) -> None:
        self.training = training
        seed, limit = training.settings.seed, source_limit(training.task)
        self.rows = scored_rows(training.task, seed)
        self.held_out = held_out
        if held_out is not None:
            self.held_out = part_of(held_out, _some(held_out.size, limit, seed, "scored held out"))

    @torch.no_grad()
    def remember_start(self) -> None:
        """Cluster the target as the network sees it before any training, to compare with later."""
        training = self.training
        before = {name: buffer.clone() for name, buffer in training.method.named_buffers()}
        target, source = training.look(Side.TARGET, self.rows[Side.TARGET]), self._source()
        training.state.scored |= {
            "first_labels": self._cluster(source, target).labels,
            "first_neighbors": nearest_neighbors(target.features),
        }
        for name, buffer in training.method.named_buffers():  # to look may have moved batch norm statistics
            buffer.copy_(before[name])

    @torch.no_grad()
    def scores(self, kept_share: float | None) -> dict[str, float]:
        """All scores of the network as it is now, under the names that they have in a record."""
        training, remembered = self.training, self.training.state.scored
        target, trained = training.look(Side.TARGET, self.rows[Side.TARGET]), self._source()
        source, labels = self._judged_source(trained)
        domains = tell_domains_apart(source.features, target.features, generator(training.settings.seed, "domains"))
        clusters = self._cluster(trained, target)
        evidence = Evidence(
            target,
            source,
            labels,
            clusters,
            domains,
            remembered.get("last_labels"),
            remembered.get("first_labels"),
            remembered.get("first_neighbors"),
            kept_share,
        )
        found = all_scores(evidence)
        remembered["last_labels"] = clusters.labels
        return {f"score_{name}": value for name, value in found.items()}

    @property
    def target_size(self) -> int:
        """Target samples that are looked at."""
        return len(self.rows[Side.TARGET])

    def _source(self) -> Outputs:
        return self.training.look(Side.SOURCE, self.rows[Side.SOURCE])

    def _judged_source(self, trained: Outputs) -> tuple[Outputs, Tensor]:
        """Outputs and labels of the source samples by which the network is judged."""
        training = self.training
        if self.held_out is None:
            return trained, training.task.source.labels[self.rows[Side.SOURCE]]
        return training.outputs(Side.SOURCE, self.held_out), self.held_out.labels

    def _cluster(self, source: Outputs, target: Outputs) -> Clusters:
        labels = self.training.task.source.labels[self.rows[Side.SOURCE]]
        centers = class_centers(source.features, labels, self.training.task.num_classes)
        return spherical_kmeans(target.features, centers)


def scored_rows(task: Task, seed: int) -> dict[Side, Tensor]:
    """The samples of each domain that are looked at, in order."""
    return {
        Side.SOURCE: _some(task.source.size, source_limit(task), seed, "scored source"),
        Side.TARGET: _some(task.target.size, TARGET_SAMPLES, seed, "scored target"),
    }


def source_limit(task: Task) -> int:
    """Source samples that are looked at, at most."""
    return max(SOURCE_SAMPLES, 10 * task.num_classes)


def _some(count: int, limit: int, seed: int, purpose: str) -> Tensor:
    """At most `limit` of `count` rows, at random but in order."""
    return torch.randperm(count, generator=generator(seed, purpose))[:limit].sort().values
