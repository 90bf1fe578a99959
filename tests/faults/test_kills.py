"""Runs that are stopped and resumed end as those that nobody disturbed, bit by bit."""

import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.kills import continued, finish, kill_and_resume, outcome, start
from candapt.commands.main import main
from candapt.training.checkpoint import checkpoints
from candapt.training.loop import Training
from tests.images import write_photos, write_weights
from tests.toy import QUICK, Toy

FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]
ALWAYS = ["--checkpoint-minutes", "0"]


class KilledError(BaseException):
    """Ends a process in a test without any of its precautions."""


@pytest.fixture(scope="module")
def data(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def words(data: Path) -> list[object]:
    """A run of two rounds of five steps, with a checkpoint after each step."""
    settled = ["--training.settled", "0", "--target-labels", data / "labels.csv"]
    return ["adapt", data / "source.npz", data / "target.npz", *FLAGS, *settled, *ALWAYS]


@pytest.fixture(scope="module")
def undisturbed(words: list[object], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert main([*map(str, words), "--out", str(out)]) == 0
    return outcome(out)


def stopped_at(step: int, words: list[object], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the step has been made and saved, and die there."""
    one_batch, made = Training.one_batch, 0

    def counted(self: Training, *arguments: Any) -> None:
        nonlocal made
        if made == step:
            raise KilledError
        made += 1
        one_batch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "one_batch", counted)
        with pytest.raises(KilledError):
            main([*map(str, words), "--out", str(out)])


@pytest.mark.parametrize("step", range(10))
def test_killed_at_every_step(
    step: int, words: list[object], undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    stopped_at(step, words, out, monkeypatch)
    assert len(checkpoints(out / "checkpoints")) == min(step, 2)
    assert main(["adapt", "--out", str(out), "--resume"]) == 0
    assert outcome(out) == undisturbed
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 2


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "predictions.csv", "summary.json"])
def test_killed_between_the_last_files(
    name: str, words: list[object], undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, replace = tmp_path / "run", Path.replace

    def killed(self: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise KilledError
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KilledError):
            main([*map(str, words), "--out", str(out)])
    assert not (out / name).exists()
    assert main(["adapt", "--out", str(out), "--resume"]) == 0
    assert outcome(out) == undisturbed


def test_killed_with_sigkill_three_times_in_a_row(words: list[object], tmp_path: Path) -> None:
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    longer = [*words, "--rounds", "3", "--training.steps", "30", "--baseline", "false", "--report", "false"]
    seconds = finish(*longer, "--out", undisturbed)
    kill_and_resume(longer, out, [share * seconds for share in (0.4, 0.6, 0.5)])
    assert outcome(out) == outcome(undisturbed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_tells_how_to_continue(
    number: signal.Signals,
    code: int,
    words: list[object],
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, one_batch, made = tmp_path / "a run", Training.one_batch, 0

    def interrupted(self: Training, *arguments: Any) -> None:
        nonlocal made
        made += 1
        if made == 8:
            os.kill(os.getpid(), number)
        one_batch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "one_batch", interrupted)
        assert main([*map(str, words), "--out", str(out), "--checkpoint-minutes", "60"]) == code
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence == f"candapt: stopped; continue with: candapt adapt --out '{out}' --resume."
    assert [path.name for path in checkpoints(out / "checkpoints")] == [
        "round-0001.safetensors",
        "round-0001-step-000003.safetensors",
    ]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # as it was before
    assert main(["adapt", "--out", str(out), "--resume"]) == 0
    assert outcome(out) == undisturbed


def test_a_signal_that_comes_where_exceptions_are_dropped_is_not_lost(
    words: list[object],
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such as between two rounds, when processes that read batches are forked: the run stops after the next step."""
    out, describe_round = tmp_path / "run", Training.describe_round

    class Dropping:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    def interrupted(self: Training) -> Any:
        if self.state.round == 1 and not self.state.progress.steps:
            Dropping()
        return describe_round(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "describe_round", interrupted)
        assert main([*map(str, words), "--out", str(out), "--checkpoint-minutes", "60"]) == 143
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert "--resume" in printed
    assert checkpoints(out / "checkpoints")[-1].name == "round-0001-step-000001.safetensors"
    assert main(["adapt", "--out", str(out), "--resume"]) == 0
    assert outcome(out) == undisturbed


def test_a_second_signal_stops_at_once(
    words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, one_batch, made = tmp_path / "run", Training.one_batch, 0

    def interrupted(self: Training, *arguments: Any) -> None:
        nonlocal made
        made += 1
        if made == 8:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # handlers run between two operations
            raise AssertionError
        one_batch(self, *arguments)

    monkeypatch.setattr(Training, "one_batch", interrupted)
    assert main([*map(str, words), "--out", str(out), "--checkpoint-minutes", "60"]) == 130
    assert "--resume" in capsys.readouterr().err
    assert [path.name for path in checkpoints(out / "checkpoints")] == ["round-0001.safetensors"]


def test_one_writer_at_a_time(words: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    process = start(*words, "--out", out, "--rounds", "5000")
    try:
        while not (out / "metrics.jsonl").exists():
            assert process.is_alive()
            time.sleep(0.02)
        for more in ([], ["--resume"]):
            assert main([*map(str, words), "--out", str(out), *more]) == 2
            sentence = capsys.readouterr().err.splitlines()[-1]
            assert f"is being written by process {process.pid} on " in sentence
    finally:
        process.kill()
        process.join()
    # The lock of a process that is gone is none.
    assert main([*map(str, words), "--out", str(out), "--resume"]) == 2
    assert "rounds was 5000 and is 2" in capsys.readouterr().err


def wait_for(is_there: Callable[[], bool], process: BaseProcess) -> None:
    """Until something is there that a process makes."""
    while not is_there():
        assert process.is_alive()
        time.sleep(0.002)


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow  # `tests/benchmark/test_runner.py` interrupts benchmarks without a signal, between and within cells
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_benchmark_that_is_killed_ends_the_same(jobs: int, data: Path, tmp_path: Path) -> None:
    """Twice: when its first result is there, and when some more are."""
    with np.load(data / "source.npz") as source, np.load(data / "labeled.npz") as target:
        domains = {"amazon": source, "dslr": target, "webcam": source}
        arrays = {f"{name}_{part}": domain[part] for name, domain in domains.items() for part in "xy"}
        np.savez(tmp_path / "office31.npz", classes=np.array(list("abcd")), **arrays)
    words: list[object] = ["benchmark", "office31", "--data", tmp_path / "office31.npz", "--seeds", "0,1", *FLAGS]
    words += ["--methods", "source-only,can", "--tasks", "A->D,D->W", "--training.settled", "0"]
    finish(*words, "--out", tmp_path / "undisturbed")
    out = tmp_path / "out"
    for stored in (1, 4):
        process = start(*words, "--out", out, "--jobs", jobs)
        wait_for(lambda least=stored: len(list(out.rglob("seed-*.json"))) >= least, process)  # type: ignore[misc]
        kill(process)
    finish(*words, "--out", out, "--jobs", jobs)
    for name in ("results.json", "results.md", "results.tex", "report.html"):
        assert (out / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


@pytest.mark.slow  # `tests/test_cache.py` stops the making without a signal, at a row that it chooses
def test_a_cache_that_is_killed_in_the_making_is_the_same(tmp_path: Path) -> None:
    photos = [write_photos(tmp_path / side, per_class=150, seed=seed) for seed, side in enumerate(("source", "target"))]
    weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
    flags = ["--backbone", "test_resnet", "--weights", weights, "--images.size", "32", "--finetune", "head"]
    flags += ["--network.views", "2"]
    words: list[object] = ["adapt", *photos, *flags, "--rounds", "1", "--training.steps", "2", "--report", "false"]
    finish(*words, "--out", tmp_path / "undisturbed", "--cache", tmp_path / "whole")
    out, cache = tmp_path / "run", tmp_path / "cache"
    for view in ("evaluation", "paper-2"):
        process = start(*continued(words, out), "--cache", cache)
        wait_for(lambda name=view: any(cache.rglob(f"{name}.rows")), process)  # type: ignore[misc]
        kill(process)
    assert any(cache.rglob("*.begun"))
    finish(*continued(words, out), "--cache", cache)
    assert outcome(out) == outcome(tmp_path / "undisturbed")
    made, whole = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (cache, tmp_path / "whole")
    )
    assert made == whole


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_benchmark_says_how_to_go_on(
    number: signal.Signals,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(1)

    monkeypatch.setattr("candapt.commands.benchmark.run_plan", interrupted)
    assert main(["benchmark", "demo", "--resume", "--out", str(tmp_path / "out")]) == code
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence == "candapt: stopped; repeat the command to run the cells that are missing."
