"""Label-free scores against slow references, and what they must say in plain cases."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from candapt.evaluation import scores
from candapt.randomness import generator
from tests.references import scores as reference

sizes = st.tuples(st.integers(3, 12), st.integers(2, 5), st.integers(0, 1000))


def probabilities(count: int, classes: int, seed: int, scale: float = 3.0) -> Tensor:
    return (scale * torch.randn(count, classes, generator=generator(seed))).softmax(1)


def grouped(centers: int = 4, each: int = 40, width: int = 20, seed: int = 0, spread: float = 0.3) -> Tensor:
    draw = generator(seed)
    means = torch.randn(centers, width, generator=draw)
    return means.repeat_interleave(each, 0) + spread * torch.randn(centers * each, width, generator=draw)


@given(sizes)
@settings(max_examples=30, deadline=None)
def test_scores_of_predictions_match_their_references(size: tuple[int, int, int]) -> None:
    p = probabilities(*size)
    assert scores.information_maximization(p) == pytest.approx(reference.information(p), abs=1e-5)
    density = reference.snd(p, 0.05)
    assert scores.soft_neighborhood_density(p) == pytest.approx(density, abs=1e-4)
    assert scores.soft_neighborhood_density(p, block=2) == pytest.approx(density, abs=1e-4)


@given(st.integers(3, 30), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_deep_embedded_validation_matches_its_reference(count: int, seed: int) -> None:
    losses, weights = torch.rand(2, count, generator=generator(seed), dtype=torch.float64)
    expected = reference.dev(losses.tolist(), weights.tolist())
    assert scores.deep_embedded_validation(losses, weights) == pytest.approx(expected)


def test_equal_weights_leave_the_plain_risk() -> None:
    losses = torch.tensor([0.5, 1.5, 4.0])
    assert scores.deep_embedded_validation(losses, torch.ones(3)) == pytest.approx(2.0)


def test_sure_and_varied_predictions_score_best() -> None:
    sure, same = one_hot(torch.arange(20) % 4, 4).float(), one_hot(torch.zeros(20, dtype=torch.int64), 4).float()
    flat = torch.full((20, 4), 0.25)
    for other in (same, flat):
        assert scores.information_maximization(sure) > scores.information_maximization(other)


def test_class_ami_sees_whether_predictions_follow_the_groups() -> None:
    features, groups = grouped(), torch.arange(4).repeat_interleave(40)
    assert scores.class_ami(features, groups, 4) == pytest.approx(1)
    shuffled = groups[torch.randperm(160, generator=generator(1))]
    assert scores.class_ami(features, shuffled, 4) < 0.7
    assert scores.class_ami(features, torch.zeros_like(groups), 4) == pytest.approx(0)  # one class says nothing


def test_neighbors_match_their_reference() -> None:
    features, labels = grouped(each=8, spread=1.5), torch.arange(4).repeat_interleave(8)
    near = scores.nearest_neighbors(features, 5)
    assert scores.neighbor_agreement(labels, near) == pytest.approx(reference.neighbors(labels.tolist(), features, 5))
    assert scores.nearest_neighbors(features[:3], 5).shape == (3, 2)


def test_neighbor_information_matches_its_reference() -> None:
    features, labels = grouped(each=8, spread=1.5), torch.arange(4).repeat_interleave(8)
    near = scores.nearest_neighbors(features, 5)
    expected = reference.neighbor_information(labels.tolist(), features, 5, 4)
    assert scores.neighbor_information(labels, near, 4) == pytest.approx(expected)


def test_neighbor_information_rewards_no_collapse() -> None:
    groups = torch.arange(4).repeat_interleave(40)
    near = scores.nearest_neighbors(grouped(), 5)
    merged, one = groups // 2, torch.zeros_like(groups)
    assert [scores.neighbor_agreement(labels, near) for labels in (groups, merged, one)] == [1, 1, 1]
    values = [scores.neighbor_information(labels, near, 4) for labels in (groups, merged, one)]
    assert values == pytest.approx([1, 0.5, 0])


class TestDomains:
    def test_domains_that_differ_are_told_apart(self) -> None:
        source, target = grouped(seed=0), grouped(seed=1)
        test = scores.tell_domains_apart(source, target, generator(0))
        assert test is not None
        assert test.error < 0.05
        assert len(test.source_rows) == len(test.weights) == 80
        assert float(test.weights.median()) < 0.2  # the target has nothing where the source is

    def test_halves_of_one_domain_are_not(self) -> None:
        whole = grouped(each=400, width=100)
        test = scores.tell_domains_apart(whole[::2], whole[1::2], generator(0))
        assert test is not None
        assert 0.4 < test.error < 0.6
        assert float(test.weights.mean()) == pytest.approx(1, abs=0.3)

    def test_too_few_samples_say_nothing(self) -> None:
        assert scores.tell_domains_apart(torch.rand(3, 2), torch.rand(9, 2), generator(0)) is None

    def test_principal_directions_hold_what_varies(self) -> None:
        features = torch.randn(200, 3, generator=generator(0)) @ torch.randn(3, 300, generator=generator(1))
        reduced = scores.principal_directions(features, 8, generator(2))
        assert reduced.shape == (200, 8)
        centered = features - features.mean(0)
        assert float(reduced.norm()) == pytest.approx(float(centered.norm()), rel=1e-4)

    def test_the_protocol_adds_both_errors(self) -> None:
        assert scores.protocol(1.0, 0.5) == 0
        assert scores.protocol(0.9, 0.1) == pytest.approx(0.1 + 0.8)
        assert scores.protocol(0.9, 0.6) == pytest.approx(0.1)  # worse than chance is chance


def test_the_documentation_lists_every_score() -> None:
    page = (Path(__file__).parents[2] / "docs/trust.md").read_text(encoding="utf-8")
    listed = page.partition("## Scores")[2].partition("##")[0]
    for name, score in scores.SCORES.items():
        (line,) = (line for line in listed.splitlines() if line.startswith(f"| `{name}` "))
        assert line.endswith("higher |" if score.higher_is_better else "lower |")
