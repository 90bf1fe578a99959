"""How long the page of a run over 3,612 photographs takes and how large it is: `python -m benchmarks.report`.

Needs `data/office31` and `weights/resnet50-imagenet.safetensors` below `../shared` or the folder that CANDAPT_SHARED
names: amazon is the source and webcam the target. Two things are timed: the map of both domains, which the training
leaves, and `candapt report`, which makes the page anew from the run folder, from the start of its process to the end.
The training is short and sees small images, since what the network has learned changes neither.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks.record import record
from candapt.adaptation import Result
from candapt.commands.main import main as candapt
from candapt.report import FILE, domain_map
from candapt.training.loop import Training

FLAGS = {"finetune": "head", "network.views": 0, "images.size": 64, "rounds": 3, "training.steps": 20}
BARS = {"seconds": 60, "megabytes": 8}
"""What a page may take."""


spent: dict[str, dict[str, float]] = {}
"""Seconds by what took them: on the clock, and on a core, which other programs do not lengthen."""


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Add to the time that something takes, in this process and those that it waits for."""
    before, started = os.times(), time.perf_counter()
    yield
    after, times = os.times(), spent.setdefault(name, {"clock": 0.0, "core": 0.0})
    times["clock"] += time.perf_counter() - started
    times["core"] += sum(after[:4]) - sum(before[:4])


class TimedMapper(domain_map.Mapper):
    """Adds up the time that the map takes."""

    def on_start(self, training: Training) -> None:
        """Map before."""
        with timed("map"):
            super().on_start(training)

    def finish(self, result: Result) -> None:
        """Map after."""
        with timed("map"):
            super().finish(result)


def main() -> None:
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(shared, folder)
        run = folder / "run"
        with timed("page"):
            subprocess.run([sys.executable, "-m", "candapt", "report", str(run)], check=True)
        counts = json.loads((run / "summary.json").read_text(encoding="utf-8"))["data"]
        size = (run / FILE).stat().st_size
        pictures = (run / FILE).read_text(encoding="utf-8").count("data:image/jpeg;base64,")
    record(
        "report",
        {
            "task": "Office-31 amazon → webcam, images",
            "images": {side: counts[side] for side in ("source", "target")},
            "seconds": {
                name: {kind: round(value, 1) for kind, value in times.items()} for name, times in spent.items()
            },
            "megabytes": round(size / 1e6, 2),
            "pictures": pictures,
            "bars": BARS,
        },
    )


def train(shared: Path, folder: Path) -> None:
    """Leave a run in `folder/run`."""
    domains = [str(shared / "data" / "office31" / domain / "images") for domain in ("amazon", "webcam")]
    files = {"weights": shared / "weights" / "resnet50-imagenet.safetensors", "cache": folder / "cache"}
    words = [str(word) for flag, value in (files | FLAGS).items() for word in (f"--{flag}", value)]
    with patch.object(domain_map, "Mapper", TimedMapper):
        code = candapt(["adapt", *domains, "--out", str(folder / "run"), *words])
    if code != 0:
        sys.exit(code)


if __name__ == "__main__":
    main()
