"""Runs to serve: of image files, of feature vectors and of small images in an array. Tests do not write there."""

import logging
from pathlib import Path

import numpy as np
import pytest

from candapt.commands.main import main
from candapt.model import Model, load
from tests.images import write_photos, write_weights
from tests.toy import QUICK, Toy

FLAGS = [word for name, value in (QUICK | {"report": False}).items() for word in (f"--{name}", str(value))]

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def adapted(source: Path, target: Path, out: Path, *words: object) -> Path:
    assert main(["adapt", str(source), str(target), "--out", str(out), *FLAGS, *map(str, words)]) == 0
    logging.getLogger("candapt").handlers.clear()
    return out


@pytest.fixture(scope="session")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cats and dogs over a frozen backbone; the model stores source samples. One source file is broken."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder / "source", per_class=12)
    (folder / "source" / "cat" / "1a.png").write_bytes(b"not an image")
    write_photos(folder / "target", per_class=12, seed=1)
    weights = write_weights(folder / "weights.safetensors", "test_resnet")
    words = ("--network.backbone", "test_resnet", "--weights", weights, "--finetune", "head", "--can.classes", 2)
    learning = ("--network.views", 0, "--network.bottleneck", 256, "--rounds", 4, "--training.steps", 15)
    return adapted(folder / "source", folder / "target", folder / "run", *words, *learning)


@pytest.fixture(scope="session")
def tuned_run(photo_run: Path) -> Path:
    """The same with a fine-tuned network, whose model stores no source samples."""
    folder = photo_run.parent
    words = ("--network.backbone", "test_resnet", "--weights", folder / "weights.safetensors", "--finetune", "all")
    small = ("--can.classes", 2, "--images.size", 96)
    return adapted(folder / "source", folder / "target", folder / "tuned", *words, *small)


@pytest.fixture(scope="session")
def vector_run(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over feature files."""
    folder = toy.write(tmp_path_factory.mktemp("vectors"))
    return adapted(folder / "source.npz", folder / "target.npz", folder / "run")


@pytest.fixture(scope="session")
def array_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over small gray images in an array: a bar that lies, or one that stands."""
    folder, random = tmp_path_factory.mktemp("arrays"), np.random.default_rng(0)
    labels = np.arange(40) % 2
    x = random.uniform(0, 3, (2, 40, 16, 16)).astype(np.float32)
    x[:, labels == 1, 4:12] += 6
    x[:, labels == 0, :, 4:12] += 6
    np.savez(folder / "source.npz", x=x[0], y=labels, classes=["standing", "lying"])
    np.savez(folder / "target.npz", x=x[1])
    return adapted(folder / "source.npz", folder / "target.npz", folder / "run", "--can.classes", 2, "--rounds", 4)


@pytest.fixture(scope="session")
def photo_model(photo_run: Path) -> Model:
    return load(photo_run)


@pytest.fixture(scope="session")
def vector_model(vector_run: Path) -> Model:
    return load(vector_run)
