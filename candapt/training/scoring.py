"""Label-free scores of every round, on a sample of each domain if the domains are large, and when to stop."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from candapt.clustering import Clusters, center_shift, class_centers, label_change, spherical_kmeans
from candapt.data.domains import LabeledDomain, Side, Task, part_of
from candapt.evaluation.reference import BANK, NEIGHBORS, Reference, View, some_rows
from candapt.evaluation.scores import Evidence, all_scores, nearest_neighbors
from candapt.network.network import Outputs
from candapt.randomness import generator
from candapt.settings import LAST
from candapt.training.finiteness import clustering_in
from candapt.training.mixing import first_mixture, remembered_mixture

if TYPE_CHECKING:
    from candapt.training.loop import Training

TARGET_SAMPLES = 2000  # maximum number of target samples that are scored
SOURCE_SAMPLES = 1000  # maximum number of source samples that are used, or ten per class if that is more
VIEW = "view_"  # what the names of a view have before them in the memory of a training
QUIET_ROUNDS = 2  # rounds without change after which a training has settled: a single quiet one may be chance


def remembered_view(memory: Mapping[str, Tensor]) -> View | None:
    """What untouched features said of the target before the training, if that was stored."""
    stored = {name.removeprefix(VIEW): value for name, value in memory.items() if name.startswith(VIEW)}
    return View(**stored) if stored else None


def hold_out(task: Task, share: float, seed: int) -> tuple[Task, LabeledDomain | None]:
    """The task without a random share of each source class, and that share; every class keeps a sample to train on."""
    labels, order = task.source.labels, torch.randperm(task.source.size, generator=generator(seed, "held out"))
    held = torch.zeros(task.source.size, dtype=torch.bool)
    for number in range(task.num_classes):
        members = order[labels[order] == number]
        held[members[: max(0, min(round(share * len(members)), len(members) - 1))]] = True
    if not held.any():
        return task, None
    trained, aside = (part_of(task.source, rows.nonzero().flatten()) for rows in (~held, held))
    return replace(task, source=trained), aside


class Scorer:
    """Scores a training between rounds. It has random generators of its own and changes nothing in the training."""

    def __init__(self, training: "Training", held_out: LabeledDomain | None) -> None:
        self.training, seed = training, training.settings.seed
        self.rows, self.held_out = scored_rows(training.task, seed), held_out
        if held_out is not None:
            rows = _some(held_out.size, source_limit(training.task), seed, "scored held out")
            self.held_out = part_of(held_out, rows)

    @torch.no_grad()
    def remember_start(self) -> None:
        """Cluster the target by the network before any training, for later scores to compare with."""
        training = self.training
        before = {name: buffer.clone() for name, buffer in training.method.named_buffers()}
        target, source = self.outputs(Side.TARGET), self.outputs(Side.SOURCE)
        training.state.score_memory |= {
            "first_labels": self._cluster(source, target).labels,
            "first_neighbors": nearest_neighbors(target.features),
        }
        for name, buffer in training.method.named_buffers():  # an evaluation pass may have moved batch norm statistics
            buffer.copy_(before[name])

    @torch.no_grad()
    def remember_view(self) -> None:
        """Keep what untouched features say of the target, if there are any: what counts how much, and a view."""
        training, memory = self.training, self.training.state.score_memory
        memory |= first_mixture(training)
        is_used = training.method.uses_view or not remembered_mixture(memory).is_even
        if is_used and (view := self._view()) is not None:
            memory |= {f"{VIEW}{name}": value for name, value in vars(view).items()}

    def is_due(self, index: int) -> bool:
        """Whether the round with this index is to be scored."""
        settings, done = self.training.settings, index + 1
        every = settings.training.score_every if settings.select == LAST else 1
        return done % every == 0 or done == settings.rounds

    @torch.no_grad()
    def scores(self) -> dict[str, float]:
        """All scores of the network as it is now, under the names that they have in a record; none if not due."""
        training, memory = self.training, self.training.state.score_memory
        if not self.is_due(training.state.round):
            return {}
        target, trained = self.outputs(Side.TARGET), self.outputs(Side.SOURCE)
        source, labels = trained, training.task.source.labels[self.rows[Side.SOURCE]]
        if self.held_out is not None:  # then they judge the network
            source, labels = training.outputs.of_samples(Side.SOURCE, self.held_out), self.held_out.labels
        first = memory.get("first_labels"), memory.get("first_neighbors")
        clusters, seed = self._cluster(trained, target), training.settings.seed
        scores = all_scores(Evidence(target, source, labels, clusters, seed, *first))
        return {f"score_{name}": value for name, value in scores.items()}

    def _view(self) -> View | None:
        """What untouched features say of the target; None if there are none."""
        task = self.training.task
        source, target = (self.training.outputs.untouched(side) for side in Side)
        if source is None or target is None:
            return None
        rows = some_rows(task.source.size, max(BANK, NEIGHBORS * task.num_classes))
        chosen = part_of(task.source, rows)
        reference = Reference.of_target(
            source[rows], chosen.labels, target, task.num_classes, origins=chosen.origins, known=task.known
        )
        return reference.view_of_target(target)

    def outputs(self, side: Side) -> Outputs:
        """Outputs of the scored samples of one side."""
        whole = self.training.state.clusters is not None  # the method needs those of all samples anyway
        return self.training.outputs.of_rows(side, self.rows[side], whole=whole)

    def _cluster(self, source: Outputs, target: Outputs) -> Clusters:
        training = self.training
        labels = training.task.source.labels[self.rows[Side.SOURCE]]
        with clustering_in(training.state.round):
            centers = class_centers(source.features, labels, training.task.num_classes)
            return spherical_kmeans(target.features, centers)


def scored_rows(task: Task, seed: int) -> dict[Side, Tensor]:
    """The samples of each domain that are scored, in order."""
    return {
        Side.SOURCE: _some(task.source.size, source_limit(task), seed, "scored source"),
        Side.TARGET: _some(task.target.size, TARGET_SAMPLES, seed, "scored target"),
    }


def source_limit(task: Task) -> int:
    """Maximum number of source samples that are scored."""
    return max(SOURCE_SAMPLES, 10 * task.num_classes)


def _some(count: int, limit: int, seed: int, purpose: str) -> Tensor:
    """At most `limit` of `count` rows, at random but in order."""
    return torch.randperm(count, generator=generator(seed, purpose))[:limit].sort().values


def cluster_facts(clusters: Clusters | None, previous: Clusters | None) -> dict[str, float | int]:
    """Figures of a round's clustering: how much is kept, and how much changed since the round before."""
    if clusters is None:
        return {}
    facts: dict[str, float | int] = {
        "kept_samples": int(clusters.kept.sum()),
        "kept_share": float(clusters.kept.float().mean()),
        "kept_classes": len(clusters.kept_classes),
        "mean_distance": float(clusters.distances.mean()),
    }
    if previous is not None:
        facts["label_change"] = label_change(previous.labels, clusters.labels)
        facts["center_shift"] = center_shift(previous.centers, clusters.centers)
        facts["kept_change"] = float((clusters.kept != previous.kept).float().mean())
    return facts


def has_settled(history: Sequence[Mapping[str, float | int]], threshold: float) -> bool:
    """Whether the last rounds all changed fewer labels and kept samples than the threshold, and moved the centers less.

    As long as the share of each cluster that is kept grows there is more to come, and a warm-up only prepares the rest.
    """
    last = [record for record in history[-QUIET_ROUNDS:] if not record.get("warmup")]
    changes = ("label_change", "center_shift", "kept_change")
    return len(last) == QUIET_ROUNDS and all(record.get(change, 1) < threshold for record in last for change in changes)
