"""Label-free scores against slow references, and what they must say in plain cases."""

import math
import re
import warnings
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, pad

from candapt.clustering import Clusters
from candapt.evaluation import scores
from candapt.evaluation.scores import Evidence
from candapt.network.network import Outputs
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
    assert scores.deep_embedded_validation(losses, 3 * torch.ones(3)) == pytest.approx(6.0)


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


def test_class_ami_compares_directions_and_is_the_same_each_time() -> None:
    features, groups = grouped(width=100, spread=3.0), torch.arange(4).repeat_interleave(40)
    value = scores.class_ami(features, groups, 4)
    assert 0.3 < value < 0.99
    lengths = 0.01 + 100 * torch.rand(160, 1, generator=generator(1))
    assert scores.class_ami(lengths * features, groups, 4) == pytest.approx(value)
    assert scores.class_ami(features + 1e-9, 3 - groups, 4) == pytest.approx(value)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert scores.class_ami(features, groups, 4) == value
    assert torch.equal(torch.get_rng_state(), states[0])  # nothing is drawn from what others draw from
    assert np.random.get_state()[1].tolist() == states[1]
    assert scores.class_ami(features.half(), groups, 4) == pytest.approx(value, abs=0.05)


def test_class_ami_of_few_or_equal_samples() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scores.class_ami(torch.ones(6, 3), torch.arange(6) % 2, 3) == 0
        assert scores.class_ami(torch.eye(3), torch.tensor([0, 1, 2]), 9) == pytest.approx(1)


