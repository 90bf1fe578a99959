"""Keeping the round that a label-free score selects."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from candapt.adaptation import adapt
from candapt.commands.adapt import AdaptOptions
from candapt.commands.adapt import run as adapt_files
from candapt.data.domains import Side
from candapt.training.checkpoint import checkpoints, restore_checkpoint, save_checkpoint
from candapt.training.loop import Training
from candapt.training.scoring import Scorer
from candapt.training.state import Record
from tests.toy import Hooks, Toy, make_training, quick_settings, run, weights


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Scores of the rounds to come, in place of real ones."""
    values = [1.0, 5.0, 3.0]
    monkeypatch.setattr(
        Scorer, "scores", lambda self: {"score_snd": values[self.training.state.round], "score_dev": 1.0}
    )
    return values


def settings(**changes: Any) -> Any:
    return quick_settings("can", **{"rounds": 3, "training__settled": 0, "select": "snd", **changes})


def states(training: Training) -> list[dict[str, torch.Tensor]]:
    """The method after each round."""
    after: list[dict[str, torch.Tensor]] = []
    training.run([Hooks(on_round=lambda training, record: after.append(weights(training)))])
    return after


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
        make_training(toy.task, settings()).run([Hooks(on_round=kill)])
    resumed = make_training(toy.task, settings())
    restore_checkpoint(resumed, checkpoints(tmp_path)[-1])
    assert run(resumed).return_to_best() == straight.return_to_best()
    assert torch.equal(resumed.outputs.of(Side.TARGET).logits, straight.outputs.of(Side.TARGET).logits)


@pytest.mark.usefixtures("scripted")
def test_predictions_and_clusters_are_of_that_round(toy: Toy) -> None:
    adapted = adapt(toy.task, settings())
    shown: list[torch.Tensor] = []

    def show(training: Training, record: Record) -> None:
        shown.append(training.outputs.of(Side.TARGET).logits.argmax(1))

    make_training(toy.task, settings()).run([Hooks(on_round=show)])
    assert adapted.choice.round == 1
    assert torch.equal(adapted.predictions.labels, shown[1])
    assert adapted.choice.differing == pytest.approx(float((shown[1] != shown[2]).float().mean()))


@pytest.mark.usefixtures("scripted")
def test_the_summary_tells(files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="candapt")
    adapt_files(AdaptOptions(files / "source.npz", files / "target.npz", settings(), out=tmp_path / "run"))
    selection = json.loads((tmp_path / "run/summary.json").read_text())["selection"]
    assert selection["score"] == "snd"
    assert (selection["round"], selection["value"]) == (1, 5.0)
    assert (selection["last"]["round"], selection["last"]["value"]) == (2, 3.0)
    assert 0 <= selection["last"]["differing_predictions"] <= 1
    assert "Kept round 2, the best by snd" in (tmp_path / "run/log.txt").read_text()
