"""Commands on several processes: what they write, and what happens when a process ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from candapt.commands.launch import ProcessOptions, launch
from candapt.commands.main import main
from candapt.errors import UserError
from tests.images import write_photos, write_weights

FLAGS = ["--rounds", "3", "--training.steps", "10", "--network.bottleneck", "16", "--report", "false"]
FLAGS += ["--baseline", "false", "--checkpoint-minutes", "0"]


def words(files: Path, out: Path) -> list[str]:
    return ["adapt", str(files / "source.npz"), str(files / "target.npz"), "--out", str(out), *FLAGS]


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "candapt", *map(str, arguments)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def test_machines_need_a_meeting_point() -> None:
    with pytest.raises(UserError, match="--rendezvous"):
        launch("adapt", [], ProcessOptions(nodes=2))
    with pytest.raises(UserError, match="--devices is 9999, but must be at most"):
        launch("adapt", [], ProcessOptions(devices=9999))


@pytest.mark.parametrize("flag", ["--devices", "--nodes"])
@pytest.mark.parametrize(
    "words", [["adapt", "s", "t"], ["embed", "i", "--out", "o"], ["predict", "r", "i", "--out", "o"]]
)
def test_no_process_is_no_number_of_processes(words: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (0, -2):
        assert main([*words, flag, str(number)]) == 2
        assert f"{flag} is {number}, but must be at least 1." in capsys.readouterr().err


@pytest.mark.parametrize("error", [RendezvousConnectionError("refused"), ValueError("no port")])
def test_machines_that_do_not_meet(
    error: Exception, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *_: refused)
    monkeypatch.setenv("CANDAPT_STARTED", "")  # which the command sets, and which must not stay
    assert main([*words(files, files / "out"), "--nodes", "2", "--rendezvous", "nowhere:1"]) == 2
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("candapt:")]
    assert len(printed) == 1
    assert f"did not meet at --rendezvous 'nowhere:1' ({error})" in printed[0]


def test_bad_settings_are_told_before_processes_are_started(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words(files, files / "out"), "--devices", "2", "--method", "cam"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_a_process_tells_of_its_error_unless_one_before_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who started them ends all once one has ended, so that the one that ends first has to tell."""
    waited = list[float]()
    monkeypatch.setattr("time.sleep", waited.append)
    for rank, seconds in ((0, 0), (1, 5), (3, 15), (500, 60)):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert main(["predict", "run"]) == 2
        assert "INPUT is missing" in capsys.readouterr().err
        assert waited.pop() == seconds


def test_a_stopped_command_says_how_to_continue(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that starts the others prints it; they stay silent when it ends them."""

    def stopped(*_: Any) -> Any:
        raise SignalException("stopped", signal.SIGTERM)

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *_: stopped)
    monkeypatch.setenv("CANDAPT_STARTED", "")  # which the command sets, and which must not stay
    assert main([*words(files, files / "out"), "--devices", "2"]) == 128 + signal.SIGTERM
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("candapt:")]
    assert len(printed) == 1
    assert "continue with: candapt adapt --out" in printed[0]
    assert "--resume --devices=2" in printed[0]


@pytest.mark.slow
def test_a_run_and_its_predictions_and_another_number_of_processes(files: Path, tmp_path: Path) -> None:
    assert command(*words(files, tmp_path / "one")).returncode == 0
    both = command(*words(files, tmp_path / "two"), "--devices", "2")
    assert both.returncode == 0, both.stderr
    assert both.stderr.count("Run folder") == 1
    predicted = []
    for count in (1, 2):
        target, out = files / "target.npz", tmp_path / f"{count}.csv"
        assert command("predict", tmp_path / "one", target, "--out", out, "--devices", count).returncode == 0
        predicted.append(out.read_bytes())
    assert predicted[0] == predicted[1]
    (tmp_path / "two" / "summary.json").unlink()
    again = command("adapt", "--out", tmp_path / "two", "--resume")
    assert again.returncode == 0, again.stderr
    assert "started with 2 processes and continues with 1" in again.stderr


@pytest.mark.slow
def test_embedding_gives_the_same_bits(tmp_path: Path) -> None:
    photos, weights = (
        write_photos(tmp_path / "photos", per_class=40),
        write_weights(tmp_path / "w.safetensors", "resnet18"),
    )
    made = []
    for count in (1, 2):
        out = tmp_path / f"{count}.npz"
        network = ["--backbone", "resnet18", "--weights", weights, "--size", 32]
        done = command("embed", photos, *network, "--out", out, "--devices", count)
        assert done.returncode == 0, done.stderr
        made.append(out.read_bytes())
    assert made[0] == made[1]


def worker(out: Path, rank: int) -> int | None:
    """The process with a rank of the command that writes to a folder."""
    for entry in Path("/proc").iterdir():
        try:
            line, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(out).encode() in line and f"\0LOCAL_RANK={rank}\0".encode() in b"\0" + environment:
            return int(entry.name)
    return None


def start_and_kill(line: list[str], out: Path) -> tuple[int, str]:
    """Start a command, kill one of its processes once there are checkpoints, and wait; exit code and errors."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = subprocess.Popen([sys.executable, *line], env=environment, stderr=subprocess.PIPE, text=True)
    while not list(out.glob("checkpoints/round-0001*")):
        assert running.poll() is None
        time.sleep(0.02)
    victim = worker(out, 1)
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    _, errors = running.communicate()
    return running.returncode, errors


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found by /proc")
def test_a_killed_process_ends_the_others_or_is_started_again(files: Path, tmp_path: Path) -> None:
    assert command(*words(files, tmp_path / "whole"), "--devices", "2").returncode == 0
    code, errors = start_and_kill(
        ["-m", "candapt", *words(files, tmp_path / "cut"), "--devices", "2"], tmp_path / "cut"
    )
    printed = [line for line in errors.splitlines() if line.startswith("candapt:")]
    assert code == 2
    assert len(printed) == 1
    assert "was killed (SIGKILL)" in printed[0]
    assert "--resume --devices=2" in printed[0]
    assert "Traceback" not in errors
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    code, errors = start_and_kill([*torchrun, "-m", "candapt", *words(files, tmp_path / "again")], tmp_path / "again")
    assert code == 0, errors
    results = [(tmp_path / name / "predictions.csv").read_bytes() for name in ("whole", "again")]
    assert results[0] == results[1]
