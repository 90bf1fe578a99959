"""Image files that cannot be used, through the command line: each is named, and the user chooses what happens."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from candapt.commands import training
from candapt.commands.main import main
from candapt.data import decoding, images
from tests.data.test_images import png_header, truncated_jpeg
from tests.images import write_weights
from tests.toy import QUICK

SMALL = ["--network.backbone", "small-cnn", "--images.size", "16", "--training.batch_size", "4"]
SMALL += [word for name, value in (QUICK | {"rounds": 1}).items() for word in (f"--{name}", str(value))]


def draw(path: Path, bright: bool, seed: int, shape: tuple[int, ...] = (16, 16)) -> Path:
    """Noise, light on the left or on the right."""
    values = np.random.default_rng(seed).integers(0, 60, shape).astype(np.uint8)
    values[:, : shape[1] // 2] += np.uint8(190 * bright)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A labeled source of two classes, and a target in subfolders that mean nothing."""
    for seed in range(8):
        draw(tmp_path / "source" / ("left" if seed % 2 else "right") / f"{seed}.png", seed % 2 == 1, seed)
        draw(tmp_path / "target" / f"shelf {seed % 3}" / f"{seed}.png", seed % 2 == 1, 100 + seed)
    return tmp_path


@pytest.fixture
def network(photos: Path) -> list[str]:
    """Flags for a tiny ResNet with weights in a file."""
    weights = write_weights(photos / "weights.safetensors", "test_resnet")
    return ["--network.backbone", "test_resnet", "--network.weights", str(weights), "--images.size", "16"]


def adapt(photos: Path, *more: object, code: int = 0) -> Path:
    words = ("adapt", photos / "source", photos / "target", "--out", photos / "run", *SMALL, *more)
    assert main([str(word) for word in words]) == code
    return photos / "run"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def unreadable(path: Path) -> None:
    draw(path, bright=True, seed=0).chmod(0)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "corrupt.jpg": (truncated_jpeg, "cannot be decoded"),
    "empty.jpg": (lambda path: path.write_bytes(b""), "is not an image"),
    "text.jpg": (lambda path: path.write_text("hello"), "is not an image"),
    "bomb.png": (lambda path: path.write_bytes(png_header(50_000, 50_000)), "has more pixels than the limit"),
    "locked.png": (unreadable, "may not be read by this user"),
    "dangling.png": (lambda path: path.symlink_to("nowhere.png"), "does not exist or is a link that leads nowhere"),
}


