"""What more processes, samples and classes cost: `python -m benchmarks.scaling PART…`; see docs/scaling.md.

Parts: `stream` (a k-means step over a file larger than its memory), `clustering` (labels by several processes), `adapt`
(memory of a whole run), `office` (amazon → webcam by one and by two processes) and `step` (times for the cost model).
Each part is stored in `results/scaling.json` by itself, with what it was measured with. The machine may be busy: times
are processor times, and ratios come from one process.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.processes import in_processes
from benchmarks.record import is_recorded, load, record
from candapt import processes
from candapt.adaptation import build_method, initial_parts
from candapt.clustering import CHUNK_SIZE, Clusters, _Samples, class_centers, spherical_kmeans
from candapt.data.domains import ArraySamples, Domain, Task
from candapt.data.features import labeled_arrays
from candapt.data.stored import StoredRows, large_rows
from candapt.presets import make_settings
from candapt.storage.provenance import measured_with
from candapt.training.batches import make_fabric, read_batches
from candapt.training.loop import Training

SHARED = Path(__file__).parents[2] / "shared"
SIZES, WIDTH, CLASSES = (250_000, 500_000, 1_000_000), 2048, 345
NAME = "scaling"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "stream-one"])
    parser.add_argument("--file", type=Path, help="features for stream-one")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of the trainings")
    options = parser.parse_args()
    if options.parts == ["stream-one"]:
        print(json.dumps(stream_one(options.file)))
        return
    torch.set_num_threads(1)
    for part in options.parts:
        made = {**PARTS[part](options.rounds), "measured_with": measured_with()}
        print(json.dumps(made, indent=2))
        stored = load(NAME)["parts"] if is_recorded(NAME) else {}
        stored[part] = made
        record(NAME, {"parts": stored, "measured_with": [each["measured_with"] for each in stored.values()]})


def write_made(path: Path, count: int, width: int, classes: int, *, labeled: bool = False, seed: int = 0) -> None:
    """An `.npz` file with made features in half precision, in blocks that repeat with other lengths."""
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(classes, width)).astype(np.float32)
    labels = np.arange(count) % classes
    noise = random.normal(size=(2 * CHUNK_SIZE, width)).astype(np.float32)
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            shape = (count, width)
            np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
            for start in range(0, count, CHUNK_SIZE):
                own = labels[start : start + CHUNK_SIZE]
                shift = int(random.integers(CHUNK_SIZE))
                values = centers[own] + (1 + seed) * noise[shift : shift + len(own)]
                file.write(values.astype(np.float16).tobytes())
        if labeled:
            with archive.open("y.npy", "w") as file:
                np.lib.format.write_array(file, labels)


def stream(_: int) -> dict[str, Any]:
    """One k-means step against the bare product over the same files, each in a process of its own."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for count in SIZES:
            path = Path(folder) / "made.npz"
            write_made(path, count, WIDTH, CLASSES)
            command = [sys.executable, "-m", "benchmarks.scaling", "stream-one", "--file", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout))
            print(results[-1], flush=True)
    return {"sizes": results, "width": WIDTH, "classes": CLASSES}


def stream_one(path: Path) -> dict[str, Any]:
    """Processor seconds of a step and of the bare product in turn, a part of the file at a time, and peak memory."""
    torch.set_num_threads(1)
    rows = large_rows(path, 0)
    assert rows is not None
    centers = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    seconds = {"step": 0.0, "bare": 0.0}
    part = rows.shape[0] // 4  # in turn, so that a busy machine slows both alike
    for first in range(0, rows.shape[0], part):
        own = replace(rows, offset=rows.offset + first * 2 * WIDTH, shape=(min(part, rows.shape[0] - first), WIDTH))
        for name, work in (("step", step_over), ("bare", product_over)):
            started = time.process_time()
            work(own, centers)
            seconds[name] += time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"samples": rows.shape[0], **seconds, "ratio": seconds["step"] / seconds["bare"], "peak_gib": peak}


def step_over(rows: StoredRows, centers: Tensor) -> Tensor:
    """The sums that one update of the centers needs."""
    return _Samples(rows, centers, CHUNK_SIZE).sums(centers, None, True)


def product_over(rows: StoredRows, centers: Tensor) -> None:
    """Read in the same chunks, convert alike, multiply."""
    directions = torch.nn.functional.normalize(centers)
    for start in range(0, rows.shape[0], CHUNK_SIZE):
        _ = directions @ torch.from_numpy(rows[start : start + CHUNK_SIZE]).float().T


def clustering(_: int) -> dict[str, Any]:
    """Whether labels by two and four processes are those of one, on Office-31 features and on made ones."""
    results = {}
    for name, (features, centers) in {"office31": office_features(), "made": made_features()}.items():
        started = time.process_time()
        alone = spherical_kmeans(features, centers, tolerance=0, max_steps=5)
        seconds = time.process_time() - started
        equal = {}
        for count in (2, 4):
            found = in_processes(count, shared_labels, features, centers)
            equal[str(count)] = all(torch.equal(labels, alone.labels) for labels in found)
        results[name] = {"shape": list(features.shape), "classes": len(centers), "seconds": seconds, "equal": equal}
    return results


