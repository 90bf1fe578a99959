"""Words that make no sense: each gets one clear sentence and exit code 2, and nothing is made."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from candapt.commands.main import main

QUICK = ["--rounds", "1", "--training.steps", "1", "--training.accelerator", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a little of everything."""
    folder = tmp_path_factory.mktemp("silly")
    random, y = np.random.default_rng(0), np.arange(12) % 2
    np.savez(folder / "s.npz", x=random.normal(size=(12, 6)), y=y)
    np.savez(folder / "t.npz", x=random.normal(size=(12, 6)))
    np.savez(folder / "one.npz", x=np.zeros((1, 6)))
    np.savez(folder / "tiny.npz", x=random.random((12, 4, 4)), y=y)
    np.savez(folder / "wide.npz", x=np.zeros((4, 600_000), np.float32), y=y[:4])
    for name in "ab":
        (folder / "photos" / name).mkdir(parents=True)
        Image.fromarray(random.integers(0, 255, (9, 9), dtype=np.uint8)).save(folder / "photos" / name / "1.png")
    (folder / "empty").mkdir()
    (folder / "text").write_text("text")
    (folder / "empty.yaml").write_text("")
    (folder / "list.txt").write_text(f"photos/a/1.png {'9' * 5000}\nphotos/b/1.png 1\n")
    (folder / "null.txt").write_text("photos/a/\0.png\n")
    return folder


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def refused(words: list[str], capsys: pytest.CaptureFixture[str], place: Path) -> str:
    """The sentence."""
    before = sorted(str(path) for path in place.rglob("*"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    sentence = err.strip().splitlines()[-1]
    assert sentence.startswith("candapt: ")
    assert sentence.isprintable()
    assert out == ""
    assert "Traceback" not in err
    assert sorted(str(path) for path in place.rglob("*")) == before
    return sentence


@pytest.mark.parametrize(
    "line",
    [
        *("nope", "--nope", "-1", "adapt", "adapt s.npz", "adapt --out", "adapt s.npz t.npz --out", "adapt --config"),
        *("adapt s.npz t.npz u --out o", "adapt --config nope.yaml --out o", "adapt --config empty --out o"),
        *("adapt --config empty.yaml --out o", "adapt s.npz t.npz --out s.npz", "adapt s.npz t.npz --out ."),
        *("adapt s.npz t.npz --out /proc/o", "adapt s.npz t.npz --out a\0b", "adapt a\0b t.npz --out o"),
        *("adapt t.npz s.npz --out o", "adapt s.npz one.npz --out o", "adapt empty t.npz --out o"),
        *("adapt photos empty --out o --network.backbone small-cnn", "adapt text t.npz --out o"),
        *("adapt s.npz photos --out o --network.backbone small-cnn", "adapt wide.npz wide.npz --out o"),
        *("adapt tiny.npz tiny.npz --out o --network.backbone small-cnn", "adapt s.npz text --out o"),
        "adapt photos photos --out o --network.backbone small-cnn --images.size 4",
        "adapt photos photos --out o --network.backbone small-cnn --images.size 100000",
        "adapt list.txt list.txt --out o --network.backbone small-cnn",
        "adapt null.txt null.txt --out o --network.backbone small-cnn",
        *("predict", "predict s.npz", "predict empty t.npz --out o.csv", "predict a\0 t.npz --out o.csv"),
        *(f"predict empty t.npz --out {'x' * 300}", "predict empty t.npz u --out o.csv", "predict empty t.npz --out ."),
        *("evaluate", "evaluate empty", "evaluate empty s.npz --out a\0", "evaluate empty s.npz --out ."),
        *("benchmark", "benchmark nope", "benchmark office31"),
        *("benchmark demo --out o --seeds x", "benchmark demo --out o --seeds ,", "benchmark demo --out o --methods ,"),
        *("benchmark demo --out o --tasks x->y", "benchmark demo --out o --jobs 0", "benchmark demo --out s.npz"),
        *("benchmark demo --out photos", "benchmark digits --data photos --out o", "benchmark --out o"),
        *("demo --seed x", "demo --out photos", "demo extra", "cache nope", "embed", "embed nope --out o.npz"),
    ],
)
def test_commands(line: str, capsys: pytest.CaptureFixture[str], place: Path) -> None:
    refused(line.split(" "), capsys, place)


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("seed", "1.5", "whole number"),
        ("rounds", "-3", "at least 1"),
        ("rounds", "1e3", "whole number"),
        ("training.batch_size", "1", "at least 2"),
        ("training.learning_rate", "nan", "a number"),
        ("training.learning_rate", "1e300", "at most 1e+30"),
        ("training.momentum", "-1", "at least 0"),
        ("training.momentum", "2", "at most 1"),
        ("training.weight_decay", "-1", "at least 0"),
        ("training.new_layers", "-5", "at least 0"),
        ("training.workers", "-1", "at least 0"),
        ("training.accelerator", "tpu", "auto or cpu"),
        ("training.precision", "16", "32-true"),
        ("training.precision", "16-mixed", "needs a GPU"),
        ("network.dropout", "2", "at most 1"),
        ("network.dropout", "-1", "at least 0"),
        ("network.bottleneck", "0", "at least 1"),
        ("network.bottleneck", "99999999999", "smaller --network.bottleneck"),
        ("network", "text", "network"),
        ("training", "3", "training"),
        ("can", "3", "can"),
        ("can.weight", "nan", "a number"),
        ("can.classes", "0", "at least 1"),
        ("can.start_share", "5", "at most 1"),
        ("can.clustering_steps", "-1", "at least 0"),
        ("can.divisor", "x", "batch or task"),
        ("target-labels", "nope.csv", "no file"),
        ("target-labels", "empty", "not a plain file"),
        ("target-labels", "text", "columns path and label"),
        ("preset", "x", "default, paper"),
        ("method", "Can", "did you mean 'can'"),
        ("method", "source_only", "did you mean 'source-only'?"),
        ("dann.weight", "1", "is a setting of dann"),
        ("select", "nope", "select"),
        ("checkpoint-minutes", "-1", "at least 0"),
    ],
)
def test_settings(flag: str, value: str, expected: str, capsys: pytest.CaptureFixture[str], place: Path) -> None:
    words = ["adapt", "s.npz", "t.npz", "--out", "o", *QUICK, f"--{flag}", value]
    assert expected in refused(words, capsys, place)


def test_nesterov_without_sgd(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    words = ["adapt", "s.npz", "t.npz", "--out", "o", "--training.nesterov", "true", "--training.optimizer", "adam"]
    assert "training.nesterov is for sgd" in refused(words, capsys, place)


def test_momentum_of_nesterov(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    words = ["adapt", "s.npz", "t.npz", "--out", "o", "--training.nesterov", "true", "--training.momentum", "0"]
    assert "needs a momentum" in refused(words, capsys, place)
