"""Suggestions: doubtful samples that stand for others, each kind once."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from candapt.evaluation.suggestion import standardized_units, suggest_samples, weighted_kmeans


def groups(sizes: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors in tight groups along the axes, and the group of each."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return normalize(
        torch.eye(len(sizes))[labels] + 0.05 * torch.randn(len(labels), len(sizes), generator=random)
    ), labels


class TestSuggestions:
    def test_every_group_gets_one_the_most_doubtful_first(self) -> None:
        units, labels = groups([20, 20, 20, 20])
        confidence = torch.tensor([0.9, 0.2, 0.8, 0.6])[labels]
        chosen = suggest_samples(units, confidence, 4)
        assert labels[chosen].tolist() == [1, 3, 2, 0]

    def test_doubt_attracts_suggestions(self) -> None:
        units, labels = groups([60, 60])
        random = torch.Generator().manual_seed(3)
        units = normalize(units + 0.4 * torch.randn(units.shape, generator=random))
        chosen = suggest_samples(units, torch.where(labels == 0, 0.999, 0.1), 10)
        assert int((labels[chosen] == 1).sum()) >= 7

    def test_an_outlier_is_not_worth_a_label_though_it_is_in_doubt(self) -> None:
        units, labels = groups([40, 40, 1])
        confidence = torch.where(labels == 2, 0.4, 0.5)
        assert 2 not in labels[suggest_samples(units, confidence, 2)].tolist()

    def test_known_samples_are_passed_over(self) -> None:
        units, _ = groups([10, 10])
        first = suggest_samples(units, torch.full((20,), 0.5), 4)
        again = suggest_samples(units, torch.full((20,), 0.5), 4, known=first)
        assert not set(first.tolist()) & set(again.tolist())

    @given(st.integers(1, 30), st.integers(0, 5))
    def test_as_many_as_wanted_each_once_and_always_the_same(self, number: int, seed: int) -> None:
        units = normalize(torch.randn(25, 4, generator=torch.Generator().manual_seed(seed)))
        confidence = torch.linspace(0, 1, 25)
        chosen = suggest_samples(units, confidence, number)
        assert len(chosen) == len(set(chosen.tolist())) == min(number, 25)
        assert chosen.equal(suggest_samples(units, confidence, number))

    def test_equal_samples_are_suggested_one_by_one(self) -> None:
        assert len(set(suggest_samples(torch.ones(9, 2) / 2**0.5, torch.ones(9), 5).tolist())) == 5


def test_centers_of_equal_weights_are_means_of_directions() -> None:
    units, labels = groups([5, 9])
    centers = weighted_kmeans(units, torch.ones(14, dtype=torch.float64), 2)
    expected = normalize(torch.stack([units[labels == each].double().sum(0) for each in (0, 1)]))
    assert torch.allclose(centers @ expected.T, torch.eye(2, dtype=torch.float64), atol=0.2)


def test_standardized_units_have_length_one() -> None:
    units = standardized_units(3 + torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(units.norm(dim=1), torch.ones(50), atol=1e-5)
    assert units.mean(0).abs().max() < 0.2
