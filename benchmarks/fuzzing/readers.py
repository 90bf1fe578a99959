"""Every reader of files that others may have made, with small valid files to start from."""

import io
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml
from PIL import Image
from rich.console import Console

from benchmarks.fuzzing import mutation
from candapt import cli, model
from candapt.adaptation import Adapted, adapt, check_settings
from candapt.data.domains import Domain, Task
from candapt.data.features import labeled_arrays, labeled_feature_domain
from candapt.data.images import image_domain
from candapt.data.inputs import read_target_labels
from candapt.data.transforms import ImageSettings
from candapt.errors import UserError
from candapt.network.backbones import SmallCNN, build_backbone
from candapt.presets import make_settings
from candapt.runs import describe_settings

WIDTH, CLASSES = 6, 3


@dataclass(frozen=True)
class Reader:
    """Something that reads a file."""

    file: str
    """What the changed file is called in the folder."""
    seeds: Callable[[], list[bytes]]
    """Valid files."""
    read: Callable[[Path], object]
    """Reads the file in this folder, and uses what it got as the commands would."""
    mutators: tuple[mutation.Mutator, ...] = (mutation.change_bytes,)
    beside: Callable[[], Mapping[str, bytes]] = dict
    """Files that lie beside it, by name."""


def _samples(seed: int = 0) -> tuple[Any, Any]:
    labels = np.arange(12) % CLASSES
    return np.random.default_rng(seed).normal(size=(12, WIDTH)).astype(np.float32) + labels[:, None], labels


def _bytes_of(save: Callable[[Path], object], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"file{suffix}")
        save(path)
        return path.read_bytes()


# --- images ---


def _image_seeds() -> list[bytes]:
    values = np.random.default_rng(0).integers(0, 256, (9, 7, 4), dtype=np.uint8)
    grey, deep = values[..., 0], values[..., 0].astype(np.uint16) * 257
    pages = [Image.fromarray(values[..., :3]), Image.fromarray(values[..., 1:])]
    turned = Image.Exif()
    turned[0x0112] = 6
    made: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (pages[0], "JPEG", {"exif": turned}),
        (pages[0], "JPEG", {"progressive": True}),
        (pages[0].convert("CMYK"), "JPEG", {}),
        (Image.fromarray(values), "PNG", {}),
        (Image.fromarray(deep), "PNG", {}),
        (Image.fromarray(grey).convert("P"), "PNG", {"transparency": 0}),
        (pages[0], "PNG", {"save_all": True, "append_images": pages[1:]}),
        (pages[0], "PPM", {}),
        (Image.fromarray(grey.astype(np.float32)), "PPM", {}),
        (pages[0], "BMP", {}),
        (pages[0], "WEBP", {"lossless": True}),
        (pages[0], "WEBP", {"save_all": True, "append_images": pages[1:]}),
        (pages[0], "TIFF", {"compression": "tiff_lzw", "save_all": True, "append_images": pages[1:]}),
        (Image.fromarray(grey.astype(np.float32)), "TIFF", {"exif": turned}),
        (Image.fromarray(grey).convert("1"), "TIFF", {"compression": "group4"}),
        (pages[0], "TIFF", {"compression": "jpeg"}),
        (pages[0], "GIF", {"save_all": True, "append_images": pages[1:]}),
    ]
    plain = [b"P3 2 1 255 1 2 3 4 5 6\n", b"P1 3 1 1 0 1\n"]
    return [_image_bytes(image, kind, options) for image, kind, options in made] + plain


