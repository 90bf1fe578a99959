"""When the alternation has settled."""

import pytest
import torch

from candapt.clustering import Clusters
from candapt.training.stopping import cluster_facts, settled


def clusters(labels: list[int], kept: list[bool], centers: list[list[float]]) -> Clusters:
    return Clusters(
        torch.tensor(labels), torch.arange(len(labels)) / 10, torch.tensor(centers), torch.tensor(kept), steps=1
    )


BEFORE = clusters([0, 0, 1, 1], [True] * 4, [[1.0, 0.0], [0.0, 1.0]])
NOW = clusters([0, 1, 1, 1], [True, False, True, False], [[1.0, 0.0], [0.0, -1.0]])


def test_facts_of_the_first_round_compare_with_nothing() -> None:
    facts = cluster_facts(NOW, None)
    assert facts == {
        "kept_samples": 2,
        "kept_share": 0.5,
        "kept_classes": 2,
        "mean_distance": pytest.approx(0.15),
    }


def test_facts_of_a_later_round() -> None:
    facts = cluster_facts(NOW, BEFORE)
    assert facts["label_change"] == 0.25  # one of four, kept or not
    assert facts["center_shift"] == pytest.approx(0.5)  # one stays, one turns around: mean of 0 and 1


def test_a_method_without_clusters_has_no_facts() -> None:
    assert cluster_facts(None, None) == {}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"label_change": 0.0, "center_shift": 0.0, "kept_change": 0.0}, True),
        ({"label_change": 0.0009, "center_shift": 0.0009, "kept_change": 0.0009}, True),
        ({"label_change": 0.001, "center_shift": 0.0, "kept_change": 0.0}, False),
        ({"label_change": 0.0, "center_shift": 0.001, "kept_change": 0.0}, False),
        ({"label_change": 0.0, "center_shift": 0.0, "kept_change": 0.04}, False),
        ({}, False),  # the first round, or a method without clusters
    ],
)
def test_both_labels_and_centers_must_rest(last: dict[str, float], expected: bool) -> None:
    earlier = {"label_change": 0.0, "center_shift": 0.0, "kept_change": 0.0}
    assert settled([earlier, last], 0.001) is expected


def test_nothing_done_is_not_settled() -> None:
    assert not settled([], 0.001)


def test_zero_never_stops() -> None:
    assert not settled([{"label_change": 0.0, "center_shift": 0.0}], 0)


def test_a_warm_up_is_not_settled() -> None:
    quiet = {"label_change": 0.0, "center_shift": 0.0, "kept_change": 0.0}
    assert not settled([{**quiet, "warmup": 1}] * 3, 0.001)
    assert not settled([{**quiet, "warmup": 1}, {**quiet, "warmup": 0}], 0.001)
    assert settled([{**quiet, "warmup": 0}] * 2, 0.001)
