"""Keeping the round that a label-free score selects."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from candapt.adaptation import adapt
from candapt.commands.adapt import adapt as adapt_files
from candapt.commands.job import Job
from candapt.commands.summary import conclude
from candapt.data.domains import Side
from candapt.training.checkpoint import checkpoints, restore_checkpoint, save_checkpoint
from candapt.training.loop import Record, Training
from candapt.training.scoring import Scorer
from tests.toy import Toy, make_training, quick_settings, run, weights


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Scores of the rounds to come, in place of real ones."""
    values = [1.0, 5.0, 3.0]
    monkeypatch.setattr(
        Scorer, "scores", lambda self, kept: {"score_snd": values[self.training.state.round], "score_dev": 1.0}
    )
    return values


def settings(**changes: Any) -> Any:
    return quick_settings("can", **{"rounds": 3, "training__settled": 0, "select": "snd", **changes})


def states(training: Training) -> list[dict[str, torch.Tensor]]:
    """The method after each round."""
    found: list[dict[str, torch.Tensor]] = []
    training.run(lambda done, planned: None, lambda training, record: found.append(weights(training)))
    return found


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("statistics", ["domain", "running"])
def test_the_model_is_that_of_the_best_round(toy: Toy, statistics: str) -> None:
    training = make_training(toy.task, settings(training__statistics=statistics))
    after = states(training)
    choice = training.return_to_best()
    assert (choice.round, choice.value, choice.last_round, choice.last_value) == (1, 5.0, 2, 3.0)
    assert all(torch.equal(value, after[1][name]) for name, value in training.method.named_parameters())
    assert not torch.equal(weights(training)["network.head.weight"], after[2]["network.head.weight"])


@pytest.mark.usefixtures("scripted")
def test_of_equals_and_by_default_it_is_the_last(toy: Toy) -> None:
    for select in ("dev", "last"):
        training = make_training(toy.task, settings(select=select))
        after = states(training)
        choice = training.return_to_best()
        assert choice.round == choice.last_round == 2
        assert choice.differing == 0
        assert torch.equal(weights(training)["network.head.weight"], after[2]["network.head.weight"])


@pytest.mark.usefixtures("scripted")
def test_warm_up_rounds_are_not_kept(toy: Toy) -> None:
    training = run(make_training(toy.task, settings(can__warmup=2)))
    assert training.return_to_best().round == 2


@pytest.mark.usefixtures("scripted")
def test_what_is_kept_survives_a_checkpoint(toy: Toy, tmp_path: Path) -> None:
    straight = run(make_training(toy.task, settings()))

    class KilledError(Exception):
        pass

    def kill(training: Training, record: Record) -> None:
        save_checkpoint(training, tmp_path)
        if training.state.round == 2:
            raise KilledError

    with pytest.raises(KilledError):
        make_training(toy.task, settings()).run(lambda done, planned: None, kill)
    resumed = make_training(toy.task, settings())
    restore_checkpoint(resumed, checkpoints(tmp_path)[-1])
    assert run(resumed).return_to_best() == straight.return_to_best()
    assert torch.equal(resumed.embed(Side.TARGET).logits, straight.embed(Side.TARGET).logits)


@pytest.mark.usefixtures("scripted")
def test_predictions_and_clusters_are_of_that_round(toy: Toy) -> None:
    adapted = adapt(toy.task, settings())
    shown: list[torch.Tensor] = []
    make_training(toy.task, settings()).run(
        lambda done, planned: None, lambda training, _: shown.append(training.embed(Side.TARGET).logits.argmax(1))
    )
    assert adapted.choice.round == 1
    assert torch.equal(adapted.predictions.labels, shown[1])
    assert adapted.choice.differing == pytest.approx(float((shown[1] != shown[2]).float().mean()))


@pytest.mark.usefixtures("scripted")
def test_the_summary_tells(files: Path, tmp_path: Path) -> None:
    adapted = adapt_files(Job(files / "source.npz", files / "target.npz", settings()), tmp_path / "run")
    told = json.loads((tmp_path / "run/summary.json").read_text())["selection"]
    assert told["score"] == "snd"
    assert (told["round"], told["value"]) == (1, 5.0)
    assert (told["last"]["round"], told["last"]["value"]) == (2, 3.0)
    assert 0 <= told["last"]["differing_predictions"] <= 1
    assert "Kept round 2, the best by snd" in conclude(adapted, tmp_path)
