"""Going on with a run: only with what it was started with, and said in one sentence otherwise."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.kills import outcome
from candapt import origin
from candapt.cli import main
from candapt.errors import UserError
from candapt.locks import NAME, locked, refuse_if_locked
from candapt.runs import ORIGIN
from candapt.training.loop import Training
from tests.toy import QUICK, Toy

FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]


def words(data: Path) -> list[str]:
    return ["adapt", str(data / "source.npz"), str(data / "target.npz"), *FLAGS, "--training.settled", "0"]


def interrupt(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a run after its seventh step of ten."""
    one_batch, made = Training.one_batch, 0

    def counted(self: Training, *arguments: Any) -> dict[str, float]:
        nonlocal made
        made += 1
        if made == 8:
            raise KeyboardInterrupt
        return one_batch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "one_batch", counted)
        assert main([*words(data), "--out", str(out), "--checkpoint-minutes", "0"]) == 130


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
        told = capsys.readouterr().err
        assert told.startswith("candapt: ")
        assert told.count("\n") == 1
        return told

    return check


class TestSameAgain:
    def test_the_whole_command_may_be_given_again(self, files: Path, begun: Path, tmp_path: Path) -> None:
        assert main([*words(files), "--out", str(begun), "--resume"]) == 0
        assert main([*words(files), "--out", str(tmp_path / "straight")]) == 0
        assert outcome(begun) == outcome(tmp_path / "straight")
        assert not (begun / NAME).exists()

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
        assert "Going on from round-0001-step-000002.safetensors: 1 rounds and 2 steps done." in log
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
        (out / NAME).touch()
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
        assert "give --resume to go on" in refused(*words(files), "--out", begun)

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
        told = refused("adapt", "--out", begun, "--resume", *flags)
        assert "was started with something else" in told
        assert named in told
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
        versions = origin.versions()
        monkeypatch.setattr(origin, "versions", lambda: versions | {"torch": "9.9"})
        assert f"torch was {versions['torch']} and is 9.9" in refused("adapt", "--out", begun, "--resume")
        monkeypatch.setattr(origin, "versions", lambda: versions)
        monkeypatch.setattr(origin, "code_digest", lambda: "other")
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
        (begun / ORIGIN).write_text(content)
        assert "remove it" in refused("adapt", "--out", begun, "--resume")

    def test_a_pace_that_cannot_be(self, files: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
        told = refused(*words(files), "--out", tmp_path / "run", "--checkpoint-minutes", "-1")
        assert "--checkpoint-minutes is -1" in told


class TestLocks:
    def test_a_second_writer_is_told_who_the_first_is(self, tmp_path: Path) -> None:
        with locked(tmp_path):
            for attempt in (refuse_if_locked, lambda folder: locked(folder).__enter__()):
                with pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "):
                    attempt(tmp_path)
        assert list(tmp_path.iterdir()) == []
        with locked(tmp_path):
            pass

    def test_a_file_without_a_holder_is_no_lock(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_text("process 1 on elsewhere\n")
        refuse_if_locked(tmp_path)
        with locked(tmp_path):
            assert f"process {os.getpid()} on" in (tmp_path / NAME).read_text()

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
        (tmp_path / "run" / NAME).symlink_to(tmp_path / "mine.txt")
        with pytest.raises(UserError, match="cannot be written"), locked(tmp_path / "run"):
            pass
        assert (tmp_path / "mine.txt").read_text() == "mine"