def _image_bytes(image: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _read_images(folder: Path) -> None:
    domain, _ = image_domain(folder, ImageSettings(size=8, resize=8))
    domain.samples.read(torch.arange(domain.size), seed=0)


# --- arrays and tables ---


def _feature_seeds() -> list[bytes]:
    x, y = _samples()
    names = np.array(["a", "b", "ç"])
    return [
        _bytes_of(lambda path: np.savez(path, x=x, y=y), ".npz"),
        _bytes_of(lambda path: np.savez(path, x=x, y=y, classes=names), ".npz"),
        _bytes_of(lambda path: np.savez_compressed(path, x=x[:, :, None], y=y.astype(np.uint8)), ".npz"),
    ]


def _read_features(folder: Path) -> None:
    domain = labeled_feature_domain(folder / "f.npz")
    domain.samples.read(torch.arange(min(domain.size, 4)), seed=0)


def _label_seeds() -> list[bytes]:
    rows = "".join(f"{row},{'abc'[row % 3]}\r\n" for row in range(12))
    return [f"path,label\r\n{rows}".encode(), b'\xef\xbb\xbfpath,label,more\n"1","a\nb",x\n2,a\n3\n']


def _predictions_seeds() -> list[bytes]:
    return [_bytes_of(lambda path: _adapted().predictions.write_csv(path, ("a", "b", "c\n\udce9")), ".csv")]


def _read_labels(folder: Path) -> None:
    path = next(path for path in folder.iterdir() if path.name.startswith("labels."))
    read_target_labels(path, Domain(_samples()[0]), (*"abc", *"012"))


# --- tensors ---


@cache
def _adapted() -> Adapted:
    x, y = _samples()
    changes = {"rounds": 1, "training.steps": 1, "network.bottleneck": 4, "training.accelerator": "cpu"}
    return adapt(Task(labeled_arrays(x, y, where="x"), Domain(_samples(1)[0])), make_settings(changes=changes))


@cache
def _model_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _adapted().model.save(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _beside(name: str) -> Callable[[], Mapping[str, bytes]]:
    return lambda: {name: _model_files()[name]}


def _read_model(folder: Path) -> None:
    loaded = model.load(folder)
    if loaded.shape == (WIDTH,):
        predictions = loaded.predict(Domain(_samples()[0]))
        predictions.write_csv(folder / "predictions.csv", loaded.classes)


def _small_network() -> dict[str, torch.Tensor]:
    return {
        name: value.half() if value.is_floating_point() else value for name, value in SmallCNN().state_dict().items()
    }


def _weights_seeds() -> list[bytes]:
    from safetensors.torch import save

    return [save(_small_network(), {"bottleneck_stride": "3x3"})]


def _torch_seeds() -> list[bytes]:
    state = _small_network()
    return [
        _torch_bytes(state, zipped=True),
        _torch_bytes({"state_dict": state}, zipped=False),
    ]


def _torch_bytes(content: Any, *, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def _read_weights(folder: Path) -> None:
    path = next(path for path in folder.iterdir() if path.name.startswith("weights."))
    build_backbone("small-cnn", weights=path)


# --- settings ---


def _config_seeds() -> list[bytes]:
    told = {"source": "a.npz", "target": "b.npz", "target_labels": None, "strict": False, "images": {"size": None}}
    made = [describe_settings(make_settings(method)) for method in ("can", "dann")]
    return [yaml.safe_dump({**told, **settings}).encode() for settings in made]


def _read_config(folder: Path) -> None:
    """All of `candapt adapt --config FILE` up to the reading of the data."""
    words = ["adapt", "--config", str(folder / "c.yaml"), "--out", str(folder / "out")]
    with (
        mock.patch("candapt.commands.adapt", lambda job, out: check_settings(job.settings)),
        mock.patch("candapt.cli.console", Console(file=io.StringIO())),
    ):
        if cli.main(words) != 0:
            raise UserError("refused")


READERS: dict[str, Reader] = {
    "images": Reader("i.png", _image_seeds, _read_images, (mutation.change_bytes, mutation.change_png)),
    "features": Reader(
        "f.npz",
        _feature_seeds,
        _read_features,
        (mutation.change_bytes, mutation.change_archive, mutation.change_array_header),
    ),
    "labels-csv": Reader("labels.csv", _label_seeds, _read_labels),
    "labels-npz": Reader(
        "labels.npz",
        _feature_seeds,
        _read_labels,
        (mutation.change_bytes, mutation.change_archive, mutation.change_array_header),
    ),
    "predictions-csv": Reader("labels.csv", _predictions_seeds, _read_labels),
    "weights-safetensors": Reader(
        "weights.safetensors", _weights_seeds, _read_weights, (mutation.change_bytes, mutation.change_safetensors)
    ),
    "weights-pth": Reader("weights.pth", _torch_seeds, _read_weights, (mutation.change_bytes, mutation.change_archive)),
    "model-safetensors": Reader(
        "model.safetensors",
        lambda: [_model_files()["model.safetensors"]],
        _read_model,
        (mutation.change_bytes, mutation.change_safetensors),
        _beside("model.json"),
    ),
    "model-json": Reader(
        "model.json",
        lambda: [_model_files()["model.json"]],
        _read_model,
        (mutation.change_bytes, mutation.change_json),
        _beside("model.safetensors"),
    ),
    "config": Reader("c.yaml", _config_seeds, _read_config, (mutation.change_bytes, mutation.change_yaml)),
}
"""By name."""
