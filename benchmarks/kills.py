"""Runs that are killed with SIGKILL at random moments and resumed: `python -m benchmarks.kills --kills 100`.

Each run is killed once, then resumed to the end and compared with an undisturbed one. Half of the runs are on images of
the demonstration, a tenth of them, half on feature vectors. The first train no source-only network beside and write no
page, so that most kills hit the training itself; the others do both.
"""

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import record
from candapt.commands.main import main as candapt
from candapt.data.digits import enlarge, handwritten_digits, rendered_digits

KINDS = {
    "demo": ["--rounds", "4", "--training.steps", "15", "--baseline", "false", "--report", "false"],
    "features": ["--rounds", "4", "--training.steps", "25", "--training.settled", "0"],
}
"""Flags by the kind of data."""
CHECKPOINT_MINUTES = "0.002"
"""Often enough that kills come before, within and after the writing of checkpoints."""
TIMEOUT = 3600
"""Seconds after which a process counts as hung."""

# A server forks processes that have imported everything, so that kills hit the work and not the import.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        *("candapt.commands.adapt", "candapt.commands.benchmark", "candapt.commands.tune"),
        *("candapt.report", "candapt.report.domain_map", "lightning_fabric", "sklearn.linear_model"),
    ]
)


def start(*words: object) -> BaseProcess:
    """A process with a command of candapt."""
    process = processes.Process(target=_work, args=([str(word) for word in words],))
    process.start()
    return process


def finish(*words: object) -> float:
    """Run a command that must work; returns its seconds."""
    started = time.monotonic()
    process = start(*words)
    process.join(TIMEOUT)
    if process.exitcode != 0:
        process.kill()
        raise RuntimeError(f"{' '.join(map(str, words))} left with {process.exitcode}.")
    return time.monotonic() - started


def kill_and_resume(words: list[object], out: Path, delays: list[float]) -> int:
    """Kill a run after each of the delays, then resume it to the end; returns how many kills hit a living process."""
    hits = 0
    for delay in delays:
        process = start(*continued(words, out))
        process.join(delay)
        hits += process.is_alive()
        process.kill()
        process.join()
    finish(*continued(words, out))
    return hits


def continued(words: list[object], out: Path) -> list[object]:
    """The command to start the run, or to resume it if there is something to resume."""
    return [*words, "--out", out, *(["--resume"] if out.is_dir() else [])]


def outcome(out: Path) -> dict[str, Any]:
    """Everything that a run leaves, except for times."""
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    files = ("model.safetensors", "model.json", "predictions.csv")
    return {name: (out / name).read_bytes() for name in files} | {
        "metrics": [{name: value for name, value in line.items() if name != "seconds"} for line in records]
    }


def write_images(folder: Path) -> None:
    """A tenth of the demonstration's images."""
    x, y = rendered_digits(200, 0)
    np.savez(folder / "rendered.npz", x=enlarge(x), y=y)
    x, _ = handwritten_digits()
    np.savez(folder / "handwritten.npz", x=enlarge(x[::10]))


def write_features(folder: Path) -> None:
    """Two domains of feature vectors: Gaussians, and the same ones moved and stretched."""
    random = np.random.default_rng(0)
    labels = np.arange(600) % 6
    centers = 2 * random.normal(size=(6, 64))
    source, target = (centers[labels] + random.normal(size=(600, 64)) for _ in range(2))
    np.savez(folder / "rendered.npz", x=source, y=labels)
    np.savez(folder / "handwritten.npz", x=target * random.uniform(0.5, 1.5, size=64) + random.normal(size=64))


def measure(kind: str, kills: int, folder: Path, seed: int) -> dict[str, Any]:
    """Kill this many runs of one kind, each once."""
    (folder / "data").mkdir()
    (write_images if kind == "demo" else write_features)(folder / "data")
    data = [folder / "data" / "rendered.npz", folder / "data" / "handwritten.npz"]
    words: list[object] = ["adapt", *data, *KINDS[kind], "--checkpoint-minutes", CHECKPOINT_MINUTES]
    seconds = finish(*words, "--out", folder / "undisturbed")
    expected = outcome(folder / "undisturbed")
    draw, hits, equal, runs = random.Random(seed), 0, 0, 0
    while hits < kills:
        out = folder / str(runs)
        hit = kill_and_resume(words, out, [draw.uniform(0, seconds)])
        same = outcome(out) == expected
        hits, equal, runs = hits + hit, equal + (hit and same), runs + 1
        print(f"{kind}: {hits} kills, {equal} equal", file=sys.stderr)
    return {"kind": kind, "kills": hits, "equal": equal, "seconds_undisturbed": round(seconds, 2)}


def _work(words: list[str]) -> None:
    torch.set_num_threads(1)
    sys.exit(candapt(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    runs = []
    for index, kind in enumerate(KINDS):
        with tempfile.TemporaryDirectory() as name:
            share = (options.kills + 1 - index) // len(KINDS)
            runs.append(measure(kind, share, Path(name), options.seed))
    kills, equal = (sum(row[name] for row in runs) for name in ("kills", "equal"))
    record("kills", {"seed": options.seed, "kills": kills, "equal": equal, "runs": runs})


if __name__ == "__main__":
    main()
