"""`candapt embed`: features to adapt later without the images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from candapt.commands.main import main
from candapt.data.images import find_images, image_domain
from candapt.network.backbones import build_backbone, input_settings
from candapt.settings import ImageSettings
from tests.images import write_photos, write_weights
from tests.test_cli import FLAGS

Embed = Callable[..., Path]


@pytest.fixture
def embed(tmp_path: Path) -> Embed:
    weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")

    def run(folder: Path, name: str, *more: str) -> Path:
        flags = ["--backbone", "test_resnet", "--weights", str(weights), "--images.size", "32", *more]
        assert main(["embed", str(folder), "--out", str(tmp_path / name), *flags]) == 0
        return tmp_path / name

    return run


def test_features_are_those_of_the_backbone(embed: Embed, tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", per_class=20)
    with np.load(embed(folder, "a.npz"), allow_pickle=False) as file:
        assert sorted(file.files) == ["names", "x"]
        x, names = file["x"], file["names"].tolist()
    assert x.dtype == np.float32
    assert names[:2] == ["cat/0.png", "cat/1.png"]
    expects = input_settings("test_resnet")
    domain, _ = image_domain(folder, ImageSettings.for_input(32, expects.mean, expects.std))
    backbone = build_backbone("test_resnet", weights=tmp_path / "weights.safetensors").eval()
    with torch.no_grad():
        expected = backbone(domain.samples.read(torch.arange(40)))
    torch.testing.assert_close(torch.from_numpy(x), expected, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(x, x.astype(np.float16))  # nothing is rounded


def test_other_views(embed: Embed, tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos")
    with np.load(embed(folder, "a.npz", "--size", "48", "--mirror"), allow_pickle=False) as file:
        made = torch.from_numpy(file["x"])
    expects = input_settings("test_resnet")
    domain, _ = image_domain(folder, ImageSettings(48, 54, expects.mean, expects.std))
    backbone, images = (
        build_backbone("test_resnet", weights=tmp_path / "weights.safetensors").eval(),
        domain.samples.read(torch.arange(8)),
    )
    with torch.no_grad():
        both = [torch.nn.functional.normalize(backbone(each)) for each in (images, images.flip(-1))]
    torch.testing.assert_close(made, torch.nn.functional.normalize(both[0] + both[1]), rtol=1e-4, atol=1e-5)


def test_features_are_ready_to_adapt(embed: Embed, tmp_path: Path) -> None:
    source = embed(write_photos(tmp_path / "source"), "source.npz", "--labeled")
    target = embed(write_photos(tmp_path / "target", seed=1), "target.npz")
    with np.load(source, allow_pickle=False) as file:
        assert file["classes"].tolist() == ["cat", "dog"]
        assert file["y"].tolist() == [0] * 4 + [1] * 4
    assert main(["adapt", str(source), str(target), "--out", str(tmp_path / "run"), *FLAGS]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("photos", "--out", "a.npz", "--backbone", "small-cnn"), "small-cnn was not pretrained"),
        (("photos", "--out", "a.csv"), "must be a file ending in .npz"),
        (("photos", "--out", "a.npz", "--size", "auto"), "give a number, the same for the source and the target"),
        (("photos", "--out", "nowhere/a.npz"), "in a folder that exists"),
        (("photos", "--out", "there.npz"), "exists already"),
        (("there.npz", "--out", "a.npz"), "holds arrays already"),
        (("none", "--out", "a.npz", "--backbone", "test_resnet", "--weights", "w.safetensors"), "does not exist"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", per_class=1)
    write_weights(tmp_path / "w.safetensors", "test_resnet")
    (tmp_path / "there.npz").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    assert main(["embed", *arguments]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_larger_views_of_office31_are_reproduced(shared: Path, tmp_path: Path) -> None:
    """Two images of each domain; `python -m benchmarks.embed` compares more."""
    weights, known = (
        shared / "weights/resnet50-imagenet.safetensors",
        shared / "data/office31-resnet50-288-features.npz",
    )
    arguments = ["--backbone", "resnet50", "--weights", str(weights), "--size", "288", "--mirror"]
    cosines = []
    for name in ("amazon", "dslr", "webcam"):
        paths = find_images(shared / "data/office31" / name)
        chosen, listed = [0, len(paths) // 2], tmp_path / f"{name}.txt"
        listed.write_text("".join(f"{paths[row]}\n" for row in chosen))
        assert main(["embed", str(listed), "--out", str(tmp_path / f"{name}.npz"), *arguments]) == 0
        with np.load(tmp_path / f"{name}.npz") as made, np.load(known, allow_pickle=False) as expected:
            pair = torch.from_numpy(made["x"]), torch.from_numpy(expected[f"{name}_x"][chosen]).float()
        cosines += torch.cosine_similarity(*pair).tolist()
    assert min(cosines) >= 0.999


@pytest.mark.slow
def test_office31_features_are_reproduced(shared: Path, tmp_path: Path) -> None:
    weights, known = shared / "weights/resnet50-imagenet.safetensors", shared / "data/office31-resnet50-features.npz"
    arguments = ["--backbone", "resnet50", "--weights", str(weights), "--labeled"]
    assert main(["embed", str(shared / "data/office31/dslr"), "--out", str(tmp_path / "a.npz"), *arguments]) == 0
    with np.load(tmp_path / "a.npz", allow_pickle=False) as made, np.load(known, allow_pickle=False) as expected:
        pair = torch.from_numpy(made["x"]), torch.from_numpy(expected["dslr_x"]).float()
        assert made["y"].tolist() == expected["dslr_y"].tolist()
    assert torch.cosine_similarity(*pair).min() >= 0.999
