"""Scores of every round: that they are there, and that they change nothing."""

from pathlib import Path

import pytest
import torch

from candapt.adaptation import check_settings
from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.evaluation.scores import SCORES
from candapt.methods import METHODS
from candapt.settings import Settings
from candapt.training import scoring
from candapt.training.checkpoint import checkpoints, restore_checkpoint, save_checkpoint
from candapt.training.loop import Training
from candapt.training.scoring import Scorer, hold_out
from tests.toy import Toy, make_training, quick_settings, run, timeless, weights


def seeded(toy: Toy, settings: Settings) -> Training:
    """A training whose discriminators and second heads start the same each time."""
    torch.manual_seed(0)
    return make_training(toy.task, settings)


@pytest.mark.parametrize("method", METHODS)
def test_every_round_of_every_method_is_scored(toy: Toy, method: str) -> None:
    first, second = run(make_training(toy.task, quick_settings(method, training__settled=0))).state.history
    absent = set() if "kept_share" in first else {"score_kept"}
    assert {f"score_{name}" for name in SCORES} - second.keys() == absent
    assert {f"score_{name}" for name in SCORES} - first.keys() == absent | {"score_label_change"}


@pytest.mark.parametrize("statistics", ["domain", "running"])
@pytest.mark.parametrize("method", METHODS)
def test_scoring_changes_nothing(toy: Toy, method: str, statistics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick_settings(method, training__statistics=statistics, training__settled=0)
    scored = run(seeded(toy, settings))
    monkeypatch.setattr(Scorer, "remember_start", lambda self: None)
    monkeypatch.setattr(Scorer, "scores", lambda self, kept: {})
    alone = run(seeded(toy, settings))
    for side in Side:
        assert torch.equal(scored.embed(side).logits, alone.embed(side).logits)
    expected, found = weights(alone), weights(scored)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_large_domains_are_sampled(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SOURCE_SAMPLES", 50)
    monkeypatch.setattr(scoring, "TARGET_SAMPLES", 40)
    seen: list[int] = []
    look = Training.look
    monkeypatch.setattr(Training, "look", lambda self, side, rows: seen.append(len(rows)) or look(self, side, rows))
    training = run(make_training(toy.task, quick_settings("dann", rounds=1)))
    assert seen == [40, 50] * 2
    rows = training.scorer.rows[Side.TARGET]
    part, whole = training.look(Side.TARGET, rows), training.embed(Side.TARGET)
    assert torch.allclose(part.logits, whole.logits[rows], atol=1e-5)


def test_scores_go_on_after_a_checkpoint(toy: Toy, tmp_path: Path) -> None:
    settings = quick_settings("dann", rounds=3, training__settled=0)
    straight = run(seeded(toy, settings))
    first = seeded(toy, settings)
    first.state.end_round(first.one_round(lambda *_: None))
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
        right = training.outputs(Side.SOURCE, aside).logits.argmax(1) == aside.labels
        assert training.state.history[-1]["score_source_accuracy"] == pytest.approx(float(right.float().mean()))

    @pytest.mark.parametrize("share", [-0.1, 1.0])
    def test_impossible_shares(self, share: float) -> None:
        with pytest.raises(UserError, match=r"training\.held_out is"):
            check_settings(quick_settings(training__held_out=share))