class TestBrokenFiles:
    @pytest.fixture(params=BROKEN)
    def broken(self, request: pytest.FixtureRequest, photos: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
        """One such file in the source and one in the target; their name and what is wrong with them."""
        name: str = request.param
        make, reason = BROKEN[name]
        for folder in (photos / "source" / "left", photos / "target"):
            make(folder / name)
        if name == "locked.png" and os.access(photos / "target" / name, os.R_OK):  # a user who may read everything
            read = Path.read_bytes

            def refuse(path: Path) -> bytes:
                if path.name == name:
                    raise PermissionError(13, "Permission denied", str(path))
                return read(path)

            monkeypatch.setattr(decoding.Path, "read_bytes", refuse)
        return Path(name), reason

    def test_they_are_named_and_left_out(
        self, photos: Path, broken: tuple[Path, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        name, reason = broken
        out = adapt(photos)
        message = capsys.readouterr().err
        assert message.count(f"{name}' {reason}") == 2
        assert "2 image file(s) cannot be used and are left out: left-out.csv lists them." in message
        listed = table(out / "left-out.csv")
        assert [Path(row["path"]) for row in listed] == [photos / "source/left" / name, photos / "target" / name]
        assert all(row["reason"].startswith(reason) for row in listed)
        data = json.loads((out / "summary.json").read_text())["data"]
        assert (data["source_images"]["broken"], data["target_images"]["broken"]) == (1, 1)
        assert len(table(out / "predictions.csv")) == data["target_images"]["images"] == 8

    def test_strict_refuses_them(
        self, photos: Path, broken: tuple[Path, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        name, reason = broken
        out = adapt(photos, "--strict", code=2)
        message = capsys.readouterr().err
        assert f"{name}' {reason}" in message
        assert message.count("\n") == 1
        assert not out.exists()

    def test_new_images_too(self, photos: Path, broken: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
        name, _ = broken
        out, table_file = adapt(photos), photos / "new.csv"
        predict = ["predict", str(out), str(photos / "target"), "--out", str(table_file)]
        capsys.readouterr()
        assert main([*predict, "--strict"]) == 2
        assert str(name) in capsys.readouterr().err
        assert not table_file.exists()
        assert main(predict) == 0
        assert str(name) in capsys.readouterr().err
        assert len(table(table_file)) == 8

    def test_a_benchmark_and_features_too(
        self, photos: Path, broken: tuple[Path, str], network: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        name, reason = broken
        (photos / "domains").mkdir()
        for domain in ("one", "other"):
            (photos / "domains" / domain).symlink_to(photos / "source")
        suite = ["benchmark", "folders", "--data", str(photos / "domains"), "--methods", "can", *network]
        commands = [
            [*suite, "--out", str(photos / "suite")],
            ["embed", str(photos / "source"), "--out", str(photos / "features.npz"), *network],
        ]
        for words in commands:
            assert main([*words, "--strict"]) == 2
            message = capsys.readouterr().err
            assert f"{name}' {reason}" in message
            assert "left out" not in message
        assert not (photos / "suite").exists()
        assert not (photos / "features.npz").exists()
        assert main(commands[1]) == 0
        assert f"{name}' {reason}" in capsys.readouterr().err


def test_a_wrong_weights_file_is_named_before_any_image_is_read(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(images, "check_images", None)
    weights = ["--network.backbone", "test_resnet", "--network.weights", str(photos / "nowhere.pth")]
    adapt(photos, *weights, code=2)
    suite = ["benchmark", "folders", "--data", str(photos), "--out", str(photos / "suite"), *weights]
    assert main(suite) == 2
    assert [line.count("nowhere.pth") for line in capsys.readouterr().err.splitlines()] == [1, 1]
    assert not (photos / "suite").exists()


class TestClasses:
    def test_a_folder_without_an_image(self, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (photos / "source" / "void").mkdir()
        assert not adapt(photos, "--strict", "true", code=2).exists()
        assert "fill or remove 'void'" in capsys.readouterr().err
        out = adapt(photos)
        assert "without a usable image are left out: 'void'" in capsys.readouterr().err
        assert json.loads((out / "model.json").read_text())["classes"] == ["left", "right"]
        assert "are left out: 'void'" in (out / "log.txt").read_text()
        assert json.loads((out / "summary.json").read_text())["data"]["source_images"]["empty_classes"] == ["void"]
        (row,) = table(out / "left-out.csv")
        assert row["path"].endswith("void")
        assert row["reason"] == "is a class without a usable image"

    def test_subfolders_of_the_target_are_not_labels(self, photos: Path) -> None:
        """A class in the target only is a folder name like any other."""
        before = adapt(photos)
        for number, name in enumerate(("left", "right", "zebra")):
            (photos / "target" / f"shelf {number}").rename(photos / "target" / name)
        before.rename(photos / "before")
        rows, earlier = (table(folder / "predictions.csv") for folder in (adapt(photos), photos / "before"))
        assert [row["label"] for row in rows] == [row["label"] for row in earlier]
        assert {row["path"].split("/")[0] for row in rows} == {"left", "right", "zebra"}

    def test_labels_of_a_class_in_the_target_only(self, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
        labels = photos / "labels.csv"
        labels.write_text("path,label\nshelf 0/0.png,zebra\nshelf 1/1.png,left\nshelf 2/2.png,right\n")
        assert not adapt(photos, "--target-labels", labels, "--strict", code=2).exists()
        assert "'zebra' (1), which the source lacks" in capsys.readouterr().err
        out = adapt(photos, "--target-labels", labels)
        assert "The source lacks 'zebra' (1)" in capsys.readouterr().err
        oracle = json.loads((out / "summary.json").read_text())["oracle"]
        assert (oracle["samples"], oracle["left_out"]) == (2, 6)
        assert "The source lacks 'zebra' (1)" in (out / "log.txt").read_text()

    def test_evaluation_on_a_class_that_the_model_lacks(self, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = adapt(photos)
        for number in range(3):
            draw(photos / "source" / "zebra" / f"{number}.png", bright=True, seed=number)
        capsys.readouterr()
        assert main(["evaluate", str(out), str(photos / "source")]) == 0
        assert "3 of classes that the model does not know: 'zebra' (3)" in capsys.readouterr().out
        assert main(["evaluate", "--strict", str(out), str(photos / "source")]) == 2
        assert "'zebra' (3), which the model does not know" in capsys.readouterr().err


class TestChangesAfterTheCheck:
    """A file that was good and is gone or damaged when it is trained on."""

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize(
        ("damage", "reason"),
        [(Path.unlink, "does not exist"), (lambda path: path.write_text("hello"), "is not an image")],
    )
    def test_one_sentence_names_it(
        self,
        photos: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        damage: Callable[[Path], object],
        reason: str,
        workers: int,
    ) -> None:
        build = training.initial_parts

        def damage_first(*arguments: object) -> object:
            damage(photos / "source" / "left" / "3.png")
            return build(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(training, "initial_parts", damage_first)
        # With running statistics no domain is read whole before the first step, so the loader meets the file.
        adapt(photos, "--training.workers", workers, "--method", "source-only", code=2)
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("candapt: The image ")
        assert f"3.png' {reason}" in last


class TestReport:
    def test_findings_are_shown_and_kept(self, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for seed in range(50):
            draw(photos / "source" / "many" / f"{seed}.png", bright=True, seed=200 + seed, shape=(40, 20, 3))
        (photos / "target" / "copy.png").write_bytes((photos / "source" / "left" / "1.png").read_bytes())
        out = adapt(photos)
        message = capsys.readouterr().err
        for sentence in (
            "Source: 58 samples of 3 classes; target: 9 samples without labels.",
            "Source images: 4 to 50 of each class, median 4; 16×16 to 20×40 pixels, median 20×40; 14% without color.",
            "Target images: all 16×16 pixels; 100% without color.",
            "The classes are unbalanced: 'many' has 50 images, 'left' only 4;",
            "1 image(s) of the target are in the source too, byte for byte: ",
        ):
            assert sentence in message
            assert sentence in (out / "log.txt").read_text(encoding="utf-8")
        assert message.index("Target images") < message.index("can round 1")
        data = json.loads((out / "summary.json").read_text())["data"]
        assert data["source_images"]["classes"] == {"left": 4, "many": 50, "right": 4}
        assert data["source_images"]["imbalance"] == 12.5
        assert data["source_images"]["sizes"] == {"smallest": [16, 16], "median": [20, 40], "largest": [20, 40]}
        assert data["in_both"] == 1
        assert data["in_both_examples"] == [
            [str(photos / "source/left/1.png"), str(photos / "target/copy.png")],
        ]

    def test_balanced_clean_data_take_three_lines(self, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
        adapt(photos)
        message = capsys.readouterr().err
        assert "Source images: 4 of each class; all 16×16 pixels; 100% without color." in message
        assert "unbalanced" not in message
        assert "left out" not in message
        assert "byte for byte" not in message
