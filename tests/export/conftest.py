"""Finished runs to export: over features, with several heads, and over images."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from candapt.commands.main import main
from candapt.export.exporting import export_run
from tests.images import write_photos, write_weights
from tests.toy import Toy, make_toy
from tests.tracing import trace_once

FLAGS = ["--rounds", "2", "--training.steps", "5", "--training.accelerator", "cpu", "--report", "false"]
SMALL = ["--network.bottleneck", "16", "--can.classes", "2"]


@pytest.fixture(scope="package", autouse=True)
def _traced_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        trace_once(patch)
        yield


@pytest.fixture(scope="session")
def toy() -> Toy:
    """A task with fewer neighbors than a search for them looks for in a large bank."""
    return make_toy(samples=20)


@pytest.fixture(scope="session")
def feature_run(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over feature files by three heads; its confidence comes from neighbors. Tests do not write there."""
    folder = toy.write(tmp_path_factory.mktemp("features"))
    return adapt(folder / "source.npz", folder / "target.npz", folder / "run", "--network.heads", "3", *SMALL)


@pytest.fixture(scope="session")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over photographs by a head on a small timm network with batch norm. Tests do not write there."""
    folder = tmp_path_factory.mktemp("photos")
    for seed, name in enumerate(("source", "target")):
        write_photos(folder / name, per_class=8, seed=seed)
    weights = write_weights(folder / "weights.safetensors", "test_resnet")
    network = ["--network.backbone", "test_resnet", "--network.weights", str(weights), "--images.size", "32"]
    return adapt(folder / "source", folder / "target", folder / "run", *network, *SMALL)


@pytest.fixture(scope="session")
def gray_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over gray images by all of `small-cnn`; its confidence comes from the class. Tests do not write there."""
    folder, random = tmp_path_factory.mktemp("gray"), np.random.default_rng(0)
    for side in ("source", "target"):
        for number in range(24):
            pixels = random.integers(0, 80, size=(20, 20))
            pixels[(slice(6, 14), slice(None)) if number % 2 else (slice(None), slice(6, 14))] += 150
            place = folder / side / ("lies" if number % 2 else "stands")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    network = ["--network.backbone", "small-cnn", "--images.size", "16", "--can.classes", "2"]
    return adapt(folder / "source", folder / "target", folder / "run", *network)


def adapt(source: Path, target: Path, out: Path, *flags: str) -> Path:
    """The folder of a run."""
    assert main(["adapt", str(source), str(target), "--out", str(out), *FLAGS, *flags]) == 0
    logging.getLogger("candapt").handlers.clear()
    return out


@pytest.fixture(scope="session")
def feature_file(feature_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run as an ONNX file. Tests do not write there."""
    return export_run(feature_run, tmp_path_factory.mktemp("onnx") / "model.onnx").path


@pytest.fixture(scope="session")
def photo_file(photo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run as an ONNX file. Tests do not write there."""
    return export_run(photo_run, tmp_path_factory.mktemp("onnx") / "model.onnx").path
