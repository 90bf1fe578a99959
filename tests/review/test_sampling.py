"""The sample is random, and every stratum gives its share."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from candapt.review.sampling import PARTS, STRATIFY, Population, Sample, Stratify, drawing_order


def population(count: int = 120, *, known: frozenset[str] = frozenset()) -> Population:
    random = np.random.default_rng(0)
    classes = random.choice(["cat", "dog", "emu"], size=count, p=[0.7, 0.2, 0.1])
    samples = tuple(Sample(f"{row}.jpg", str(name), float(random.random())) for row, name in enumerate(classes))
    return Population(samples, known)


@pytest.mark.parametrize("stratify", STRATIFY)
class TestOrder:
    def test_everything_comes_once(self, stratify: Stratify) -> None:
        assert sorted(drawing_order(population(), stratify, 0)) == list(range(120))

    def test_it_is_a_function_of_the_seed(self, stratify: Stratify) -> None:
        orders = [list(drawing_order(population(), stratify, seed)) for seed in (3, 3, 4)]
        assert orders[0] == orders[1] != orders[2]

    def test_labels_that_steered_are_never_shown(self, stratify: Stratify) -> None:
        some = population(known=frozenset({"3.jpg", "77.jpg"}))
        assert set(drawing_order(some, stratify, 0)) == set(range(120)) - {3, 77}

    def test_every_prediction_is_equally_likely(self, stratify: Stratify) -> None:
        some, draws, first = population(40), 2000, 10
        counts = Counter(row for seed in range(draws) for row in list(drawing_order(some, stratify, seed))[:first])
        expected = draws * first / 40
        # Five standard deviations of a count.
        assert max(abs(counts[row] - expected) for row in range(40)) < 5 * (expected * 0.75) ** 0.5

    def test_strata_give_their_share(self, stratify: Stratify) -> None:
        some = population()
        order = list(drawing_order(some, stratify, 0))
        for number in (12, 30, 77):
            drawn = set(order[:number])
            for rows in some.strata(stratify):
                assert abs(len(drawn & set(rows)) - number * len(rows) / 120) <= 2

    def test_of_nothing(self, stratify: Stratify) -> None:
        assert list(drawing_order(Population(()), stratify, 0)) == []


class TestStrata:
    def test_quarters_by_confidence(self) -> None:
        some = population()
        parts = some.strata("confidence")
        assert [len(rows) for rows in parts] == [30] * PARTS
        limits = [[some.samples[row].confidence for row in rows] for rows in parts]
        assert all(max(one) <= min(next_one) for one, next_one in pairwise(limits))

    def test_classes_are_joined_to_four_groups_at_most(self) -> None:
        samples = tuple(Sample(str(row), f"class {row % 31}", (row % 31) / 31) for row in range(310))
        groups = Population(samples).groups("class")
        assert len(Population(samples).strata("class")) == 31
        assert len(groups) == PARTS
        assert sorted(row for rows in groups for row in rows) == list(range(310))
        assert all(60 <= len(rows) <= 95 for rows in groups)

    def test_fewer_samples_than_parts(self) -> None:
        some = Population((Sample("a", "cat", 0.5), Sample("b", "dog", 0.5)))
        assert some.strata("confidence") == [[0], [1]]
        assert len(some.groups("class")) == 2
