"""Checkpoints that are damaged or belong elsewhere: never a wrong resume, never a traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from candapt.commands.main import main
from candapt.errors import UserError
from candapt.storage.files import digest, read_tensors
from candapt.training.checkpoint import (
    Checkpoints,
    DamagedError,
    checkpoints,
    read_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from candapt.training.loop import Training
from tests.toy import QUICK, Hooks, Toy, make_training, quick_settings, run, weights

FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]


def half_way(toy: Toy, folder: Path, **changes: object) -> Training:
    """A training in the middle of its second round, with a checkpoint after each of the last steps."""
    training = make_training(toy.task, quick_settings(**{"training__settled": 0, **changes}))
    keeper = Checkpoints(folder, minutes=0)

    def on_step(training: Training, done: int, planned: int) -> None:
        keeper.on_step(training, done, planned)
        if training.state.round == 1 and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.run([Hooks(on_step=on_step)])
    return training


@pytest.fixture(scope="module")
def whole(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A good checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    half_way(toy, folder)
    return checkpoints(folder)[-1].read_bytes()


def header_of(content: bytes) -> int:
    """Where the tensors begin."""
    return 8 + int.from_bytes(content[:8], "little")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "a few bytes": lambda whole: whole[:5],
    "header cut": lambda whole: whole[: header_of(whole) // 2],
    "header only": lambda whole: whole[: header_of(whole)],
    "tensors cut": lambda whole: whole[:-1],
    "one more byte": lambda whole: whole + b"\0",
    "length": lambda whole: b"\xff" + whole[1:],
    "huge length": lambda whole: b"\xff" * 8 + whole[8:],
    "first tensor byte": lambda whole: flipped(whole, header_of(whole)),
    "last tensor byte": lambda whole: flipped(whole, len(whole) - 1),
    "a name": lambda whole: whole.replace(b"method.network.head.weight", b"method.network.head.wfight", 1),
    "a type": lambda whole: whole.replace(b'"dtype":"F32"', b'"dtype":"I32"', 1),
    "the state": lambda whole: whole.replace(b'\\"iteration\\": 8', b'\\"iteration\\": 7', 1),
    "the checksum": lambda whole: whole.replace(b'"sha256":"', b'"sha256":"0', 1),
    "zeros": lambda whole: bytes(len(whole)),
}


def flipped(content: bytes, place: int) -> bytes:
    """The content with one bit changed."""
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_noticed(kind: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "round-0001.safetensors"
    damaged = DAMAGES[kind](whole)
    assert damaged != whole
    path.write_bytes(damaged)
    with pytest.raises(DamagedError):
        read_checkpoint(path)


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_changes_what_is_read(
    place: float, bit: int, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Either the damage is noticed, or it hit something without a meaning, such as a space."""
    path = tmp_path_factory.mktemp("flipped") / "round-0001.safetensors"
    path.write_bytes(whole)
    expected, counters = read_checkpoint(path)
    position = int(place * len(whole))
    path.write_bytes(whole[:position] + bytes([whole[position] ^ (1 << bit)]) + whole[position + 1 :])
    try:
        tensors, again = read_checkpoint(path)
    except DamagedError:
        return
    assert digest(tensors) == digest(expected)
    assert again == counters


