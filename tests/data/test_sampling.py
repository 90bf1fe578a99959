"""Batches of indices: what each holds, how evenly, and from what randomness."""

import math
from collections import Counter
from itertools import combinations
from time import process_time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from candapt.data import sampling
from candapt.data.sampling import class_aware_batches, random_batches, steps_per_round

fast = settings(derandomize=True, deadline=None, max_examples=40)
source_labels = st.lists(st.integers(0, 6), max_size=40)
target_labels = st.lists(st.integers(-1, 7), max_size=40)
sizes = st.integers(1, 5)


def seeded(seed: int = 0) -> torch.Generator:
    """A generator in a known state."""
    return torch.Generator().manual_seed(seed)


def members(labels: list[int], label: int) -> list[int]:
    """Indices of a class."""
    return [index for index, other in enumerate(labels) if other == label]


def slow_shared(source: list[int], target: list[int]) -> list[int]:
    """Classes with a sample in both domains."""
    return [label for label in range(8) if label in source and label in target]


@fast
@given(count=st.integers(1, 30), batch_size=st.integers(1, 40), steps=st.integers(0, 20), seed=st.integers(0, 99))
def test_random_batches_are_shuffled_epochs(count: int, batch_size: int, steps: int, seed: int) -> None:
    batches = random_batches(count, batch_size, steps, seeded(seed))
    size = min(batch_size, count)
    assert batches.shape == (steps, size)
    assert batches.dtype == torch.int64
    per_epoch = count // size
    for epoch in torch.split(batches, per_epoch):
        seen = epoch.flatten().tolist()
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(range(count))


def test_random_batches_larger_than_the_set_are_the_set() -> None:
    batches = random_batches(5, 30, 50, seeded())
    assert (batches.sort(dim=1).values == torch.arange(5)).all()
    assert len({tuple(batch.tolist()) for batch in batches}) > 20  # shuffled anew each time


def test_random_batches_drop_the_incomplete_batch() -> None:
    batches = random_batches(10, 4, 6, seeded())
    for epoch in torch.split(batches, 2):
        assert len(set(epoch.flatten().tolist())) == 8


def test_random_batches_are_even() -> None:
    counts = random_batches(7, 3, 7000, seeded()).flatten().bincount(minlength=7)
    assert chisquare(counts).pvalue > 0.001


def test_random_batches_do_not_depend_on_what_follows() -> None:
    assert torch.equal(random_batches(11, 3, 20, seeded())[:7], random_batches(11, 3, 7, seeded()))


def test_draws_come_from_the_generator_alone() -> None:
    labels = torch.arange(60) % 6
    for draw in (draw_random, draw_class_aware):
        torch.manual_seed(1)
        first = draw(labels, 3)
        torch.manual_seed(2)
        assert same(first, draw(labels, 3))
        assert not same(first, draw(labels, 4))
        state = torch.get_rng_state()
        draw(labels, 3)
        assert torch.equal(state, torch.get_rng_state())


def draw_random(labels: Tensor, seed: int) -> list[tuple[Tensor, ...]]:
    """Random batches in the form of class-aware ones."""
    return [(batch,) for batch in random_batches(len(labels), 8, 12, seeded(seed))]


def draw_class_aware(labels: Tensor, seed: int) -> list[tuple[Tensor, ...]]:
    """Class-aware batches of a source and a target with the same labels."""
    return [*class_aware_batches(labels, labels, classes=4, samples=3, steps=12, generator=seeded(seed))]


def same(a: list[tuple[Tensor, ...]], b: list[tuple[Tensor, ...]]) -> bool:
    """Whether two lists of batches hold the same indices."""
    return all(torch.equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True))


@fast
@given(source=source_labels, target=target_labels, classes=sizes, samples=sizes, steps=st.integers(0, 9))
def test_class_aware_batches_hold_what_they_should(
    source: list[int], target: list[int], classes: int, samples: int, steps: int
) -> None:
    domains = torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64)
    batches = class_aware_batches(*domains, classes=classes, samples=samples, steps=steps, generator=seeded())
    shared = slow_shared(source, target)
    if not shared:
        assert batches == []
        return
    assert len(batches) == steps
    for batch in batches:
        orders = []
        for labels, indices in zip((source, target), batch, strict=True):
            drawn = indices.tolist()
            assert len(set(drawn)) == len(drawn)  # without replacement
            order = list(dict.fromkeys(labels[index] for index in drawn))
            expected = [label for label in order for _ in range(min(samples, len(members(labels, label))))]
            assert [labels[index] for index in drawn] == expected  # class by class, as many as there are
            orders.append(order)
        assert orders[0] == orders[1]
        assert len(orders[0]) == min(classes, len(shared))
        assert set(orders[0]) <= set(shared)


@fast
@given(num_classes=st.integers(1, 9), classes=sizes, seed=st.integers(0, 99))
def test_no_class_repeats_within_a_pass(num_classes: int, classes: int, seed: int) -> None:
    labels = torch.arange(num_classes).repeat(3)
    batches = class_aware_batches(labels, labels, classes=classes, samples=2, steps=12, generator=seeded(seed))
    groups = [sorted(set(labels[source].tolist())) for source, _ in batches]
    per_pass = num_classes // min(classes, num_classes)
    for start in range(0, len(groups), per_pass):
        seen = [label for group in groups[start : start + per_pass] for label in group]
        assert len(set(seen)) == len(seen)


