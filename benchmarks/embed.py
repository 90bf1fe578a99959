"""How closely `candapt embed` reproduces known features of Office-31: `python -m benchmarks.embed`.

Needs `data/office31`, `data/office31-resnet50-features.npz` and `weights/resnet50-imagenet.safetensors` below
`../shared` or the folder that CANDAPT_SHARED names. `--limit N` takes the first N images of each domain.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import record
from candapt.commands import expected_images
from candapt.console import counting
from candapt.data.domains import Domain
from candapt.data.images import ImageSamples, find_images
from candapt.data.transforms import Views
from candapt.frozen import all_rows
from candapt.network.backbones import build_backbone
from candapt.settings import ImageChoice, NetworkSettings

DOMAINS = ("amazon", "dslr", "webcam")


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
            results += [compare(backbone, name, paths, expected, shrink=shrink) for shrink in (True, False)]
    record("embed", {"limit": limit, "domains": results, "all": [overall(results, shrink) for shrink in (True, False)]})


def compare(
    backbone: torch.nn.Module, name: str, paths: list[Path], expected: torch.Tensor, *, shrink: bool
) -> dict[str, Any]:
    """Cosines of one domain's features to the known ones, in the order of their rows."""
    images = replace(expected_images(NetworkSettings("resnet50"), ImageChoice()), shrink=shrink)
    domain = Domain(ImageSamples(paths, Views(images), workers=os.cpu_count() or 1))
    started = time.perf_counter()
    with counting(f"{name} {'shrunk while decoded' if shrink else 'decoded whole'}") as count:
        features = all_rows(backbone, domain, count)
    seconds = time.perf_counter() - started
    cosines = torch.cosine_similarity(features, expected)
    told = {"domain": name, "shrink": shrink, "images": len(paths), "seconds": round(seconds, 1)}
    return told | {"min_cosine": float(cosines.min()), "mean_cosine": float(cosines.mean())}


def overall(results: list[dict[str, Any]], shrink: bool) -> dict[str, Any]:
    """The same over all domains."""
    chosen = [told for told in results if told["shrink"] is shrink]
    images = sum(told["images"] for told in chosen)
    mean = sum(told["mean_cosine"] * told["images"] for told in chosen) / images
    return {
        "shrink": shrink,
        "images": images,
        "min_cosine": min(told["min_cosine"] for told in chosen),
        "mean_cosine": mean,
        "seconds": round(sum(told["seconds"] for told in chosen), 1),
    }


if __name__ == "__main__":
    main()
