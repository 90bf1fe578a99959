"""Scores of every round: that they are there, and that they change nothing; and when the alternation has settled."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from candapt.clustering import Clusters
from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.evaluation.scores import SCORES, protocol, tell_domains_apart
from candapt.methods import METHODS
from candapt.network.network import Outputs
from candapt.randomness import generator
from candapt.settings import Settings
from candapt.training import scoring
from candapt.training.checkpoint import checkpoints, restore_checkpoint, save_checkpoint
from candapt.training.loop import Training
from candapt.training.outputs import DomainOutputs
from candapt.training.scoring import Scorer, cluster_facts, has_settled, hold_out
from tests.toy import Toy, make_training, quick_settings, run, timeless, weights


def seeded(toy: Toy, settings: Settings) -> Training:
    """A training whose discriminators and second heads start the same each time."""
    torch.manual_seed(0)
    return make_training(toy.task, settings)


@pytest.mark.parametrize("method", METHODS)
def test_every_round_of_every_method_is_scored(toy: Toy, method: str) -> None:
    settings = quick_settings(method, training__settled=0, training__steps=1)
    first, second = run(make_training(toy.task, settings)).state.history
    for record in (first, second):
        assert {name for name in record if name.startswith("score_")} == {f"score_{name}" for name in SCORES}


@pytest.mark.parametrize(
    ("every", "select", "scored"), [(2, "last", [1, 3, 4]), (9, "last", [4]), (2, "snd", [0, 1, 2, 3, 4])]
)
def test_rounds_are_scored_as_often_as_set(toy: Toy, every: int, select: str, scored: list[int]) -> None:
    settings = quick_settings("source-only", rounds=5, select=select, training__score_every=every)
    history = run(make_training(toy.task, settings)).state.history
    assert [index for index, record in enumerate(history) if "score_snd" in record] == scored


@pytest.mark.parametrize("statistics", ["domain", "running"])
@pytest.mark.parametrize("method", METHODS)
def test_scoring_changes_nothing(toy: Toy, method: str, statistics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick_settings(method, training__statistics=statistics, training__settled=0, training__steps=2)
    scored = run(seeded(toy, settings))
    monkeypatch.setattr(Scorer, "remember_start", lambda self: None)
    monkeypatch.setattr(Scorer, "scores", lambda self: {})
    alone = run(seeded(toy, settings))
    for side in Side:
        assert torch.equal(scored.outputs.of(side).logits, alone.outputs.of(side).logits)
    expected, ended = weights(alone), weights(scored)
    assert all(torch.equal(expected[name], ended[name]) for name in expected)


def test_large_domains_are_sampled(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SOURCE_SAMPLES", 50)
    monkeypatch.setattr(scoring, "TARGET_SAMPLES", 40)
    seen: list[int] = []
    of_rows = DomainOutputs.of_rows

    def counted(self: DomainOutputs, side: Side, rows: Tensor, *, whole: bool) -> Outputs:
        seen.append(len(rows))
        return of_rows(self, side, rows, whole=whole)

    monkeypatch.setattr(DomainOutputs, "of_rows", counted)
    training = run(make_training(toy.task, quick_settings("dann", rounds=1)))
    assert seen == [40, 50] * 2
    rows = training.scorer.rows[Side.TARGET]
    part, whole = training.scorer.outputs(Side.TARGET), training.outputs.of(Side.TARGET)
    assert torch.allclose(part.logits, whole.logits[rows], atol=1e-5)


def test_scores_go_on_after_a_checkpoint(toy: Toy, tmp_path: Path) -> None:
    settings = quick_settings("dann", rounds=3, training__settled=0)
    straight = run(seeded(toy, settings))
    first = seeded(toy, settings)
    first.state.end_round(first.one_round())
    save_checkpoint(first, tmp_path)
    resumed = seeded(toy, settings)
    restore_checkpoint(resumed, checkpoints(tmp_path)[-1])
    assert timeless(run(resumed).state.history) == timeless(straight.state.history)


class TestHeldOut:
    def test_a_share_of_each_class_is_set_aside(self, toy: Toy) -> None:
        task, aside = hold_out(toy.task, 0.2, seed=0)
        assert aside is not None
        assert aside.labels.bincount().tolist() == [6] * 4
        assert task.source.labels.bincount().tolist() == [24] * 4
        assert sorted([*task.source.names, *aside.names], key=int) == list(toy.task.source.names)
        rows = torch.tensor([int(name) for name in aside.names])
        assert torch.equal(aside.samples.read(torch.arange(24)), toy.task.source.samples.read(rows))
        assert hold_out(toy.task, 0.2, seed=1)[1].names != aside.names  # type: ignore[union-attr]

    def test_nothing_is_held_out_by_default(self, toy: Toy) -> None:
        whole = toy.task
        assert hold_out(whole, 0.0, seed=0) == (whole, None)

    def test_every_class_keeps_a_sample(self, toy: Toy) -> None:
        task, _ = hold_out(toy.task, 0.99, seed=0)
        assert task.source.labels.bincount().tolist() == [1] * 4

    def test_training_never_sees_it(self, toy: Toy) -> None:
        training = run(make_training(toy.task, quick_settings(training__held_out=0.25)))
        aside = training.scorer.held_out
        assert aside is not None
        assert not set(aside.names) & set(training.task.source.names)
        right = training.outputs.of_samples(Side.SOURCE, aside).logits.argmax(1) == aside.labels
        target = training.scorer.outputs(Side.TARGET).features
        source = training.outputs.of_samples(Side.SOURCE, aside).features
        domains = tell_domains_apart(source, target, generator(training.settings.seed, "domains"))
        assert domains is not None
        expected = protocol(float(right.float().mean()), domains.error)
        assert training.state.history[-1]["score_protocol"] == pytest.approx(expected)

    @pytest.mark.parametrize("share", [-0.1, 1.0])
    def test_impossible_shares(self, share: float) -> None:
        with pytest.raises(UserError, match=r"training\.held_out is"):
            quick_settings(training__held_out=share)


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
    assert facts["kept_change"] == 0.5  # two of four are dropped


def test_a_method_without_clusters_has_no_facts() -> None:
    assert cluster_facts(None, None) == {}


QUIET = {"label_change": 0.0, "center_shift": 0.0, "kept_change": 0.0}
CHANGES = tuple(QUIET)


def test_two_quiet_rounds_have_settled_and_one_has_not() -> None:
    loud = dict.fromkeys(CHANGES, 0.5)
    assert has_settled([QUIET, QUIET], 0.001)
    assert has_settled([loud, QUIET, QUIET], 0.001)  # only the last ones count
    assert not has_settled([], 0.001)
    assert not has_settled([QUIET], 0.001)
    assert not has_settled([QUIET, QUIET, loud], 0.001)
    assert not has_settled([QUIET, loud, QUIET], 0.001)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", [0, 1])
def test_labels_centers_and_kept_samples_must_all_rest_in_both_rounds(change: str, place: int) -> None:
    def history(value: float) -> list[dict[str, float]]:
        return [QUIET | ({change: value} if place == number else {}) for number in range(2)]

    assert has_settled(history(0.00099), 0.001)
    assert not has_settled(history(0.001), 0.001)
    unknown = history(0.0)
    del unknown[place][change]  # as in the first round, and for a method without clusters
    assert not has_settled(unknown, 0.001)


def test_zero_never_stops() -> None:
    assert not has_settled([QUIET, QUIET], 0)
    assert has_settled([QUIET, QUIET], 1e-9)


def test_a_warm_up_is_not_has_settled() -> None:
    preparing, aligning = QUIET | {"warmup": 1}, QUIET | {"warmup": 0}
    assert not has_settled([preparing] * 3, 0.001)
    assert not has_settled([preparing, aligning], 0.001)
    assert not has_settled([aligning, preparing], 0.001)
    assert has_settled([preparing, aligning, aligning], 0.001)
