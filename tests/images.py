"""Tiny image folders and backbones for tests that need real files."""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from candapt.data.domains import Task
from candapt.data.images import image_domain, labeled_image_domain
from candapt.data.visda import CLASSES
from candapt.network.backbones import build_backbone
from candapt.settings import ImageSettings

BACKBONES = ("test_resnet", "test_convnext", "test_vit")
"""Small models of the three families: with batch norm, and two without."""
SIZE = ImageSettings(size=32, resize=36)


def write_photos(folder: Path, *, per_class: int = 4, seed: int = 0, side: int = 40) -> Path:
    """Color noise in folders `cat` and `dog`, which differ in brightness."""
    random = np.random.default_rng(seed)
    for index, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = random.integers(0, 128, size=(side, side, 3)) + 127 * index
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def write_visda(root: Path) -> Path:
    """The folders of the VisDA challenge: labeled lists in train and validation, a list of shuffled paths in test."""
    shuffled = random.Random(0)
    for split, suffix in (("train", "png"), ("validation", "jpg"), ("test", "jpg")):
        listed = []
        for number, name in enumerate(CLASSES):
            for index in range(2):
                path = f"trunk0{index}/{number:02}.{suffix}" if split == "test" else f"{name}/{index}.{suffix}"
                pixels = np.random.default_rng(100 * number + index).integers(0, 60, (24, 24, 3)) + 16 * number
                (root / split / path).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(root / split / path)
                listed.append(path if split == "test" else f"{path} {number}")
        shuffled.shuffle(listed)
        (root / split / "image_list.txt").write_text("".join(f"{line}\n" for line in listed))
    return root


def write_weights(path: Path, backbone: str) -> Path:
    """Random weights of a timm model, the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_backbone(backbone, pretrained=False).model
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return path


def photo_task(folder: Path, images: ImageSettings = SIZE) -> Task:
    """Photographs in `folder/source` and others in `folder/target`."""
    source, _ = labeled_image_domain(write_photos(folder / "source"), images)
    target, _ = image_domain(write_photos(folder / "target", seed=1), images)
    return Task(source, target)
