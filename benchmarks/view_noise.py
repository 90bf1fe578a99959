"""How far random views of an image lie apart in ResNet-50 features: `python -m benchmarks.view_noise`.

This gives self-ensembling over feature vectors a noise that is as strong as the views of images would be. It uses no
labels. Needs `data/office31` and `weights/resnet50-imagenet.safetensors` below `../shared` or the folder that
CANDAPT_SHARED names. `--images N` takes N images of each domain, evenly spaced.
"""

import argparse
import os
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.record import record
from candapt.data.images import find_images
from candapt.data.transforms import Views
from candapt.network.backbones import build_backbone
from candapt.settings import Augmentation, ImageSettings

DOMAINS = ("amazon", "dslr", "webcam")
AUGMENTATIONS: tuple[Augmentation, ...] = ("paper", "strong")
VIEWS = 2


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=40)
    count = parser.parse_args().images
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    backbone = build_backbone("resnet50", weights=shared / "weights" / "resnet50-imagenet.safetensors").eval()
    spreads: dict[str, dict[str, float]] = {}
    for domain in DOMAINS:
        paths = find_images(shared / "data" / "office31" / domain)
        chosen = [paths[round(step * (len(paths) - 1) / (count - 1))] for step in range(count)]
        spreads[domain] = {kind: relative_spread(features(backbone, chosen, kind)) for kind in AUGMENTATIONS}
        print(domain, spreads[domain], flush=True)
    means = {kind: sum(each[kind] for each in spreads.values()) / len(DOMAINS) for kind in AUGMENTATIONS}
    record("view_noise", {"images": count, "views": VIEWS, "domains": spreads, "means": means})


@torch.no_grad()
def features(backbone: nn.Module, paths: list[Path], augmentation: Augmentation) -> Tensor:
    """Features of random views of each image, scaled to unit length as the network sees them, (images, views, d)."""
    views, random = Views(ImageSettings(augmentation=augmentation)), torch.Generator().manual_seed(0)
    rows = []
    for path in paths:
        with Image.open(path) as image:
            batch = torch.stack([views.training(image.convert("RGB"), random) for _ in range(VIEWS)])
        rows.append(nn.functional.normalize(backbone(batch), dim=1))
    return torch.stack(rows)


def relative_spread(views: Tensor) -> float:
    """Standard deviation between the views of an image by that between images, the root of the mean square ratio."""
    within = views.var(1).mean(0)  # (d,)
    chance = within / views.shape[1]  # by which the mean of an image's views still varies
    between = (views.mean(1).var(0) - chance).clamp_min(1e-12)
    return float((within.sum() / between.sum()).sqrt())


if __name__ == "__main__":
    main()
