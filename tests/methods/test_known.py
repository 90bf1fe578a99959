"""Known labels steer every method: they join its batches and its losses, and anchor its clusters."""

from dataclasses import replace

import pytest
import torch

from candapt.clustering import spherical_kmeans
from candapt.data.domains import KnownLabels, Task
from candapt.evaluation.proportions import Mixture
from candapt.methods import METHODS
from candapt.methods.base import KNOWN
from candapt.methods.known import with_known
from tests.toy import Toy, make_training, quick_settings, run, weights


def with_some(toy: Toy, per_class: int = 2) -> Task:
    """The task with the true labels of the first samples of each class."""
    labels = torch.as_tensor(toy.target_y)
    rows = torch.cat([(labels == each).nonzero().flatten()[:per_class] for each in range(4)]).sort().values
    return replace(toy.task, known=KnownLabels(rows, labels[rows]))


@pytest.mark.parametrize("method", METHODS)
def test_they_join_the_losses_of_every_method(toy: Toy, method: str) -> None:
    short = {"rounds": 1, "training__steps": 2}
    trainings = [
        run(make_training(with_some(toy), quick_settings(method, training__known_weight=weight, **short)))
        for weight in (0.0, 5.0)
    ]
    assert trainings[1].state.history[0][KNOWN] > 0
    before, after = map(weights, trainings)
    assert any(not torch.equal(value, after[name]) for name, value in before.items())


def test_without_any_nothing_is_added(toy: Toy) -> None:
    assert KNOWN not in run(make_training(toy.task, quick_settings())).state.history[0]


class TestBatches:
    def test_half_a_batch_is_known_and_the_rest_is_not(self, toy: Toy) -> None:
        training = make_training(with_some(toy), quick_settings())
        round = training.describe_round()
        known = training.task.target_labels
        for draw in with_known([{}] * 7, round):
            part = draw[KNOWN]
            assert len(part.indices) == round.batch_size == len(set(part.indices.tolist()))
            assert int((part.labels >= 0).sum()) == 8
            assert torch.equal(part.labels, known[part.indices])

    def test_a_single_known_sample_is_enough(self, toy: Toy) -> None:
        task = replace(toy.task, known=KnownLabels(torch.tensor([5]), torch.tensor([1])))
        assert run(make_training(task, quick_settings())).state.history[-1][KNOWN] >= 0

    def test_a_target_with_nothing_but_known_samples_trains(self, toy: Toy) -> None:
        labels = torch.as_tensor(toy.target_y)
        task = replace(toy.task, known=KnownLabels(torch.arange(len(labels)), labels))
        assert run(make_training(task, quick_settings())).state.clusters.labels.equal(labels)  # type: ignore[union-attr]


class TestClusters:
    def test_known_samples_keep_their_label_and_take_part(self, toy: Toy) -> None:
        wrong = KnownLabels(torch.tensor([0, 7]), (torch.as_tensor(toy.target_y)[[0, 7]] + 1) % 4)
        for settings in (quick_settings(), quick_settings(can__labels="vote"), quick_settings("can-no-ao")):
            training = run(make_training(replace(toy.task, known=wrong), settings))
            clusters = training.state.clusters
            assert clusters is not None
            assert clusters.labels[wrong.rows].equal(wrong.labels)
            assert clusters.kept[wrong.rows].all()

    def test_anchors_decide_which_cluster_is_which(self) -> None:
        """Two clusters whose initial centers are in each other's place: one known sample each puts them right."""
        generator = torch.Generator().manual_seed(0)
        truth = torch.arange(40) % 2
        features = torch.eye(4)[truth] + 0.05 * torch.randn(40, 4, generator=generator)
        swapped = torch.eye(4)[[1, 0]] + 0.9 * torch.eye(4)[[0, 1]]
        anchors = torch.full((40,), -1)
        anchors[:6] = truth[:6]
        assert (spherical_kmeans(features, swapped).labels == 1 - truth).all()
        start = torch.nn.functional.normalize(swapped) + torch.eye(4)[[0, 1]]
        assert (spherical_kmeans(features, start, anchors=anchors).labels == truth).all()

    def test_anchors_that_say_nothing_change_nothing(self) -> None:
        features, centers = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)), torch.eye(5)[:3]
        plain, anchored = (spherical_kmeans(features, centers, anchors=a) for a in (None, torch.full((30,), -1)))
        assert plain.labels.equal(anchored.labels)
        assert plain.centers.equal(anchored.centers)

    def test_anchors_count_among_the_classes_that_are_present(self) -> None:
        features, centers = torch.randn(30, 5, generator=torch.Generator().manual_seed(2)), torch.eye(5)
        anchors = torch.full((30,), -1)
        anchors[:3] = torch.tensor([4, 2, 4])
        present = torch.tensor([True, False, True, False, True])
        clusters = spherical_kmeans(features, centers, anchors=anchors, present=present)
        assert clusters.labels[:3].tolist() == [4, 2, 4]
        assert set(clusters.labels.tolist()) <= {0, 2, 4}


class TestMixture:
    def test_a_class_of_which_a_sample_is_given_is_not_absent(self) -> None:
        mixture = Mixture(absent=torch.tensor([True, True, False]))
        known = KnownLabels(torch.tensor([3]), torch.tensor([1]))
        assert mixture.with_classes(known).absent.tolist() == [True, False, False]  # type: ignore[union-attr]
        assert mixture.with_classes(None) is mixture

    def test_a_sample_whose_label_is_given_is_not_unknown(self, toy: Toy) -> None:
        training = run(make_training(with_some(toy), quick_settings(training__unknown="auto")))
        unknown = training.state.score_memory["unknown"]
        assert unknown[training.task.target_labels >= 0].tolist() == [0.0] * 8
