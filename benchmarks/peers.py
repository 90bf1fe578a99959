"""candapt beside other libraries, in an environment of their own: `python -m benchmarks.peers`.

skada, pytorch-adapt, faiss, scikit-learn and POT are installed into `--environment`, with the torch of
`constraints.txt`; one that is there is used as it is. `benchmarks/peers_worker.py` runs there: all sides get the same
input in turns in one process, their outputs are compared, and times are medians, as ratios. Times are of the processor,
with one thread, so that other work on the machine matters less.

Parts: `mmd` (MMD and joint MMD), `cdd` (the discrepancy against a bare product of the same features), `kmeans`
(spherical k-means) and `adaptation` (amazon → webcam from `data/office31-resnet50-features.npz` below `../shared` or
the folder that CANDAPT_SHARED names: methods of skada and the same ones here, with one head and as many steps).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import domain, unlabeled
from benchmarks.record import is_recorded, load, record
from benchmarks.steps import ONE_HEAD
from candapt.adaptation import adapt
from candapt.data.domains import Task
from candapt.evaluation.metrics import accuracy
from candapt.evaluation.scores import import_libraries
from candapt.presets import make_settings
from candapt.storage.provenance import measured_with

ROOT = Path(__file__).parents[1]
PEERS = ("skada[deep]", "pytorch-adapt", "faiss-cpu", "scikit-learn", "POT")
PARTS = ("mmd", "cdd", "kmeans", "adaptation")
OLD_SETUPTOOLS = "setuptools<81"  # the last ones with `pkg_resources`, which the torchmetrics of pytorch-adapt imports
PINNED = ("torch", "torchvision", "numpy")
STEPS = 1000  # of every adaptation: 20 rounds of 50
METHODS = ("mcc", "dann", "dan", "can")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=ROOT / "runs" / "peers" / "environment")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    python = environment(options.environment)
    before = load("peers") if is_recorded("peers") else {}
    content = {name: before[name] for name in (*PARTS, "made") if name in before}
    for part in options.parts:
        content[part] = in_environment(python, part, options.repetitions)
        if part == "adaptation":
            content[part] = {"steps": STEPS, "peers": content[part], "ours": [own_run(name) for name in METHODS]}
        content["peers"] = in_environment(python, "versions", 0)
        content["made"] = content.get("made", {}) | {part: measured_with()}
        record("peers", content)  # after each part, so that one that fails loses no other


def environment(folder: Path) -> Path:
    """The interpreter of the peers' environment, which is made if it is not there."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
        lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        pins = [line for line in lines if line.partition("==")[0].lower() in PINNED]
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join([*pins, OLD_SETUPTOOLS]), encoding="utf-8")
        # torch first: another package must not bring a version of its own.
        for packages in (("torch", OLD_SETUPTOOLS), PEERS):
            subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, *packages], check=True)
    return python


def in_environment(python: Path, part: str, repetitions: int) -> Any:
    """What the worker measures for one part."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        arguments: list[str | Path] = [python, "-m", "benchmarks.peers_worker", part, str(repetitions), str(STEPS), out]
        subprocess.run(arguments, check=True, env=variables, cwd=ROOT)
        return json.loads(out.read_text(encoding="utf-8"))


def own_run(method: str) -> dict[str, Any]:
    """Accuracy and processor time of a method of ours, with one head and without looking at proportions."""
    torch.set_num_threads(1)
    import_libraries()
    changes = {name: value for name, value in ONE_HEAD.items() if method == "can" or not name.startswith("can.")} | {
        "training.score_every": 20
    }
    source, target = domain("office31", "amazon"), domain("office31", "webcam")
    started = time.process_time()
    labels = adapt(Task(source, unlabeled(target)), make_settings(method, changes=changes)).predictions.labels
    seconds = time.process_time() - started
    print(method, seconds, file=sys.stderr, flush=True)
    return {"method": method, "seconds": seconds, "oracle_accuracy": accuracy(target.labels, labels)}


if __name__ == "__main__":
    main()
