"""How closely `candapt embed` reproduces known features of Office-31: `python -m benchmarks.embed`.

Needs `data/office31`, `data/office31-resnet50-features.npz` and `weights/resnet50-imagenet.safetensors` below
`../shared` or the folder that CANDAPT_SHARED names. `--limit N` takes the first N images of each domain.

Three ways of decoding are compared. By default a JPEG is shrunk while it is decoded only down to twice the size that it
is resized to, which no image of Office-31 is large enough for: each result says how many images were shrunk, and
where that is none it says nothing about shrinking. `eager` shrinks down to the resized size itself, to show its cost.

`--views N` compares larger views with mirror images, `--size 288 --mirror`, with those of the file
`data/office31-resnet50-288-features.npz` instead, over N images of each domain, evenly spaced.

`--speed N` compares how many images a second `candapt embed` takes, from JPEG files, with the bare backbone over the
same images in memory: N images of all domains, evenly spaced, by ResNet-50 and by EfficientNet-Lite0, in turns. In
`ratio_checked` the time in which all files are checked first counts too.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.record import record
from candapt.commands.embed import pretrained_layers
from candapt.console import counting
from candapt.data.decoding import check_images
from candapt.data.domains import Domain
from candapt.data.images import ImageSamples, find_images
from candapt.data.transforms import Views
from candapt.network.activations import CHUNK, compute_features
from candapt.network.build import expected_images
from candapt.settings import ImageChoice, ImageSettings, NetworkSettings

DOMAINS = ("amazon", "dslr", "webcam")
SHARED = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
BACKBONES: tuple[tuple[str, Path | None], ...] = (
    ("resnet50", SHARED / "weights" / "resnet50-imagenet.safetensors"),
    ("efficientnet-lite0", None),
)
REPETITIONS = 5


class EagerSettings(ImageSettings):
    """Shrinks as far as the resized size."""

    @property
    def min_size(self) -> int | None:
        """The resized size itself."""
        return self.resize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--views", type=int, default=None)
    parser.add_argument("--speed", type=int, default=None)
    options = parser.parse_args()
    if options.speed is not None:
        record(
            "embed-speed", {"backbones": [compare_speed(name, weights, options.speed) for name, weights in BACKBONES]}
        )
        return
    if options.views is not None:
        compare_views(options.views)
        return
    results = []
    with np.load(SHARED / "data" / "office31-resnet50-features.npz", allow_pickle=False) as known:
        for name in DOMAINS:
            expected = torch.from_numpy(known[f"{name}_x"]).float()[: options.limit]
            paths = find_images(SHARED / "data" / "office31" / name)[: options.limit]
            results += [compare(layers(), name, paths, expected, decoding) for decoding in decodings()]
    outcomes = [overall(results, name) for name in decodings()]
    record("embed", {"limit": options.limit, "domains": results, "all": outcomes})


def layers(*, mirror: bool = False) -> torch.nn.Module:
    """ResNet-50 as `candapt embed` has it."""
    weights = SHARED / "weights" / "resnet50-imagenet.safetensors"
    return pretrained_layers(NetworkSettings("resnet50", weights, mirror=mirror))


def compare_views(count: int) -> None:
    """Cosines of features of larger views with mirror images to the known ones, of some images of each domain."""
    images = expected_images(NetworkSettings("resnet50"), ImageChoice(size=288))
    backbone, cosines = layers(mirror=True), list[float]()
    with np.load(SHARED / "data" / "office31-resnet50-288-features.npz", allow_pickle=False) as known:
        for name in DOMAINS:
            paths = find_images(SHARED / "data" / "office31" / name)
            rows = torch.linspace(0, len(paths) - 1, count).long().tolist()
            domain = Domain(ImageSamples([paths[row] for row in rows], Views(images), workers=os.cpu_count() or 1))
            with counting(name) as progress:
                features = compute_features(backbone, domain, progress)
            expected = torch.from_numpy(known[f"{name}_x"][rows]).float()
            cosines += torch.cosine_similarity(features, expected).tolist()
    size = {"size": images.size, "resize": images.resize}
    figures = {"images": len(cosines), "min_cosine": min(cosines), "mean_cosine": sum(cosines) / len(cosines)}
    record("embed-views", size | figures)


def compare_speed(name: str, weights: Path | None, count: int) -> dict[str, Any]:
    """Images a second from files and by the bare backbone, and the ratio, each the median of some repetitions."""
    network = NetworkSettings(name, weights)
    backbone, views = pretrained_layers(network).eval(), Views(expected_images(network, ImageChoice()))
    found = [path for domain in DOMAINS for path in find_images(SHARED / "data" / "office31" / domain)]
    paths = [found[row] for row in torch.linspace(0, len(found) - 1, count).long().tolist()]
    domain, workers = Domain(ImageSamples(paths, views, workers=os.cpu_count() or 1)), os.cpu_count() or 1
    convert_conv2d_weight_memory_format(backbone, torch.channels_last)
    images = domain.samples.read(torch.arange(count)).contiguous(memory_format=torch.channels_last)

    def bare() -> None:
        with torch.inference_mode():
            for batch in torch.split(images, CHUNK):
                backbone(batch)

    work: dict[str, Callable[[], object]] = {
        "bare": bare,
        "embed": lambda: compute_features(backbone, domain, lambda done, total: None),
        "check": lambda: check_images(paths, workers=workers),
    }
    for each in work.values():  # the first time also reads files and makes plans
        each()
    seconds = [{key: seconds_of(each) for key, each in work.items()} for _ in range(REPETITIONS)]
    return {
        "backbone": name,
        "images": count,
        "bare_images_per_second": count / statistics.median(row["bare"] for row in seconds),
        "embed_images_per_second": count / statistics.median(row["embed"] for row in seconds),
        "ratio": statistics.median(row["bare"] / row["embed"] for row in seconds),
        "ratio_checked": statistics.median(row["bare"] / (row["embed"] + row["check"]) for row in seconds),
        "repetitions": seconds,
    }


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def decodings() -> dict[str, ImageSettings]:
    """Image settings by what they let the decoder do."""
    default = expected_images(NetworkSettings("resnet50"), ImageChoice())
    return {
        "default": default,
        "whole": replace(default, shrink=False),
        "eager": EagerSettings(default.size, default.resize, default.mean, default.std),
    }


def compare(
    backbone: torch.nn.Module, name: str, paths: list[Path], expected: torch.Tensor, decoding: str
) -> dict[str, Any]:
    """Cosines of one domain's features to the known ones, in the order of their rows."""
    images = decodings()[decoding]
    domain = Domain(ImageSamples(paths, Views(images), workers=os.cpu_count() or 1))
    started = time.perf_counter()
    with counting(f"{name}, decoding {decoding}") as count:
        features = compute_features(backbone, domain, count)
    seconds = time.perf_counter() - started
    cosines = torch.cosine_similarity(features, expected)
    return {
        "domain": name,
        "decoding": decoding,
        "images": len(paths),
        "shrunk": sum(is_shrunk(path, images.min_size) for path in paths),
        "min_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "seconds": round(seconds, 1),
    }


def is_shrunk(path: Path, min_size: int | None) -> bool:
    """Whether the decoder makes an image smaller."""
    with Image.open(path) as image:
        size = image.size
        if min_size is not None:
            image.draft(None, (min_size, min_size))
        return image.size != size


def overall(results: list[dict[str, Any]], decoding: str) -> dict[str, Any]:
    """The same over all domains."""
    chosen = [result for result in results if result["decoding"] == decoding]
    images = sum(result["images"] for result in chosen)
    return {
        "decoding": decoding,
        "images": images,
        "shrunk": sum(result["shrunk"] for result in chosen),
        "min_cosine": min(result["min_cosine"] for result in chosen),
        "mean_cosine": sum(result["mean_cosine"] * result["images"] for result in chosen) / images,
        "seconds": round(sum(result["seconds"] for result in chosen), 1),
    }


if __name__ == "__main__":
    main()
