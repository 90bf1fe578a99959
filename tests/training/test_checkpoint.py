"""A training that goes on from a checkpoint ends where one that never stopped does, bit by bit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from candapt.data.domains import Side
from candapt.training.checkpoint import RETAINED, Checkpoints, checkpoints, restore_checkpoint, save_checkpoint
from candapt.training.loop import Training
from tests.toy import Hooks, Toy, make_training, quick_settings, run, timeless, weights


def stop_after(training: Training, rounds: int, folder: Path) -> None:
    """Train, with a checkpoint after each round, and give up in the middle as a killed process would."""

    class KilledError(Exception):
        pass

    def on_round(training: Training, record: object) -> None:
        save_checkpoint(training, folder)
        if training.state.round == rounds:
            raise KilledError

    with pytest.raises(KilledError):
        training.run([Hooks(on_round=on_round)])


@pytest.mark.parametrize("method", ["can", "source-only"])
@pytest.mark.parametrize(("schedule", "optimizer"), [("progress", "sgd"), ("iteration", "sgd"), ("progress", "adam")])
def test_four_rounds_are_two_and_two(toy: Toy, tmp_path: Path, method: str, schedule: str, optimizer: str) -> None:
    changes = {"training__schedule": schedule, "training__optimizer": optimizer}
    settings = quick_settings(method, rounds=4, training__settled=0, **changes)
    straight = run(make_training(toy.task, settings))

    stop_after(make_training(toy.task, settings), 2, tmp_path)
    torch.manual_seed(99)  # another process has another random state
    resumed = make_training(toy.task, settings)
    with torch.no_grad():
        resumed.method.network.head.weight.add_(1)  # whatever it starts from is replaced
    restore_checkpoint(resumed, checkpoints(tmp_path)[-1])
    assert resumed.state.round == 2
    run(resumed)

    expected, ended = weights(straight), weights(resumed)
    assert expected.keys() == ended.keys()
    assert all(torch.equal(expected[name], ended[name]) for name in expected)
    assert timeless(resumed.state.history) == timeless(straight.state.history)
    assert resumed.state.iteration == straight.state.iteration == 20
    for side in Side:
        assert torch.equal(resumed.outputs.of(side).logits, straight.outputs.of(side).logits)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_restored_state_is_the_saved_one(toy: Toy, tmp_path: Path, kind: str) -> None:
    settings = quick_settings(training__settled=0, training__optimizer=kind)
    saved = run(make_training(toy.task, settings))
    path = save_checkpoint(saved, tmp_path)
    restored = make_training(toy.task, settings)
    restore_checkpoint(restored, path)
    assert restored.state.history == saved.state.history  # seconds too
    for name in ("labels", "distances", "centers", "kept"):
        assert torch.equal(getattr(restored.state.clusters, name), getattr(saved.state.clusters, name))
    for name, optimizer in saved.optimizers.items():
        then, now = (each.state_dict()["state"] for each in (optimizer, restored.optimizers[name]))
        assert len(then) > 0
        torch.testing.assert_close(now, then, rtol=0, atol=0)


def test_a_finished_training_has_nothing_left_to_do(toy: Toy, tmp_path: Path) -> None:
    saved = run(make_training(toy.task, quick_settings(training__settled=0)))
    path = save_checkpoint(saved, tmp_path)
    restored = make_training(toy.task, saved.settings)
    restore_checkpoint(restored, path)
    before = weights(restored)
    run(restored)
    assert all(torch.equal(before[name], value) for name, value in weights(restored).items())
    assert len(restored.state.history) == 2


def test_a_settled_training_stays_settled(toy: Toy, tmp_path: Path) -> None:
    settings = quick_settings(rounds=5, training__settled=1.1)
    path = save_checkpoint(run(make_training(toy.task, settings)), tmp_path)
    restored = make_training(toy.task, settings)
    restore_checkpoint(restored, path)
    assert len(run(restored).state.history) == 3


def test_more_rounds_can_be_added(toy: Toy, tmp_path: Path) -> None:
    settings = quick_settings(training__settled=0, training__schedule="iteration", can__start_share=1.0)
    path = save_checkpoint(run(make_training(toy.task, settings)), tmp_path)
    longer = make_training(toy.task, replace(settings, rounds=3))
    restore_checkpoint(longer, path)
    straight = run(make_training(toy.task, replace(settings, rounds=3)))
    assert timeless(run(longer).state.history) == timeless(straight.state.history)


def test_only_the_newest_stay(toy: Toy, tmp_path: Path) -> None:
    training = make_training(toy.task, quick_settings(rounds=4, training__steps=1, training__settled=0))
    (tmp_path / "notes.txt").write_text("not ours")
    training.run([Checkpoints(tmp_path)])
    assert RETAINED == 2
    assert [path.name for path in checkpoints(tmp_path)] == ["round-0003.safetensors", "round-0004.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "notes.txt"
    assert len(list(tmp_path.iterdir())) == 3  # no unfinished file is left


def test_it_is_plain_data(toy: Toy, tmp_path: Path) -> None:
    path = save_checkpoint(run(make_training(toy.task, quick_settings())), tmp_path)
    with safe_open(path, framework="pt") as file:
        state = json.loads(file.metadata()["state"])
    assert {"round", "iteration", "history"} <= state.keys()
