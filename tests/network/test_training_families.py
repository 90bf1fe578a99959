"""Other backbones than the paper's go through `candapt adapt`, and none starts at random behind the user's back."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from safetensors import safe_open

from candapt.commands.main import main
from candapt.network import backbones
from candapt.network.backbones import build_backbone
from tests.predictions import without_confidence

FAMILIES = ["test_convnext", "test_vit", "test_resnet"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, told apart by color."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number in range(12):
        for domain, shift in (("source", 0), ("target", 40)):
            pixels = random.integers(0, 60, (40, 40, 3)) + shift
            pixels[..., number % 2] += 150
            name = f"{'red' if number % 2 == 0 else 'green'}/{number}.png" if domain == "source" else f"{number}.png"
            (folder / domain / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / domain / name)
    return folder


def adapt(photos: Path, out: Path, *more: object) -> int:
    words = ("adapt", photos / "source", photos / "target", "--out", out, "--images.size", 32, "--rounds", 2)
    quick = ("--training.steps", 3, "--training.batch_size", 6, "--network.bottleneck", 16)
    return main([str(word) for word in (*words, *quick, *more)])


@pytest.mark.parametrize("depth", ["all", "head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_training(photos: Path, tmp_path: Path, family: str, depth: str) -> None:
    torch.manual_seed(0)
    made = build_backbone(family, pretrained=False).model.state_dict()
    safetensors.torch.save_file(made, tmp_path / "weights.safetensors")
    network = ("--network.backbone", family, "--network.weights", tmp_path / "weights.safetensors")
    assert adapt(photos, tmp_path / "run", *network, "--network.finetune", depth) == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert all(np.isfinite(record["classification"]) for record in records)

    with safe_open(tmp_path / "run" / "model.safetensors", framework="pt") as file:
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    ends = [(name, key) for name in saved for key in made if name.endswith(f"model.{key}")]
    weights = [(saved[name], made[key]) for name, key in ends if made[key].ndim == 4 or key.endswith("fc1.weight")]
    assert len(weights) > 3
    if depth == "head":
        assert all(map(torch.equal, *zip(*weights, strict=True)))
    else:
        assert any(not torch.equal(trained, before) for trained, before in weights)

    assert main(["predict", *map(str, (tmp_path / "run", photos / "target", "--out", tmp_path / "again.csv"))]) == 0
    assert without_confidence(tmp_path / "again.csv") == without_confidence(tmp_path / "run" / "predictions.csv")


@pytest.mark.parametrize("family", ["resnet50", "test_convnext", "test_vit"])
def test_without_weights_and_network_it_says_how_to_get_them(
    photos: Path, tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backbones, "_hub_answers", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert adapt(photos, tmp_path / "run", "--network.backbone", family) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"weights for {family!r} could not be fetched (there is no network)" in line
    assert "give a weights file by `--network.weights FILE`" in line
    assert not (tmp_path / "run").exists()


def test_weights_of_another_backbone_are_refused(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = build_backbone("test_vit", pretrained=False).model.state_dict()
    safetensors.torch.save_file(made, tmp_path / "weights.safetensors")
    network = ("--network.backbone", "test_convnext", "--network.weights", tmp_path / "weights.safetensors")
    assert adapt(photos, tmp_path / "run", *network) == 2
    assert "are not of 'test_convnext'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