class TestFallingBack:
    def test_the_one_before_is_used_and_the_good_ones_stay(
        self, toy: Toy, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        half_way(toy, tmp_path)
        before, newest = checkpoints(tmp_path)
        newest.write_bytes(flipped(newest.read_bytes(), newest.stat().st_size - 1))
        training = make_training(toy.task, quick_settings(training__settled=0))
        keeper = Checkpoints(tmp_path)
        keeper.restore(training)
        assert (training.state.round, training.state.progress.steps) == (1, 2)
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert newest.name in line
        assert "checksum" in line
        keeper.save(training)
        assert checkpoints(tmp_path) == [before]  # the damaged one is gone, the good one written anew
        read_checkpoint(before)

    def test_if_all_are_damaged_the_user_decides(
        self, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data, out = toy.write(tmp_path / "data"), tmp_path / "run"
        words = ["adapt", str(data / "source.npz"), str(data / "target.npz"), "--out", str(out), *FLAGS]
        assert main(words) == 0
        (out / "summary.json").unlink()
        for path in checkpoints(out / "checkpoints"):
            path.write_bytes(b"")
        capsys.readouterr()
        assert main(["adapt", "--out", str(out), "--resume"]) == 2
        printed = capsys.readouterr().err
        assert "Traceback" not in printed
        assert "is whole: remove them" in printed.splitlines()[-1]


class TestFitting:
    """Checkpoints that are whole but of something else."""

    @pytest.mark.parametrize("changes", [{"network__bottleneck": 8}, {"method": "dann"}])
    def test_of_another_training(self, toy: Toy, tmp_path: Path, changes: dict[str, object]) -> None:
        path = save_checkpoint(half_way(toy, tmp_path), tmp_path)
        other = make_training(toy.task, quick_settings(**changes))  # type: ignore[arg-type]
        before = weights(other)
        with pytest.raises(UserError, match="does not fit"):
            restore_checkpoint(other, path)
        assert all(torch.equal(before[name], value) for name, value in weights(other).items())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("optimizer.network.0.momentum_buffer", torch.zeros(3)),
            ("optimizer.network.99.momentum_buffer", torch.zeros(3)),
            ("optimizer.network.x.momentum_buffer", torch.zeros(3)),
            ("optimizer.network.0.other", torch.zeros(3)),
            ("clusters.labels", torch.full((120,), 4)),
            ("clusters.labels", torch.full((120,), -1)),
            ("clusters.kept", torch.zeros(7, dtype=torch.bool)),
            ("clusters.other", torch.zeros(7)),
            ("previous.centers", torch.zeros(4, 3)),
            ("scored.first_neighbors", torch.full((120, 5), 120)),
            ("scored.first_neighbors", torch.full((120, 5), -1)),
            ("scored.first_neighbors", torch.zeros(7, 5, dtype=torch.int64)),
            ("scored.first_neighbors", torch.zeros(120, 5)),
            ("method.network.head.bias", torch.zeros(4, dtype=torch.float64)),
            ("method.more", torch.zeros(1)),
        ],
    )
    def test_tensors_that_do_not_fit(self, toy: Toy, tmp_path: Path, name: str, value: torch.Tensor) -> None:
        path = save_checkpoint(half_way(toy, tmp_path), tmp_path)
        tensors, metadata = read_tensors(path)
        tensors[name] = value
        save_file(tensors, path, metadata={**metadata, "sha256": digest(tensors, metadata["state"])})
        other = make_training(toy.task, quick_settings())
        before = weights(other)
        with pytest.raises(UserError, match="does not fit"):
            restore_checkpoint(other, path)
        assert all(torch.equal(before[key], kept) for key, kept in weights(other).items())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("momentum_buffer", torch.zeros(3)),
            ("step", torch.zeros(3)),
            ("step", torch.tensor(3)),
            ("exp_avg", torch.zeros(3)),
        ],
    )
    def test_what_adam_keeps(self, toy: Toy, tmp_path: Path, name: str, value: torch.Tensor) -> None:
        settings = quick_settings(training__optimizer="adam")
        path = save_checkpoint(run(make_training(toy.task, settings)), tmp_path)
        tensors, metadata = read_tensors(path)
        tensors[f"optimizer.network.0.{name}"] = value
        save_file(tensors, path, metadata={**metadata, "sha256": digest(tensors, metadata["state"])})
        with pytest.raises(UserError, match=f"the optimizer's 0.{name} is"):
            restore_checkpoint(make_training(toy.task, settings), path)

    @pytest.mark.parametrize("missing", ["round", "history", "part", "clustering_steps", "seconds"])
    def test_a_state_that_does_not_fit(self, toy: Toy, tmp_path: Path, missing: str) -> None:
        path = save_checkpoint(half_way(toy, tmp_path), tmp_path)
        tensors, metadata = read_tensors(path)
        state = json.loads(metadata["state"])
        del state[missing]
        text = json.dumps(state)
        save_file(tensors, path, metadata={"state": text, "sha256": digest(tensors, text)})
        with pytest.raises(UserError, match="does not fit"):
            restore_checkpoint(make_training(toy.task, quick_settings()), path)


def test_weights_that_are_no_numbers_are_never_saved(toy: Toy, tmp_path: Path) -> None:
    training = half_way(toy, tmp_path)
    good = {path: path.read_bytes() for path in checkpoints(tmp_path)}
    with torch.no_grad():
        training.method.network.head.bias[0] = torch.nan
    with pytest.raises(UserError, match=r"method\.network\.head\.bias is no longer finite"):
        Checkpoints(tmp_path).save(training)
    assert {path: path.read_bytes() for path in checkpoints(tmp_path)} == good
