"""How long whole commands take beside their trainings: `python -m benchmarks.commands`.

`candapt adapt amazon.npz webcam.npz`, with the source-only network, maps and page, and `candapt demo`, each in a
process of its own. Elapsed time counts other work on the machine too; processor time does not. Needs
`data/office31-resnet50-features.npz` below `../shared` or the folder that CANDAPT_SHARED names.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import is_recorded, load, record
from benchmarks.suites import FEATURES

COMMANDS = ("adapt", "demo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    content = {"commands": load("commands")["commands"] if is_recorded("commands") else {}}
    for name in parser.parse_args().commands:
        with tempfile.TemporaryDirectory() as folder:
            content["commands"][name] = measured(name, Path(folder))
        record("commands", content)


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Times of a command and of the trainings that its summaries name."""
    out = folder / "out"
    arguments = ["demo", "--out", str(out)] if name == "demo" else ["adapt", *features(folder), "--out", str(out)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "candapt", *arguments], check=True, capture_output=True)
    elapsed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    runs = [out / method for method in ("source-only", "can")] if name == "demo" else [out]
    summaries = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in runs]
    return {
        "elapsed": elapsed,
        "processor": after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
        "training_elapsed": sum(summary["seconds"] for summary in summaries),
    }


def features(folder: Path) -> list[str]:
    """Files of the source, with labels, and of the target, without."""
    paths = [folder / f"{name}.npz" for name in ("amazon", "webcam")]
    with np.load(FEATURES) as file:
        np.savez(paths[0], x=file["amazon_x"], y=file["amazon_y"], classes=file["classes"])
        np.savez(paths[1], x=file["webcam_x"])
    return [str(path) for path in paths]


if __name__ == "__main__":
    main()
