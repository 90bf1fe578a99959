"""CAN without one of its parts, and training on pseudo labels directly."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from candapt.adaptation import adapt
from candapt.clustering import Clusters
from candapt.data.domains import Side
from candapt.data.sampling import steps_per_round
from candapt.methods.base import Batch, BatchPart, Method
from candapt.training.loop import Training
from tests.methods.rotated import adapted, begin, make_rotated, short_settings, small_batch, tiny
from tests.references.discrepancies import cdd
from tests.toy import Hooks

PARTS = {"source": Side.SOURCE, "aligned_source": Side.SOURCE, "aligned_target": Side.TARGET}
LABELS = torch.tensor([2, 2, 0, 1, 0, 0])


def batch() -> Batch:
    parts = small_batch(**PARTS)
    return {**parts, "aligned_target": BatchPart(parts["aligned_target"].x, LABELS, Side.TARGET)}


def losses(method: Method) -> dict[str, Tensor]:
    return method.forward(batch(), method.phases[0], 0.5)


def discrepancy(method: Method, target_labels: Tensor, **options: object) -> Tensor:
    source = method.network(batch()["aligned_source"].x, Side.SOURCE)
    target = method.network(batch()["aligned_target"].x, Side.TARGET)
    layers = ([side.features, side.probabilities] for side in (source, target))
    return cdd(*layers, batch()["aligned_source"].labels.tolist(), target_labels.tolist(), **options)


def clusters_of(training: Training) -> Clusters:
    clusters = training.method.cluster(training.describe_round())
    assert clusters is not None
    return clusters


@pytest.mark.parametrize("name", ["can", "can-intra"])
def test_the_loss_with_and_without_different_classes(name: str) -> None:
    method = tiny(name, weight=0.4)
    expected = 0.4 * discrepancy(method, LABELS, intra_only=name == "can-intra")
    torch.testing.assert_close(losses(method)["discrepancy"], expected, rtol=1e-4, atol=1e-5)


def test_ever_more_of_each_cluster_is_kept() -> None:
    method = tiny("can", warmup=2, start_share=0.2, full_share=0.5)
    training = begin(short_settings("can"))
    rounds = [replace(training.describe_round(), index=index, rounds=10) for index in range(2, 10)]
    shares = [method.share(round) for round in rounds]
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0])


def test_of_a_small_cluster_enough_is_kept_to_count() -> None:
    clusters = Clusters(torch.zeros(6).long(), torch.arange(6) / 10, torch.eye(1), torch.ones(6).bool(), steps=0)
    assert int(clusters.closest(0.1, least=3).kept.sum()) == 3


class TestNoAlternation:
    def test_the_classifier_labels_the_target_in_each_step(self) -> None:
        method = tiny("can-no-ao", weight=0.4)
        predicted = method.network(batch()["aligned_target"].x, Side.TARGET).logits.argmax(1)
        assert not torch.equal(predicted, LABELS)
        assert len(predicted.unique()) > 1
        expected = 0.4 * discrepancy(method, predicted)
        torch.testing.assert_close(losses(method)["discrepancy"], expected, rtol=1e-4, atol=1e-5)

    def test_batches_come_from_a_table_of_predictions(self) -> None:
        training = begin(short_settings("can-no-ao", warmup=0, min_samples=1, start_share=1.0))
        clusters = clusters_of(training)
        predicted = training.outputs.of(Side.TARGET).logits.argmax(1)
        assert torch.equal(clusters.labels, predicted)
        assert clusters.kept.all()
        for draw in training.method.draws(training.describe_round(), clusters):
            part = draw["aligned_target"]
            assert torch.equal(part.labels, predicted[part.indices])

    def test_distances_are_to_the_mean_direction_of_the_class(self) -> None:
        training = begin(short_settings("can-no-ao"))
        clusters, features = clusters_of(training), training.outputs.of(Side.TARGET).features
        row = 7
        members = features[clusters.labels == clusters.labels[row]]
        mean = (members / members.norm(dim=1, keepdim=True)).mean(0)
        cosine = torch.dot(features[row], mean) / (features[row].norm() * mean.norm())
        assert clusters.distances[row].item() == pytest.approx(0.5 * (1 - cosine.item()), abs=1e-5)

    def test_the_classifier_learns_before_it_is_believed(self) -> None:
        history = adapted("can-no-ao").history
        assert ["discrepancy" in record for record in history] == [False, True, True, True]


class TestNoClassSampling:
    def test_batches_are_random_and_as_large_as_those_of_can(self) -> None:
        training = begin(short_settings("can-no-cas", classes=5, samples=4, warmup=0))
        clusters = clusters_of(training)
        half = replace(clusters, kept=torch.arange(len(clusters.kept)) % 2 == 0)
        draws = training.method.draws(training.describe_round(), half)
        assert len(draws) == 15
        for name in ("aligned_source", "aligned_target"):
            parts = [draw[name] for draw in draws]
            assert {len(part.indices) for part in parts} == {20}
            assert all(len(part.indices.unique()) == 20 for part in parts)
        counts = {tuple(draw["aligned_target"].labels.bincount(minlength=3).tolist()) for draw in draws}
        assert len(counts) > 3  # classes are not evened out
        for draw in draws:
            source, target = draw["aligned_source"], draw["aligned_target"]
            assert torch.equal(source.labels, training.task.source.labels[source.indices])
            assert half.kept[target.indices].all()
            assert torch.equal(target.labels, half.labels[target.indices])

    def test_the_random_source_batches_are_those_of_can(self) -> None:
        drawn = []
        for name in ("can", "can-no-cas"):
            training = begin(short_settings(name))
            drawn.append(training.method.draws(training.describe_round(), clusters_of(training)))
        assert all(torch.equal(a["source"].indices, b["source"].indices) for a, b in zip(*drawn, strict=True))

    def test_it_makes_as_many_steps_as_can(self) -> None:
        training = begin(short_settings("can-no-cas"))
        clusters, round = clusters_of(training), replace(training.describe_round(), steps=None)
        steps = steps_per_round(training.task.source.labels, clusters.kept_labels, classes=10, samples=3)
        assert len(training.method.draws(round, clusters)) == steps

    @pytest.mark.parametrize("kept", [0, 1])
    def test_too_few_kept_samples_are_not_aligned(self, kept: int) -> None:
        training = begin(short_settings("can-no-cas"))
        clusters = clusters_of(training)
        few = replace(clusters, kept=torch.arange(len(clusters.kept)) < kept)
        assert training.method.draws(training.describe_round(), few)[0].keys() == {"source"}


class TestPseudoLabels:
    @pytest.mark.parametrize("name", ["pseudo-fixed", "pseudo-alternating"])
    def test_the_losses_by_hand(self, name: str) -> None:
        method = tiny(name, weight=0.4, source_weight=0.7)
        made = losses(method)
        assert made.keys() == {"classification", "pseudo_labels"}
        source = method.network(batch()["source"].x, Side.SOURCE).probabilities
        target = method.network(batch()["aligned_target"].x, Side.TARGET).probabilities
        torch.testing.assert_close(
            made["classification"], -0.7 * source[range(6), batch()["source"].labels].log().mean()
        )
        torch.testing.assert_close(made["pseudo_labels"], -0.4 * target[range(6), LABELS].log().mean())

    def test_fixed_labels_stay_and_training_goes_on(self) -> None:
        settings = replace(short_settings("pseudo-fixed"))
        settings = replace(settings, training=replace(settings.training, settled=0.5))
        training = begin(settings)
        first = clusters_of(training)
        training.run()
        assert training.state.round == settings.rounds
        assert training.state.clusters is not None
        assert torch.equal(training.state.clusters.labels, first.labels)

    def test_a_random_network_warms_up_before_its_labels_are_fixed(self) -> None:
        training = begin(short_settings("pseudo-fixed", warmup=2))
        training.method.network.starts_at_random = True
        centers = []
        training.run([Hooks(on_round=lambda training, record: centers.append(training.state.clusters.centers))])
        assert not torch.equal(centers[0], centers[2])
        assert torch.equal(centers[2], centers[3])

    def test_alternating_labels_change(self) -> None:
        assert any(record["label_change"] > 0 for record in adapted("pseudo-alternating").history[1:])

    def test_a_network_on_fixed_labels_says_what_the_clustering_said(self) -> None:
        settings = short_settings("pseudo-fixed", rounds=12)
        first = clusters_of(begin(settings))
        predicted = adapt(make_rotated().task, settings).predictions
        assert (predicted.labels == first.labels).float().mean() > 0.97

    def test_the_final_clusters_are_of_the_trained_network(self) -> None:
        training = begin(short_settings("pseudo-fixed", rounds=2))
        training.run()
        final = training.method.final_clusters(training.describe_round())
        assert training.state.clusters is not None
        assert not torch.equal(final.centers, training.state.clusters.centers)