def test_every_class_is_covered_evenly() -> None:
    labels = torch.arange(31).repeat(5)
    batches = class_aware_batches(labels, labels, classes=10, samples=3, steps=3100, generator=seeded())
    seen = torch.stack([labels[source] for source, _ in batches]).flatten().bincount(minlength=31) // 3
    assert chisquare(seen).pvalue > 0.001
    assert int(seen.sum()) == 31000


@pytest.mark.parametrize(("available", "samples"), [(6, 3), (5, 1), (5, 4), (7, 2)])
def test_every_subset_of_a_class_is_equally_likely(available: int, samples: int) -> None:
    source, target = torch.zeros(available, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    batches = class_aware_batches(source, target, classes=1, samples=samples, steps=7000, generator=seeded())
    counts = Counter(tuple(sorted(batch.tolist())) for batch, _ in batches)
    assert set(counts) == set(combinations(range(available), samples))
    assert chisquare(list(counts.values())).pvalue > 0.001


def test_every_sample_of_a_huge_class_can_be_drawn() -> None:
    limit = 2**40  # too many for single precision, which would give multiples of a power of two
    drawn = sampling._distinct_integers(torch.full((4000,), limit), 1, seeded())
    assert 0 <= int(drawn.min()) < limit / 1000
    assert limit > int(drawn.max()) > limit - limit / 1000
    assert chisquare((drawn.flatten() % 8).bincount(minlength=8)).pvalue > 0.001


def test_steps_and_domains_are_independent() -> None:
    labels = torch.zeros(4, dtype=torch.int64)
    batches = class_aware_batches(labels, labels, classes=1, samples=1, steps=16000, generator=seeded())
    source, target = (torch.cat(side) for side in zip(*batches, strict=True))
    assert chisquare((source * 4 + target).bincount(minlength=16)).pvalue > 0.001
    assert chisquare((source[:-1] * 4 + source[1:]).bincount(minlength=16)).pvalue > 0.001


def test_classes_of_one_batch_are_drawn_independently() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    batches = class_aware_batches(labels, labels, classes=2, samples=1, steps=9000, generator=seeded())
    pairs = torch.stack([source.sort().values for source, _ in batches])
    assert chisquare((pairs[:, 0] * 3 + pairs[:, 1] - 3).bincount(minlength=9)).pvalue > 0.001


def test_only_one_domain_has_kept_samples() -> None:
    labels, discarded = torch.tensor([0, 1, 2]), torch.tensor([-1, -1])
    for source, target in [(labels, discarded), (labels, labels + 3), (labels, labels[:0]), (labels[:0], labels)]:
        assert class_aware_batches(source, target, classes=2, samples=2, steps=5, generator=seeded()) == []
        assert steps_per_round(source, target, classes=2, samples=2) == 1


def test_discarded_samples_are_never_drawn() -> None:
    source, target = torch.tensor([2, 0, 1, 1]), torch.tensor([-1, 1, -1, 0, 1, -1, 4])
    batches = class_aware_batches(source, target, classes=3, samples=3, steps=9, generator=seeded())
    assert all(sorted(drawn.tolist()) == [1, 3, 4] for _, drawn in batches)
    assert all(sorted(drawn.tolist()) == [1, 2, 3] for drawn, _ in batches)


def test_class_aware_batches_are_fast() -> None:
    labels = torch.arange(152_397) % 12
    start = process_time()
    class_aware_batches(labels, labels, classes=10, samples=10, steps=1000, generator=seeded())
    assert process_time() - start < 2  # takes about a fiftieth of this


def slow_steps(source: list[int], target: list[int], classes: int, samples: int) -> int:
    """The formula of the authors' loader, class by class."""
    shared, draws = slow_shared(source, target), 0
    for label in shared:
        counts = [len(members(labels, label)) for labels in (source, target)]
        draws += max(count // min(samples, count) for count in counts)
    return max(1, math.ceil(draws / min(classes, len(shared)))) if shared else 1


@fast
@given(source=source_labels, target=target_labels, classes=sizes, samples=sizes)
def test_steps_per_round_equal_loops(source: list[int], target: list[int], classes: int, samples: int) -> None:
    domains = torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64)
    assert steps_per_round(*domains, classes=classes, samples=samples) == slow_steps(source, target, classes, samples)


def test_steps_per_round_of_known_cases() -> None:
    visda = torch.arange(152_397) % 12
    assert steps_per_round(visda, visda[:55_388], classes=6, samples=10) == 2540  # the authors run a fifth of them
    assert steps_per_round(torch.tensor([0, 0]), torch.tensor([0]), classes=3, samples=3) == 1


def test_impossible_sizes_are_refused() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="0 samples"):
        random_batches(0, 4, 1, seeded())
    with pytest.raises(ValueError, match="Batches of 0"):
        random_batches(4, 0, 1, seeded())
    with pytest.raises(ValueError, match="at least 1 x 1"):
        class_aware_batches(labels, labels, classes=0, samples=3, steps=1, generator=seeded())
    with pytest.raises(ValueError, match="at least 1 x 1"):
        steps_per_round(labels, labels, classes=2, samples=0)
