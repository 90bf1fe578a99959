"""What the reader of a page has: photographs, features, weights, and a finished run. All of it small."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from candapt.benchmark.suites import SUITES
from candapt.commands import demo
from candapt.data import digits
from candapt.network import backbones
from candapt.presets import DEFAULT, PRESETS
from tests.docs.blocks import ROOT
from tests.images import write_photos, write_visda, write_weights
from tests.toy import make_toy

SMALL = "test_resnet"  # takes the place of every ResNet
QUICK = {"rounds": 2, "training.steps": 3, "training.head_rounds": 1, "network.bottleneck": 16}


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make defaults quick, ResNets small, and the demonstration short; no weights are downloaded."""
    x, y = digits.handwritten_digits()
    patch.setattr(digits, "RENDERED", 80)
    patch.setitem(SUITES, "demo", replace(SUITES["demo"], changes={"rounds": 1, "training.steps": 2}))
    for module in (demo, digits):
        patch.setattr(module, "handwritten_digits", lambda: (x[:60], y[:60]))
    patch.setitem(PRESETS, DEFAULT, PRESETS[DEFAULT] | QUICK)
    build, config = backbones._build_model, backbones._timm_config
    patch.setattr(backbones, "_build_model", lambda name, download: build(_small(name), download=False))
    patch.setattr(backbones, "_timm_config", lambda name: _of_size(config(_small(name)), 32))


def _small(name: str) -> str:
    return SMALL if name.startswith("resnet") else name


def _of_size(config: Any, size: int) -> Any:
    return replace(config, input_size=(3, size, size))


def write_world(folder: Path) -> Path:
    """Write the files that pages name."""
    photos = folder / "photos"
    for seed, name in enumerate(("catalogue", "webcam", "new", "labeled")):
        write_photos(photos / name, seed=seed)
    shutil.copy(photos / "new" / "cat" / "0.png", folder / "photo.png")
    write_weights(folder / "resnet50.safetensors", SMALL)
    toy = make_toy(samples=10)
    np.savez(folder / "amazon.npz", x=toy.source_x, y=toy.source_y)
    np.savez(folder / "dslr.npz", x=toy.target_x)
    write_visda(folder / "visda")
    (folder / "configs").mkdir()
    config = yaml.safe_load((ROOT / "configs" / "visda2017.yaml").read_text())
    config |= {"rounds": 1, "images": {"size": 32}, "training": config["training"] | {"steps": 2, "batch_size": 12}}
    (folder / "configs" / "visda2017.yaml").write_text(yaml.safe_dump(config))
    return folder


def provide_runs(text: str, make: Callable[[Path], None]) -> None:
    """Make the runs that a block uses, but neither it nor a block before it makes."""
    words = text.replace("\\\n", " ").replace('"', " ").replace("'", " ").replace("=", " ").split()
    for place, word in enumerate(words):
        is_new = words[place - 1] in ("--out", "out") and "--resume" not in words
        if word.startswith("runs/") and not is_new and not _is_made_before(words[:place], word):
            run = Path(*Path(word.rstrip(",.)/")).parts[:2])
            if not run.exists():
                make(run)


def _is_made_before(words: list[str], run: str) -> bool:
    return any(before in ("--out", "out") and word == run for before, word in itertools.pairwise(words))
