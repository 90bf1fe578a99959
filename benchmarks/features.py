"""amazon → webcam from feature files with the default settings: `python -m benchmarks.features`.

Needs `data/office31-resnet50-features.npz` below `../shared` or the folder that CANDAPT_SHARED names.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import record
from candapt.commands import adapt
from candapt.commands.adapt import AdaptOptions
from candapt.console import show_log
from candapt.presets import make_settings

SEEDS = (0, 1, 2)
METHODS = ("source-only", "can")


def main() -> None:
    show_log()
    runs = [run(method, seed) for method in METHODS for seed in SEEDS]
    record("features", {"task": "Office-31 amazon → webcam, ResNet-50 features", "runs": runs})


def run(method: str, seed: int) -> dict[str, Any]:
    """One run; its accuracy is read from what is marked oracle."""
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    with np.load(shared / "data" / "office31-resnet50-features.npz") as file, tempfile.TemporaryDirectory() as name:
        source, target, out = (Path(name, part) for part in ("amazon.npz", "webcam.npz", "run"))
        for path in (source, target):
            arrays = {part: file[f"{path.stem}_{part}"] for part in "xy"}
            np.savez(path, **arrays, classes=file["classes"])
        settings = make_settings(method, seed=seed)
        adapt.run(AdaptOptions(source, target, settings, target_labels=target, baseline=False, out=out))
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    figures = {key: summary[key] for key in ("rounds", "seconds")}
    return {"method": method, "seed": seed, "accuracy": summary["oracle"]["accuracy"], **figures}


if __name__ == "__main__":
    main()
