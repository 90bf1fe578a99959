"""Resuming a run: only with what it was started with, and one sentence otherwise."""

import errno
import json
import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.kills import outcome
from candapt.commands.main import main
from candapt.errors import UserError
from candapt.storage import provenance
from candapt.storage.folders import LOCK_FILE, LockedError, locked, require_unlocked
from candapt.storage.runs import PROVENANCE
from candapt.training.loop import Training
from tests.toy import QUICK, Toy

FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]


def words(data: Path) -> list[str]:
    return ["adapt", str(data / "source.npz"), str(data / "target.npz"), *FLAGS, "--training.settled", "0"]


def interrupt(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """Leave a run after its seventh step of ten."""
    one_batch, made = Training.one_batch, 0

    def counted(self: Training, *arguments: Any) -> None:
        nonlocal made
        made += 1
        if made == 8:
            raise KeyboardInterrupt
        one_batch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "one_batch", counted)
        assert main([*words(data), *more, "--out", str(out), "--checkpoint-minutes", "0"]) == 130


@pytest.fixture
def begun(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is not complete."""
    interrupt(files, tmp_path / "run", monkeypatch)
    return tmp_path / "run"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused in one sentence."""

    def check(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in arguments]) == 2
        sentence = capsys.readouterr().err
        assert sentence.startswith("candapt: ")
        assert sentence.count("\n") == 1
        return sentence

    return check


