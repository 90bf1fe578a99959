"""CAN's labels by vote and its selection by untouched evidence, each against loops."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from candapt.adaptation import adapt
from candapt.clustering import Clusters, cosine_distances
from candapt.data.domains import Side
from candapt.evaluation.reference import SUPPORT, View, support
from candapt.losses import minimum_class_confusion
from candapt.methods.base import BatchPart, Phase, Round
from candapt.methods.can import CAN, CANSettings
from candapt.network.build import build_parts
from candapt.network.network import Outputs
from candapt.presets import make_settings
from candapt.randomness import generator
from candapt.settings import NetworkSettings
from tests.toy import Toy

SAMPLES, CLASSES, WIDTH, NEAR = 12, 3, 4, 5


def made_view(seed: int) -> View:
    draw = generator("view", seed)
    return View(
        torch.randint(SAMPLES, (SAMPLES, NEAR), generator=draw),
        torch.randint(CLASSES, (SAMPLES, NEAR), generator=draw),
        torch.randn(SAMPLES, CLASSES, generator=draw).softmax(1),
        torch.randint(CLASSES, (SAMPLES,), generator=draw),
    )


def slow_support(view: View, labels: list[int]) -> list[float]:
    """One sample at a time."""
    totals = []
    for row, label in enumerate(labels):
        near = [labels[other] == label for other in view.target_neighbors[row].tolist()]
        sources = [other == label for other in view.source_neighbors[row].tolist()]
        total = SUPPORT["neighbors"] * sum(near) / len(near) + SUPPORT["source_neighbors"] * sum(sources) / len(sources)
        total += SUPPORT["classifier"] * float(view.classifier[row, label])
        totals.append(total + SUPPORT["clusters"] * (int(view.clusters[row]) == label))
    return totals


@pytest.fixture
def outputs() -> Outputs:
    draw = generator("outputs")
    return Outputs(torch.randn(SAMPLES, WIDTH, generator=draw).abs(), 2 * torch.randn(SAMPLES, CLASSES, generator=draw))


@pytest.fixture
def clusters(outputs: Outputs) -> Clusters:
    centers = torch.randn(CLASSES, WIDTH, generator=generator("centers")).abs()
    distances, labels = cosine_distances(outputs.features, centers).min(1)
    return Clusters(labels, distances, centers, torch.ones(SAMPLES, dtype=torch.bool), 1)


def can(**settings: object) -> CAN:
    network = build_parts(NetworkSettings(bottleneck=WIDTH), (6,), CLASSES).network
    return CAN(network, CANSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_support_equals_loops(seed: int) -> None:
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator("labels", seed))
    view = made_view(seed)
    torch.testing.assert_close(support(view, labels), torch.tensor(slow_support(view, labels.tolist())))


def test_a_vote_weighs_clusters_and_classifier_alike(outputs: Outputs, clusters: Clusters) -> None:
    voted = can(labels="vote").vote(clusters, outputs)
    for row in range(SAMPLES):
        distances = cosine_distances(outputs.features[row : row + 1], clusters.centers)[0]
        by_cluster = (-30 * distances).exp() / (-30 * distances).exp().sum()
        label = int((by_cluster + outputs.probabilities[row]).argmax())
        assert int(voted.labels[row]) == label
        assert float(voted.distances[row]) == pytest.approx(float(distances[label]), abs=1e-6)
    assert not torch.equal(voted.labels, clusters.labels)  # the classifier of this case disagrees somewhere
    assert torch.equal(voted.centers, clusters.centers)


def test_a_sharp_vote_is_the_clusters_where_the_classifier_is_undecided(outputs: Outputs, clusters: Clusters) -> None:
    undecided = replace_logits(outputs, torch.zeros(SAMPLES, CLASSES))
    assert torch.equal(can(labels="vote").vote(clusters, undecided).labels, clusters.labels)


def replace_logits(outputs: Outputs, logits: Tensor) -> Outputs:
    return outputs._replace(logits=logits)


def test_doubt_is_distance_or_missing_support(toy: Toy, outputs: Outputs, clusters: Clusters) -> None:
    view = made_view(0)
    round = Round(5, 20, toy.task, 0, 10, 10, lambda side: outputs, None, view)
    assert can().doubt(clusters, round) is clusters.distances
    assert can(selection="evidence").doubt(clusters, replace(round, view=None)) is clusters.distances
    own = outputs.probabilities[torch.arange(SAMPLES), clusters.labels]
    expected = -torch.tensor(slow_support(view, clusters.labels.tolist())) - own
    torch.testing.assert_close(can(selection="evidence").doubt(clusters, round), expected)


def test_samples_with_the_least_doubt_are_kept(clusters: Clusters) -> None:
    doubt = torch.randn(SAMPLES, generator=generator("doubt"))
    kept = clusters.closest(0.5, by=doubt).kept
    for label in range(CLASSES):
        own = (clusters.labels == label).nonzero().flatten().tolist()
        best = sorted(own, key=lambda row: float(doubt[row]))[: max(1, round(len(own) * 0.5))]
        assert {row for row in own if kept[row]} == set(best)


def test_untouched_evidence_is_that_before_training(toy: Toy) -> None:
    """A training with all parts on learns the toy task, and a view is there from the first round on."""
    parts = {"network.heads": 2, "network.bottleneck": 256, "can.labels": "vote", "can.selection": "evidence"}
    result = adapt(toy.task, make_settings("can", changes={"rounds": 6, "training.steps": 10, **parts}))
    assert result.state.score_memory["view_clusters"].shape == (toy.task.target.size,)
    assert result.model.parts.settings.heads == 2
    assert float((result.predictions.labels == torch.as_tensor(toy.target_y)).float().mean()) > 0.9
    outputs = result.model.predict(toy.task.target, Side.TARGET)
    torch.testing.assert_close(outputs.probabilities, result.predictions.probabilities)


class TestConfusion:
    """The class confusion of random target samples beside the discrepancy."""

    def losses(self, method: CAN) -> dict[str, Tensor]:
        draw = generator("confusion")
        batch = {
            name: BatchPart(torch.randn(8, 6, generator=draw), torch.arange(8) % CLASSES, norm)
            for name, norm in (("source", 0), ("aligned_source", 0), ("aligned_target", 1), ("target", 1))
        }
        if not method.confusion_weight:
            batch.pop("target")
        torch.manual_seed(0)
        return method.eval()(batch, Phase(), 0.5)

    def test_it_is_that_of_mcc_and_changes_nothing_else(self) -> None:
        torch.manual_seed(1)
        method = can(confusion=2.0)
        method.network.starts_at_random = False
        losses = self.losses(method)
        draw = generator("confusion")
        target = [torch.randn(8, 6, generator=draw) for _ in range(4)][-1]
        logits = method.network(target, Side.TARGET).logits
        torch.testing.assert_close(losses["confusion"], 2 * minimum_class_confusion(logits))
        method.settings = replace(method.settings, confusion=0.0)
        without = self.losses(method)
        assert "confusion" not in without
        torch.testing.assert_close(without["discrepancy"], losses["discrepancy"])

    def test_a_network_that_starts_at_random_has_none(self) -> None:
        method = can(confusion=2.0)
        method.network.starts_at_random = True
        assert method.confusion_weight == 0

    def test_random_target_samples_come_with_the_alignment(self, toy: Toy, outputs: Outputs) -> None:
        method = can(confusion=1.0)
        method.network.starts_at_random = False
        round = Round(0, 20, toy.task, 0, 10, 10, lambda side: outputs, None)
        assert method.random_sides(round) == (Side.SOURCE,)  # the first round warms up
        assert method.random_sides(replace(round, index=5)) == (Side.SOURCE, Side.TARGET)
        assert can().random_sides(replace(round, index=5)) == (Side.SOURCE,)