def test_as_many_clusters_as_classes_are_sought() -> None:
    features, groups = grouped(), torch.arange(4).repeat_interleave(40)
    assert scores.class_ami(features, groups, 2) < 0.9
    assert scores.class_ami(features, groups // 2, 4) < 0.9


def test_the_nearest_neighbors_come_first_and_nobody_is_its_own() -> None:
    features = grouped(each=5, spread=1.5)
    near = scores.nearest_neighbors(features)
    assert near.shape == (20, 5)
    units = (features / features.norm(dim=1, keepdim=True)).double()
    for row in range(20):
        others = sorted((other for other in range(20) if other != row), key=lambda o: -float(units[row] @ units[o]))
        assert near[row].tolist() == others[:5]
    assert torch.equal(
        scores.nearest_neighbors(1000 * features.half(), 2), scores.nearest_neighbors(features.half(), 2)
    )
    assert torch.equal(scores.nearest_neighbors(features.double() * 7), near)
    assert scores.nearest_neighbors(features[:1], 5).shape == (1, 0)


def test_a_single_class_has_no_information() -> None:
    assert scores.neighbor_information(torch.zeros(3).long(), torch.tensor([[1], [2], [0]]), 1) == 0


def test_neighbors_match_their_reference() -> None:
    features, labels = grouped(each=8, spread=1.5), torch.arange(4).repeat_interleave(8)
    near = scores.nearest_neighbors(features, 5)
    assert scores.neighbor_agreement(labels, near) == pytest.approx(reference.neighbors(labels.tolist(), features, 5))
    assert scores.nearest_neighbors(features[:3], 5).shape == (3, 2)


def test_neighbor_information_matches_its_reference() -> None:
    features, labels = grouped(each=8, spread=1.5), torch.arange(4).repeat_interleave(8)
    near = scores.nearest_neighbors(features, 5)
    for merged, classes in ((labels, 4), (labels // 2, 2)):
        expected = reference.neighbor_information(merged.tolist(), features, 5, classes)
        assert scores.neighbor_information(merged, near, classes) == pytest.approx(expected)


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
        assert scores.tell_domains_apart(torch.rand(9, 2), torch.rand(3, 2), generator(0)) is None
        assert scores.tell_domains_apart(torch.rand(4, 2), torch.rand(4, 2), generator(0)) is not None

    def test_large_domains_are_sampled(self) -> None:
        whole = torch.randn(2300, 6, generator=generator(0))
        test = scores.tell_domains_apart(whole[:1100], whole[1100:], generator(0))
        assert test is not None
        assert len(test.source_rows) == len(test.weights) == len(test.source_rows.unique()) == 500
        assert test.source_rows.max() > 1000  # from all of it

    def test_weights_belong_to_their_samples(self) -> None:
        draw = generator(0)
        source, target = (torch.randn(200, 5, generator=draw) + torch.tensor([4.0, 0, 0, 0, 0]) for _ in range(2))
        near = torch.arange(200) % 3 == 0  # these lie where the target is
        source[~near] += torch.tensor([0.0, 4.0, 0.0, 0.0, 0.0])
        test = scores.tell_domains_apart(source, target, generator(1))
        assert test is not None
        inside, outside = test.weights[near[test.source_rows]], test.weights[~near[test.source_rows]]
        assert float(inside.quantile(0.1)) > float(outside.quantile(0.9))

    @pytest.mark.parametrize(("sources", "targets"), [(600, 40), (40, 600)])
    def test_both_domains_weigh_the_same_whatever_their_size(self, sources: int, targets: int) -> None:
        draw = generator(2)
        source, target = (torch.randn(n, 3, generator=draw) for n in (sources, targets))
        alike = scores.tell_domains_apart(source, target, generator(0))
        assert alike is not None
        assert 0.3 < alike.error < 0.7  # and not that of always naming the larger one
        assert float(alike.weights.median()) == pytest.approx(1, abs=0.4)

    def test_the_error_is_the_mean_of_both_domains(self) -> None:
        # Half of the source lies in the target: a quarter of the samples of both domains, however many there are.
        draw = generator(0)
        apart = torch.tensor([30.0, 0.0])
        target = torch.randn(40, 2, generator=draw) + apart.flip(0)
        source = torch.cat([torch.randn(300, 2, generator=draw) + apart, torch.randn(300, 2, generator=draw) + 30])
        source[300:] = target.repeat(8, 1)[:300]
        test = scores.tell_domains_apart(source, target, generator(0))
        assert test is not None
        assert test.error == pytest.approx(0.25, abs=0.06)

    def test_lengths_and_places_of_all_features_do_not_matter(self) -> None:
        source, target = grouped(seed=0, spread=2.0), grouped(seed=1, spread=2.0)
        plain, scaled, half = (
            scores.tell_domains_apart(a, b, generator(0))
            for a, b in ((source, target), (1e4 * source, 1e-4 * target), (source.half(), target.half()))
        )
        assert plain is not None
        assert scaled is not None
        assert half is not None
        assert 0 < plain.error == pytest.approx(scaled.error)
        torch.testing.assert_close(plain.weights, scaled.weights, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(plain.weights, half.weights, rtol=0.1, atol=0.01)

    def test_directions_that_hardly_differ_are_told_apart_as_well(self) -> None:
        draw = generator(0)
        source, target = torch.tensor([1.0, 0.0, 0.0]) + 1e-4 * torch.randn(2, 200, 3, generator=draw)
        test = scores.tell_domains_apart(source, target + torch.tensor([0.0, 1e-3, 0.0]), generator(0))
        assert test is not None
        assert test.error < 0.01
        assert float(test.weights.max()) < 0.3

    def test_features_that_are_always_zero_do_not_matter(self) -> None:
        source, target = grouped(seed=0, spread=2.0), grouped(seed=1, spread=2.0)
        plain, padded = (
            scores.tell_domains_apart(pad(source, (0, n)), pad(target, (0, n)), generator(0)) for n in (0, 30)
        )
        assert plain is not None
        assert padded is not None
        torch.testing.assert_close(plain.weights, padded.weights, rtol=1e-3, atol=1e-5)

    def test_features_that_are_all_the_same_say_nothing_and_break_nothing(self) -> None:
        test = scores.tell_domains_apart(torch.ones(10, 3), torch.ones(10, 3), generator(0))
        assert test is not None
        assert test.error == 0.5
        assert test.weights.tolist() == pytest.approx([1] * 5)

    def test_no_weight_is_beyond_all_bounds(self) -> None:
        draw = generator(0)
        signs = torch.tensor([1.0, -1.0])[:, None, None]
        source, target = signs * (torch.randn(2, 1000, 3, generator=draw) * 1e-3 + torch.tensor([1.0, 0.0, 0.0]))
        test = scores.tell_domains_apart(source, target, generator(0))
        assert test is not None
        assert test.error == 0
        assert 0 < float(test.weights.min()) <= float(test.weights.max()) < 0.01

    def test_principal_directions_hold_what_varies(self) -> None:
        features = torch.randn(200, 3, generator=generator(0)) @ torch.randn(3, 300, generator=generator(1))
        reduced = scores.principal_directions(features, 8, generator(2))
        assert reduced.shape == (200, 8)
        centered = features - features.mean(0)
        assert float(reduced.norm()) == pytest.approx(float(centered.norm()), rel=1e-4)

    def test_narrow_features_are_only_centered(self) -> None:
        features = torch.randn(20, 8, generator=generator(0)) + 5
        draw = generator(2)
        before = draw.get_state()
        assert torch.equal(scores.principal_directions(features, 8, draw), features - features.mean(0))
        assert torch.equal(draw.get_state(), before)

    def test_principal_directions_leave_out_what_varies_least(self) -> None:
        draw = generator(0)
        scales = torch.tensor([9.0] * 4 + [0.01] * 30)
        features = torch.randn(200, 34, generator=draw) * scales + 100
        reduced = scores.principal_directions(features, 4, generator(1))
        large = (features - features.mean(0))[:, :4]
        torch.testing.assert_close(reduced @ reduced.T, large @ large.T, rtol=1e-2, atol=1.0)
        assert torch.equal(reduced, scores.principal_directions(features, 4, generator(1)))

    def test_the_protocol_adds_both_errors(self) -> None:
        assert scores.protocol(1.0, 0.5) == 0
        assert scores.protocol(0.9, 0.1) == pytest.approx(0.1 + 0.8)
        assert scores.protocol(0.9, 0.6) == pytest.approx(0.1)  # worse than chance is chance


class TestAll:
    """The table of scores, over made evidence."""

    @staticmethod
    def evidence(count: int = 60, sources: int = 50, classes: int = 4, seed: int = 3, **changes: object) -> Evidence:
        draw = generator("evidence")
        target, source = (
            Outputs(torch.randn(n, 5, generator=draw), torch.randn(n, classes, generator=draw))
            for n in (count, sources)
        )
        labels, first = (torch.randint(classes, (count,), generator=draw) for _ in range(2))
        clusters = Clusters(labels, torch.rand(count), torch.eye(classes), torch.ones(count).bool(), steps=1)
        truth = torch.randint(classes, (sources,), generator=draw)
        near = torch.randint(count, (count, 3), generator=draw)
        values = {"first_labels": first, "first_neighbors": near, **changes}
        return Evidence(target, source, truth, clusters, seed, **values)  # type: ignore[arg-type]

    def test_every_score_is_computed_from_what_it_is_about(self) -> None:
        evidence = self.evidence()
        p, predicted = evidence.target.logits.softmax(1), evidence.target.logits.argmax(1)
        domains = scores.tell_domains_apart(evidence.source.features, evidence.target.features, generator(3, "domains"))
        assert domains is not None
        assert evidence.first_labels is not None
        assert evidence.first_neighbors is not None
        right = evidence.source.logits.argmax(1) == evidence.source_labels
        losses = cross_entropy(evidence.source.logits, evidence.source_labels, reduction="none").double()
        expected = {
            "neighbor_information": scores.neighbor_information(predicted, evidence.first_neighbors, 4),
            "agreement": float((predicted == evidence.clusters.labels).double().mean()),
            "first_agreement": float((predicted == evidence.first_labels).double().mean()),
            "class_ami": scores.class_ami(evidence.target.features, predicted, 4),
            "protocol": 1 - float(right.double().mean()) + max(0.0, 1 - 2 * domains.error),
            "information": reference.information(p),
            "snd": reference.snd(p, 0.05),
            "dev": reference.dev(losses[domains.source_rows].tolist(), domains.weights.tolist()),
        }
        made = scores.all_scores(evidence)
        assert list(made) == list(expected)
        assert made == pytest.approx(expected, abs=1e-4)
        assert len(set(made.values())) == len(made)

    def test_scores_without_evidence_are_left_out(self) -> None:
        everything = set(scores.SCORES)
        assert set(scores.all_scores(self.evidence(first_labels=None))) == everything - {"first_agreement"}
        assert set(scores.all_scores(self.evidence(first_neighbors=None))) == everything - {"neighbor_information"}
        assert set(scores.all_scores(self.evidence(sources=3))) == everything - {"protocol", "dev"}

    def test_scores_that_are_not_finite_are_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for value in (math.nan, math.inf):
            monkeypatch.setattr(scores, "soft_neighborhood_density", lambda p, value=value: value)
            assert set(scores.all_scores(self.evidence())) == set(scores.SCORES) - {"snd"}

    def test_the_seed_decides_what_is_drawn(self) -> None:
        first, same, other = (scores.all_scores(self.evidence(seed=seed)) for seed in (0, 0, 1))
        assert first == same
        assert {name for name in first if first[name] != other[name]} == {"protocol", "dev"}
        evidence = self.evidence()
        without = Evidence(evidence.target, evidence.source, evidence.source_labels, evidence.clusters)
        assert scores.all_scores(without).items() <= first.items()

    def test_domains_are_told_apart_once(self) -> None:
        evidence = self.evidence()
        assert evidence.domains is evidence.domains

    def test_scores_that_use_source_labels_ask_for_held_out_samples(self) -> None:
        first = scores.all_scores(self.evidence())
        evidence = self.evidence()
        evidence.source_labels.copy_(evidence.source.logits.argmax(1))
        changed = {name for name, value in scores.all_scores(evidence).items() if value != first[name]}
        assert changed == {name for name, score in scores.SCORES.items() if score.needs_held_out}

    def test_shares_are_between_0_and_1(self) -> None:
        shares = {name for name, score in scores.SCORES.items() if score.is_share}
        assert shares == {"neighbor_information", "agreement", "first_agreement"}
        assert all(0 <= scores.all_scores(self.evidence())[name] <= 1 for name in shares)

    def test_titles_and_meanings_read_well_in_a_report(self) -> None:
        for name, score in scores.SCORES.items():
            assert score.title.lower().replace(" ", "") == name.replace("_", "")
            assert score.title[0].isupper()
            assert len(score.title) < 4 or not score.title.isupper()
            assert re.fullmatch(r"[a-z][^.]*[a-z0-9]", score.meaning), score.meaning

    def test_only_what_a_training_can_win_by_standing_still_is_incomparable(self) -> None:
        reasons = {name: score.incomparable for name, score in scores.SCORES.items() if score.incomparable}
        assert reasons.keys() == {"first_agreement"}
        assert re.fullmatch(r"a training [a-z ]+", reasons["first_agreement"])

    def test_evidence_and_scores_stay_as_they_are(self) -> None:
        evidence = self.evidence()
        with pytest.raises(FrozenInstanceError):
            evidence.seed = 2  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            scores.SCORES["snd"].title = "S"  # type: ignore[misc]
        assert evidence != self.evidence()  # a comparison by value would ask tensors for one bool

    def test_a_score_is_added_by_its_decorator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scores, "SCORES", {})

        @scores.score("constant", "Constant", "always the same")
        def constant(evidence: Evidence) -> float:
            return 0.5

        assert constant(self.evidence()) == 0.5
        assert scores.all_scores(self.evidence()) == {"constant": 0.5}
        row = scores.SCORES["constant"]
        assert row == scores.Score("Constant", "always the same", constant, True, False, "", False)
        assert row == scores.Score("Constant", "always the same", constant)
        scores.score("other", "O", "o", higher_is_better=False, is_share=True, incomparable="x", needs_held_out=True)(
            constant
        )
        assert scores.SCORES["other"] == scores.Score("O", "o", constant, False, True, "x", True)


DOCUMENTATION = Path(__file__).parents[2] / "docs/trust.md"


def test_the_documentation_lists_every_score() -> None:
    page = DOCUMENTATION.read_text(encoding="utf-8")
    listed = page.partition("## Scores")[2].partition("##")[0]
    for name, score in scores.SCORES.items():
        (line,) = (line for line in listed.splitlines() if line.startswith(f"| `{name}` "))
        assert line.endswith("higher |" if score.higher_is_better else "lower |")


def test_the_documentation_lists_every_removed_score() -> None:
    page = DOCUMENTATION.read_text(encoding="utf-8")
    lines = page.partition("### Removed scores")[2].partition("##")[0].splitlines()
    rows = [[re.findall(r"`(\w+)`", cell) for cell in line.split("|")[1:3]] for line in lines if line.startswith("| `")]
    assert {name: successor for names, (successor,) in rows for name in names} == scores.RETIRED