class TestSameAgain:
    def test_the_whole_command_may_be_given_again(self, files: Path, begun: Path, tmp_path: Path) -> None:
        assert main([*words(files), "--out", str(begun), "--resume"]) == 0
        assert main([*words(files), "--out", str(tmp_path / "straight")]) == 0
        assert outcome(begun) == outcome(tmp_path / "straight")
        assert not (begun / LOCK_FILE).exists()

    def test_a_complete_run_is_left_alone(
        self, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "run"
        assert main([*words(files), "--out", str(out)]) == 0
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        capsys.readouterr()
        assert main(["adapt", "--out", str(out), "--resume"]) == 0
        assert "is complete" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    def test_the_log_goes_on_and_the_time_adds_up(self, begun: Path) -> None:
        before = (begun / "log.txt").read_text()
        assert main(["adapt", "--out", str(begun), "--resume"]) == 0
        log = (begun / "log.txt").read_text()
        assert log.startswith(before)
        assert "Resuming from round-0001-step-000002.safetensors: 1 rounds and 2 steps done." in log
        records = [json.loads(line) for line in (begun / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((begun / "summary.json").read_text())
        assert summary["seconds"] >= round(sum(record["seconds"] for record in records), 2)

    def test_what_was_half_written_is_removed(self, begun: Path) -> None:
        parts = [begun / "config.yaml.part", begun / "checkpoints" / "round-0009.safetensors.part"]
        for part in parts:
            part.write_text("half")
        assert main(["adapt", "--out", str(begun), "--resume"]) == 0
        assert not any(part.exists() for part in parts)

    def test_a_run_that_was_killed_before_it_began(
        self, files: Path, tmp_path: Path, refused: Callable[..., str]
    ) -> None:
        out = tmp_path / "run"
        (out / "checkpoints").mkdir(parents=True)
        (out / LOCK_FILE).touch()
        (out / "log.txt").touch()
        assert "give SOURCE and TARGET" in refused("adapt", "--out", out, "--resume")
        assert main([*words(files), "--out", str(out), "--resume"]) == 0


class TestRefused:
    def test_no_such_run(self, tmp_path: Path, refused: Callable[..., str]) -> None:
        assert "There is no run" in refused("adapt", "--out", tmp_path / "none", "--resume")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_of_something_else(self, files: Path, refused: Callable[..., str]) -> None:
        assert "holds no run" in refused("adapt", "--out", files, "--resume")
        assert "holds no run" in refused(*words(files), "--out", files, "--resume")

    def test_starting_over_names_the_way_to_go_on(self, files: Path, begun: Path, refused: Callable[..., str]) -> None:
        assert "give --resume to continue" in refused(*words(files), "--out", begun)

    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            (["--seed", "3"], "seed was 0 and is 3"),
            (["--rounds", "5"], "rounds was 2 and is 5"),
            (["--can.weight", "0.7"], "can.weight was 0.3 and is 0.7"),
        ],
    )
    def test_other_settings(self, begun: Path, refused: Callable[..., str], flags: list[str], named: str) -> None:
        before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
        sentence = refused("adapt", "--out", begun, "--resume", *flags)
        assert "was started with something else" in sentence
        assert named in sentence
        assert {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()} == before

    def test_another_preset_and_other_paths(self, files: Path, begun: Path, refused: Callable[..., str]) -> None:
        assert "something else" in refused(*words(files), "--preset", "official", "--out", begun, "--resume")
        shutil.copy(files / "source.npz", files / "copy.npz")
        assert "copy.npz" in refused("adapt", files / "copy.npz", files / "target.npz", "--out", begun, "--resume")

    def test_an_edited_configuration(self, begun: Path, refused: Callable[..., str]) -> None:
        config = yaml.safe_load((begun / "config.yaml").read_text())
        config["training"]["learning_rate"] = 0.5
        (begun / "config.yaml").write_text(yaml.safe_dump(config))
        assert "training.learning_rate was 0.001 and is 0.5" in refused("adapt", "--out", begun, "--resume")

    @pytest.mark.parametrize(("name", "words"), [("source", "data of the source"), ("target", "data of the target")])
    def test_other_data(
        self, files: Path, toy: Toy, begun: Path, refused: Callable[..., str], name: str, words: str
    ) -> None:
        arrays = {"source": {"x": toy.source_x + 1e-6, "y": toy.source_y}, "target": {"x": toy.target_x + 1e-6}}[name]
        np.savez(files / f"{name}.npz", **arrays)
        assert f"the {words} changed" in refused("adapt", "--out", begun, "--resume")
        assert main(["adapt", "--out", str(begun), "--resume", "--force"]) == 0
        assert f"the {words} changed" in (begun / "log.txt").read_text()

    def test_another_version(self, begun: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
        versions = provenance.versions()
        monkeypatch.setattr(provenance, "versions", lambda: versions | {"torch": "9.9"})
        assert f"torch was {versions['torch']} and is 9.9" in refused("adapt", "--out", begun, "--resume")
        monkeypatch.setattr(provenance, "versions", lambda: versions)
        monkeypatch.setattr(provenance, "code_digest", lambda: "other")
        assert "the code of candapt changed" in refused("adapt", "--out", begun, "--resume")

    def test_forced_changes_are_kept(self, begun: Path) -> None:
        assert main(["adapt", "--out", str(begun), "--resume", "--force", "--rounds", "3"]) == 0
        assert yaml.safe_load((begun / "config.yaml").read_text())["rounds"] == 3
        assert len((begun / "metrics.jsonl").read_text().splitlines()) == 3
        assert "rounds was 2 and is 3" in (begun / "log.txt").read_text()

    def test_forced_changes_that_cannot_be(self, begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["adapt", "--out", str(begun), "--resume", "--force", "--network.bottleneck", "8"]) == 2
        assert "does not fit this task and these settings" in capsys.readouterr().err.splitlines()[-1]

    def test_links_lead_nowhere(self, begun: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        (begun / "log.txt").unlink()
        (begun / "log.txt").symlink_to(tmp_path / "mine.txt")
        assert "'log.txt' in" in refused("adapt", "--out", begun, "--resume")
        assert (tmp_path / "mine.txt").read_text() == "mine"

    @pytest.mark.parametrize("content", ["", "[]", "{"])
    def test_a_damaged_origin(self, begun: Path, refused: Callable[..., str], content: str) -> None:
        (begun / PROVENANCE).write_text(content)
        assert "remove it" in refused("adapt", "--out", begun, "--resume")

    def test_a_pace_that_cannot_be(self, files: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
        sentence = refused(*words(files), "--out", tmp_path / "run", "--checkpoint-minutes", "-1")
        assert "--checkpoint-minutes is -1" in sentence


class TestLocks:
    def test_a_second_writer_is_told_who_the_first_is(self, tmp_path: Path) -> None:
        with locked(tmp_path):
            for attempt in (require_unlocked, lambda folder: locked(folder).__enter__()):
                with pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "):
                    attempt(tmp_path)
        assert list(tmp_path.iterdir()) == []
        with locked(tmp_path):
            pass

    def test_a_file_without_a_holder_is_no_lock(self, tmp_path: Path) -> None:
        (tmp_path / LOCK_FILE).write_text("process 1 on elsewhere\n")
        require_unlocked(tmp_path)
        with locked(tmp_path):
            assert f"process {os.getpid()} on" in (tmp_path / LOCK_FILE).read_text()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_a_child_does_not_keep_it(self, tmp_path: Path) -> None:
        """Processes that read batches live on for a moment when their parent is killed."""
        reader, writer = os.pipe()
        with locked(tmp_path):
            child = os.fork()
            if child == 0:
                os.close(writer)
                os.read(reader, 1)  # until the parent closes the pipe
                os._exit(0)
        os.close(reader)
        with locked(tmp_path):
            pass
        os.close(writer)
        os.waitpid(child, 0)

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / LOCK_FILE).symlink_to(tmp_path / "mine.txt")
        with pytest.raises(UserError, match="cannot be written"), locked(tmp_path / "run"):
            pass
        assert (tmp_path / "mine.txt").read_text() == "mine"

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / LOCK_FILE)
        with pytest.raises(UserError, match="cannot be written"), locked(tmp_path):
            pass

    def test_a_folder_that_is_missing_is_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"cannot be written .No such file or directory"), locked(tmp_path / "a/b"):
            pass
        require_unlocked(tmp_path / "a/b")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_it_can_be_waited_for(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "candapt")
        process = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path,))
        process.start()
        while not (tmp_path / LOCK_FILE).is_file() or not (tmp_path / LOCK_FILE).read_text():
            time.sleep(0.01)
        with pytest.raises(LockedError, match=f"is being written by process {process.pid} on "):
            require_unlocked(tmp_path)
        threading.Timer(0.5, process.kill).start()
        with locked(tmp_path, wait=True):
            process.join(60)
            assert process.exitcode == -signal.SIGKILL  # nothing of it is left but the lock of its successor
            assert f"process {os.getpid()} on" in (tmp_path / LOCK_FILE).read_text()
        assert [f"is being written by process {process.pid} on " in text for text in caplog.messages] == [True]
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_vanishes_while_it_is_waited_for(self, tmp_path: Path) -> None:
        folder = tmp_path / "entry"
        folder.mkdir()
        with ThreadPoolExecutor(1) as pool:
            with locked(folder):
                waiting = pool.submit(locked(folder, wait=True).__enter__)
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=0.5)
                shutil.rmtree(folder)
            with pytest.raises(UserError, match="cannot be written"):
                waiting.result(timeout=60)
        assert not folder.exists()

    @pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
    def test_a_file_system_without_locks_is_used_without(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("fcntl.flock", fail)
        (tmp_path / "file").touch()
        with locked(tmp_path):
            require_unlocked(tmp_path)
        assert f"cannot be locked ({os.strerror(number)})" in caplog.text
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_others_may_do_with_it_what_the_umask_allows(self, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            with locked(tmp_path):
                assert (tmp_path / LOCK_FILE).stat().st_mode & 0o777 == 0o640
        finally:
            os.umask(before)


def hold(folder: Path) -> None:
    """Hold a lock until the process is killed."""
    with locked(folder):
        time.sleep(600)
