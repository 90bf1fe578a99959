"""How closely `candapt embed` reproduces known features of Office-31: `python -m benchmarks.embed`.

Needs `data/office31`, `data/office31-resnet50-features.npz` and `weights/resnet50-imagenet.safetensors` below
`../shared` or the folder that CANDAPT_SHARED names. `--limit N` takes the first N images of each domain.

Three ways of decoding are compared. By default a JPEG is shrunk while it is decoded only down to twice the size that it
is resized to, which no image of Office-31 is large enough for: each result says how many images were shrunk, and
where that is none it says nothing about shrinking. `eager` shrinks down to the resized size itself, to show its cost.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.record import record
from candapt.console import counting
from candapt.data.domains import Domain
from candapt.data.images import ImageSamples, find_images
from candapt.data.transforms import Views
from candapt.network.activations import compute_features
from candapt.network.backbones import build_backbone
from candapt.network.build import expected_images
from candapt.settings import ImageChoice, ImageSettings, NetworkSettings

DOMAINS = ("amazon", "dslr", "webcam")


class EagerSettings(ImageSettings):
    """Shrinks as far as the resized size."""

    @property
    def min_size(self) -> int | None:
        """The resized size itself."""
        return self.resize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=None)
    limit = parser.parse_args().limit
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    backbone = build_backbone("resnet50", weights=shared / "weights" / "resnet50-imagenet.safetensors")
    results = []
    with np.load(shared / "data" / "office31-resnet50-features.npz", allow_pickle=False) as known:
        for name in DOMAINS:
            expected = torch.from_numpy(known[f"{name}_x"]).float()[:limit]
            paths = find_images(shared / "data" / "office31" / name)[:limit]
            results += [compare(backbone, name, paths, expected, decoding) for decoding in decodings()]
    record("embed", {"limit": limit, "domains": results, "all": [overall(results, name) for name in decodings()]})


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
