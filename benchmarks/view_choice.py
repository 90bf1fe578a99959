"""Which views each domain of Office-31 chooses as a labeled source: `python -m benchmarks.view_choice`.

Compares features of 224×224 views with those of 288×288 views with mirror images as `candapt adapt` does, on the labels
of the source alone. Takes the ResNet-50 features of both kinds below `../shared` or the folder that CANDAPT_SHARED
names, and with `--lite PLAIN.npz LARGER.npz` those of EfficientNet-Lite0 that `python -m benchmarks.lite` makes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import record
from benchmarks.suites import SHARED
from candapt.evaluation.view_choice import SURE, compare, sample_rows

PAIR = (SHARED / "office31-resnet50-features.npz", SHARED / "office31-resnet50-288-features.npz")
DOMAINS = ("amazon", "dslr", "webcam")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lite", type=Path, nargs=2, metavar=("PLAIN", "LARGER"))
    lite = parser.parse_args().lite
    files = {"resnet50": PAIR} | ({"efficientnet-lite0": tuple(lite)} if lite else {})
    sources = [choice(backbone, pair[0], pair[1], name) for backbone, pair in files.items() for name in DOMAINS]
    record("view_choice", {"sources": sources, "larger": sum(each["larger"] for each in sources)})


def choice(backbone: str, plain: Path, larger: Path, name: str) -> dict[str, Any]:
    """What one domain prefers."""
    with np.load(plain, allow_pickle=False) as first, np.load(larger, allow_pickle=False) as second:
        labels = torch.from_numpy(first[f"{name}_y"].astype(np.int64))
        rows = sample_rows(labels)
        before, after = (torch.from_numpy(file[f"{name}_x"]).float()[rows] for file in (first, second))
    made = compare(before, after, labels[rows])
    return {
        "backbone": backbone,
        "source": name,
        "images": len(rows),
        "right_plain": made.right[0],
        "right_larger": made.right[1],
        "gain": made.gain,
        "error": made.error,
        "larger": made.gain > SURE * made.error,
    }


if __name__ == "__main__":
    main()
