"""Office-31 over EfficientNet-Lite0, whose weights come with candapt: `python -m benchmarks.lite`.

Needs `data/office31` below `../shared` or the folder that CANDAPT_SHARED names. The three domains are embedded once, to
a file in the cache folder or where `--features` says; `--size 288 --mirror` makes larger views with mirror images. Then
`benchmarks.suites office31-default` runs over that file and records `suite-office31-lite0`, or with other views `-SIZE`
or `-mirror` behind that name; its flags (`--seeds`, `--jobs`, …) are passed on. `--only-embed` leaves it at the file.

`--command` times the whole command instead: `candapt adapt dslr webcam --out RUN`, from two folders of images to the
report, with an empty cache, in a process of its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import suites
from benchmarks.record import record
from candapt.commands.embed import pretrained_layers
from candapt.console import counting, show_log
from candapt.data.images import labeled_image_domain
from candapt.network.activations import compute_features, default_folder
from candapt.network.build import expected_images
from candapt.network.packaged import LITE
from candapt.settings import ImageChoice, NetworkSettings
from candapt.storage.files import write_atomically

DOMAINS = ("amazon", "dslr", "webcam")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--mirror", action="store_true")
    parser.add_argument("--features", type=Path, help="By default a file in the cache folder.")
    parser.add_argument("--only-embed", action="store_true")
    parser.add_argument("--command", action="store_true")
    options, passed = parser.parse_known_args(arguments)
    if options.command:
        time_command()
        return 0
    show_log()
    views = f"{f'-{options.size}' if options.size != 224 else ''}{'-mirror' if options.mirror else ''}"
    name = f"office31-lite0{views}"
    features = options.features or default_folder() / f"{name}-features.npz"
    if not features.exists():
        embed(features, options.size, mirror=options.mirror)
    if options.only_embed:
        return 0
    return suites.main(["office31-default", "--name", name, "--data", str(features), *passed])


def time_command() -> None:
    """Record the seconds of a run as people start it, by the clock and of the processor."""
    folders = [str(suites.SHARED / "office31" / name) for name in ("dslr", "webcam")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as place:
        run, started = Path(place, "run"), time.perf_counter()
        words = [
            "candapt",
            "adapt",
            *folders,
            "--backbone",
            LITE,
            "--out",
            str(run),
            "--cache",
            str(Path(place, "cache")),
        ]
        subprocess.run([sys.executable, "-m", *words], check=True)
        seconds = time.perf_counter() - started
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times = {"seconds": round(seconds, 1), "processor_seconds": round(used, 1), "training": summary["seconds"]}
    record("lite-command", {"task": "dslr → webcam", **times, "decisions": summary["decisions"]})


def embed(path: Path, size: int, *, mirror: bool) -> None:
    """Write the features of all domains, in half precision, with the keys that the suite reads."""
    network = NetworkSettings(LITE, mirror=mirror)
    layers, images = pretrained_layers(network), expected_images(network, ImageChoice(size=size))
    arrays: dict[str, Any] = {}
    for name in DOMAINS:
        domain, _ = labeled_image_domain(suites.SHARED / "office31" / name, images, workers=os.cpu_count() or 1)
        with counting(name) as count:
            arrays[f"{name}_x"] = compute_features(layers, domain, count).half().numpy()
        arrays[f"{name}_y"] = domain.labels.numpy().astype(np.uint8)
        arrays["classes"] = np.array(domain.classes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


if __name__ == "__main__":
    sys.exit(main())