def shared_labels(features: Tensor, centers: Tensor) -> Tensor:
    torch.set_num_threads(1)
    make_fabric(make_settings("can").training)
    blocks = [min(CHUNK_SIZE, len(features) - start) for start in range(0, len(features), CHUNK_SIZE)]
    if len(blocks) < 4 * processes.count():  # few samples: then a part of them need not be whole chunks
        blocks = [1] * len(features)
    share = processes.share_of(blocks)
    own = spherical_kmeans(features[share.rows], centers, tolerance=0, max_steps=5, reduce=processes.summed)
    return processes.joined(own.labels, share)


def office_features() -> tuple[Tensor, Tensor]:
    with np.load(SHARED / "data" / "office31-resnet50-features.npz") as file:
        source, target = (torch.tensor(file[f"{name}_x"]).float() for name in ("amazon", "webcam"))
        labels = torch.tensor(file["amazon_y"].astype(np.int64))
    return target, class_centers(source, labels, 31)


def made_features() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(100, 256, generator=random)
    features = torch.randn(500_000, 256, generator=random)
    features += centers[torch.arange(500_000) % 100]
    return features, centers + torch.randn(100, 256, generator=random)


def adapt(rounds: int) -> dict[str, Any]:
    """Peak memory of `candapt adapt --method can` over 300,000 target samples of 100 classes."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.npz", Path(folder) / "target.npz"
        write_made(source, 30_000, 512, 100, labeled=True)
        write_made(target, 300_000, 512, 100, seed=1)
        words = ["adapt", source, target, "--method", "can", "--rounds", rounds, "--out", Path(folder) / "run"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([sys.executable, "-m", "candapt", *map(str, words)], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss / 2**20
    return {"source": 30_000, "target": 300_000, "rounds": rounds, "peak_gib": peak, "seconds": used.ru_utime - before}


def office(rounds: int) -> dict[str, Any]:
    """Accuracy on amazon → webcam features by one and by two processes, three seeds."""
    accuracies: dict[str, list[float]] = {"1": [], "2": []}
    with tempfile.TemporaryDirectory() as folder, np.load(SHARED / "data" / "office31-resnet50-features.npz") as file:
        root = Path(folder)
        np.savez(root / "source.npz", x=file["amazon_x"], y=file["amazon_y"].astype(np.int64))
        np.savez(root / "target.npz", x=file["webcam_x"])
        np.savez(root / "labels.npz", y=file["webcam_y"].astype(np.int64))
        for seed in range(3):
            for count, found in accuracies.items():
                out = root / f"{count}-{seed}"
                words = ["adapt", root / "source.npz", root / "target.npz", "--out", out, "--rounds", rounds]
                words += ["--target-labels", root / "labels.npz", "--report", "false", "--baseline", "false"]
                words += ["--seed", seed, "--devices", count]
                subprocess.run([sys.executable, "-m", "candapt", *map(str, words)], check=True, capture_output=True)
                found.append(json.loads((out / "summary.json").read_text())["oracle"]["accuracy"])
                print(count, seed, found[-1], flush=True)
    return {"rounds": rounds, "accuracy": accuracies}


def step(_: int) -> dict[str, Any]:
    """Seconds of a training step by the number of processes and the size of the batch, for the cost model."""
    times = []
    for count in (1, 2):
        for batch_size in (30, 240):
            seconds, exchange = in_processes(count, timed_steps, batch_size)[0]
            times.append({"processes": count, "batch": batch_size, "seconds": seconds, "exchange": exchange})
    return {"steps": times}


def timed_steps(batch_size: int, repetitions: int = 20) -> tuple[float, float]:
    """Median processor seconds of a step of MCC on 2048 features, and wall seconds of exchanging its gradients."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    labels = np.arange(3000) % 31
    x = random.normal(size=(3000, 2048)).astype(np.float32)
    task = Task(labeled_arrays(x, labels, where="made"), Domain(ArraySamples(x)))
    settings = make_settings("mcc", changes={"training.batch_size": batch_size, "training.steps": repetitions})
    fabric = make_fabric(settings.training)
    method = build_method(initial_parts(task, settings), settings)
    training = Training(fabric, method, task, settings)
    everything = torch.ones(3000, dtype=torch.bool)
    clusters = Clusters(torch.as_tensor(labels), torch.zeros(3000), torch.zeros(31, 1), everything, 1)
    round = training.describe_round()
    draws, each = method.draws(round, clusters), []
    for number, batch in enumerate(read_batches(fabric, task, draws, round.seed)):
        started = time.process_time()
        training.one_batch([batch], draws, number, round.seed)
        each.append(time.process_time() - started)
    gradients = torch.zeros(sum(parameter.numel() for parameter in method.parameters()))
    started = time.process_time()
    for _ in range(5):
        processes.summed(gradients)
    return float(np.median(each[2:])), (time.process_time() - started) / 5


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "stream": stream,
    "clustering": clustering,
    "adapt": adapt,
    "office": office,
    "step": step,
}

if __name__ == "__main__":
    main()
