"""Runs to make pages of: of features whose classes have hostile names, and of small images."""

import logging
from pathlib import Path

import numpy as np
import pytest

from candapt.commands.main import main
from tests.report.shared import FLAGS, HOSTILE
from tests.toy import Toy


@pytest.fixture(scope="session")
def hostile_run(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with true labels; tests do not write there."""
    folder = tmp_path_factory.mktemp("hostile")
    np.savez(folder / "source.npz", x=toy.source_x, y=toy.source_y, classes=HOSTILE)
    np.savez(folder / "target.npz", x=toy.target_x)
    np.savez(folder / "labels.npz", y=toy.target_y, classes=HOSTILE)
    paths = [str(folder / name) for name in ("source.npz", "target.npz")]
    words = ["adapt", *paths, "--out", str(folder / "run"), *FLAGS, "--target-labels", str(folder / "labels.npz")]
    assert main(words) == 0
    logging.getLogger("candapt").handlers.clear()
    return folder / "run"


@pytest.fixture(scope="session")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over small images, without true labels; tests do not write there."""
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    labels = np.arange(40) % 2
    x = random.uniform(0, 0.3, (2, 40, 16, 16)).astype(np.float32)
    x[:, labels == 1, 4:12] += 0.6  # a bar lies, or it stands
    x[:, labels == 0, :, 4:12] += 0.6
    np.savez(folder / "source.npz", x=x[0], y=labels)
    np.savez(folder / "target.npz", x=x[1])
    paths = [str(folder / name) for name in ("source.npz", "target.npz")]
    words = ["--rounds", "2", "--training.steps", "3", "--training.accelerator", "cpu", "--can.classes", "2"]
    assert main(["adapt", *paths, "--out", str(folder / "run"), *words]) == 0
    logging.getLogger("candapt").handlers.clear()
    return folder / "run"
