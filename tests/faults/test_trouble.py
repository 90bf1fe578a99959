"""Full disks, vanished files, too little memory: one sentence each, and what was there stays."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.kills import outcome
from candapt.adaptation import adapt
from candapt.commands.main import main
from candapt.data.domains import ArraySamples, LabeledDomain, Side, Task
from candapt.errors import UserError, describe_machine_error
from candapt.storage import files as candapt_files
from candapt.training.checkpoint import checkpoints, read_checkpoint
from candapt.training.loop import Training
from candapt.training.state import Record
from tests.toy import QUICK, Toy, make_training, quick_settings, run, weights

FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]


@pytest.fixture
def words(files: Path) -> list[str]:
    data = [str(files / "source.npz"), str(files / "target.npz")]
    return ["adapt", *data, *FLAGS, "--training.settled", "0", "--checkpoint-minutes", "0", "--report", "false"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class TestFullDisk:
    def test_a_disk_that_fills_up_during_a_checkpoint(
        self, words: list[str], small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = [*words, "--report", "false", "--network.bottleneck", "128"]
        assert main([*words, "--out", str(tmp_path / "undisturbed")]) == 0
        size = checkpoints(tmp_path / "undisturbed" / "checkpoints")[-1].stat().st_size
        filling, out = small_disk / "filling", small_disk / "run"
        filling.write_bytes(bytes((1 << 20) - int(2.5 * size)))  # two checkpoints fit, a third beside them does not
        capsys.readouterr()
        assert main([*words, "--out", str(out)]) == 2
        *_, sentence = capsys.readouterr().err.splitlines()
        assert sentence.startswith("candapt: No space left on device (")
        assert sentence.endswith(f"make room; continue with: candapt adapt --out {out} --resume.")
        good = checkpoints(out / "checkpoints")
        assert good
        for path in good:
            read_checkpoint(path)
        filling.unlink()
        assert main(["adapt", "--out", str(out), "--resume"]) == 0
        assert outcome(out) == outcome(tmp_path / "undisturbed")

    @pytest.mark.parametrize("call", [3, 6, 9, 20])
    def test_wherever_it_is_full(
        self,
        words: list[str],
        tmp_path: Path,
        call: int,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert main([*words, "--out", str(tmp_path / "undisturbed")]) == 0
        calls, out = 0, tmp_path / "run"

        def full(descriptor: int) -> None:
            nonlocal calls
            calls += 1
            if calls >= call:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(candapt_files.os, "fsync", full)
            capsys.readouterr()
            assert main([*words, "--out", str(out)]) == 2
        printed = capsys.readouterr().err
        assert "Traceback" not in printed
        assert printed.splitlines()[-1].startswith("candapt: No space left on device")
        assert main([*words, "--out", str(out), "--resume"]) == 0
        assert outcome(out) == outcome(tmp_path / "undisturbed")


class TestMemory:
    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. "),
        ],
    )
    def test_too_little(
        self,
        error: Exception,
        words: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def hungry(*_: object) -> None:
            raise error

        monkeypatch.setattr(Training, "one_batch", hungry)
        assert main([*words, "--out", str(tmp_path / "run")]) == 2
        sentence = capsys.readouterr().err.splitlines()[-1]
        assert sentence.startswith("candapt: memory ran out: lower --training.batch_size")
        assert sentence.endswith("--resume.")

    def test_really_too_little(self) -> None:
        with pytest.raises(RuntimeError) as error:
            torch.empty(1 << 60)
        assert "memory ran out" in (describe_machine_error(error.value) or "")

    def test_other_errors_are_not_hidden(self) -> None:
        assert describe_machine_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None


class TestFiles:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_an_image_that_vanishes_while_it_is_needed(
        self, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        random = np.random.default_rng(0)
        for name in [
            *(f"source/{kind}/{row}.png" for kind in "ab" for row in range(4)),
            "target/0.png",
            "target/1.png",
        ]:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 255, (16, 16), dtype=np.uint8)).save(path)
        one_round = Training.one_round

        def vanish(self: Training, *arguments: Any) -> Record:
            for side in Side:
                self.outputs.of(side)
            (tmp_path / "source" / "b" / "3.png").unlink()
            return one_round(self, *arguments)

        monkeypatch.setattr(Training, "one_round", vanish)
        flags = ["--network.backbone", "small-cnn", "--images.size", "16", "--training.workers", str(workers)]
        words = ["adapt", str(tmp_path / "source"), str(tmp_path / "target"), "--out", str(tmp_path / "run"), *flags]
        assert main(words) == 2
        printed = capsys.readouterr().err
        assert "Traceback" not in printed
        assert "3.png" in printed.splitlines()[-1]

    def test_other_trouble_in_words(self) -> None:
        assert describe_machine_error(FileNotFoundError(errno.ENOENT, "", "a.npz")) == (
            "No such file or directory ('a.npz'): it has vanished, put it back"
        )
        read_only = OSError(errno.EROFS, "", "/mnt")
        assert describe_machine_error(read_only) == "Read-only file system ('/mnt'): make it writable"
        assert describe_machine_error(OSError("odd")) == "odd: fix that"


class Poisoned(ArraySamples):
    """Samples of which one is NaN whenever it is read for training."""

    def read(self, indices: torch.Tensor, *, seed: int | None = None) -> torch.Tensor:
        x = super().read(indices).clone()
        if seed is not None:
            x[indices == 17] = torch.nan
        return x


class TestNumbers:
    @pytest.fixture
    def poisoned(self, toy: Toy) -> Task:
        source, target = toy.task.source, toy.task.target
        names = tuple(f"images/{row}.png" for row in range(source.size))
        return Task(LabeledDomain(Poisoned(toy.source_x), names, source.labels, source.classes), target)

    def test_a_loss_that_is_no_number_names_the_files(self, poisoned: Task) -> None:
        settings = quick_settings("source-only", training__batch_size=120)
        with pytest.raises(UserError, match=r"round 1, step 1 the loss .*nan.* source 'images/\d+.png'.* and 117 more"):
            adapt(poisoned, settings)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_a_gradient_that_is_no_number_names_the_layer(self, toy: Toy, value: float) -> None:
        training = make_training(toy.task, quick_settings())
        layer = training.method.network.backbone.bottleneck.weight  # type: ignore[union-attr]
        layer.register_hook(lambda gradient: gradient * value)  # type: ignore[union-attr, operator]
        before = weights(training)
        with pytest.raises(UserError, match=r"gradient of network\.backbone\.bottleneck\.weight is no longer finite"):
            run(training)
        parameters = dict(training.method.named_parameters())
        assert all(torch.equal(before[name], parameter) for name, parameter in parameters.items())

    def test_large_but_finite_gradients_are_no_reason_to_stop(self, toy: Toy) -> None:
        training = make_training(toy.task, quick_settings(training__learning_rate=1e-30, training__weight_decay=0))
        training.method.network.head.weight.register_hook(lambda gradient: gradient * 1e30)
        run(training)

    @pytest.mark.parametrize("statistics", ["running", "domain"])
    def test_skipping_leaves_no_trace(self, poisoned: Task, statistics: str) -> None:
        settings = quick_settings(
            "source-only", training__on_nonfinite="skip", training__statistics=statistics, training__settled=0
        )
        training = run(make_training(poisoned, settings))
        skipped = [record.get("skipped_steps", 0) for record in training.state.history]
        assert sum(skipped) in range(1, 10)
        assert training.state.iteration == 10
        assert all(value.isfinite().all() for value in weights(training).values())
        assert all(np.isfinite(list(record.values())).all() for record in training.state.history)

    def test_if_every_step_is_skipped_it_stops(self, poisoned: Task) -> None:
        settings = quick_settings("source-only", training__on_nonfinite="skip", training__batch_size=120)
        with pytest.raises(UserError, match="Every step of round 1 was skipped"):
            adapt(poisoned, settings)

    def test_the_flag(self, words: list[str], tmp_path: Path) -> None:
        assert main([*words, "--out", str(tmp_path / "run"), "--on-nonfinite", "skip"]) == 0
        assert "on_nonfinite: skip" in (tmp_path / "run" / "config.yaml").read_text()

    def test_the_last_good_checkpoint_stays(
        self, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "run"
        assert main([*words, "--out", str(out), "--training.learning_rate", "1e18"]) == 2
        assert "no longer finite" in capsys.readouterr().err.splitlines()[-1]
        for path in checkpoints(out / "checkpoints"):
            read_checkpoint(path)
