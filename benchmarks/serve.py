"""`candapt serve` under 200 requests at once, and under hostile ones: `python -m benchmarks.serve`.

Two models are trained for a few rounds: on the demonstration's digits and, if `data/office31` and
`weights/resnet50-imagenet.safetensors` are below `../shared` or the folder that CANDAPT_SHARED names, on photographs of
ten classes of Office-31 over a frozen ResNet-50. Each is served on loopback in a process of its own, by PyTorch and by
onnxruntime. All requests, of one image each, are sent at the same moment by a client on the same machine. An answer is
wrong if its label is not that of `Model.predict`, or its probability differs by more than 0.001. The time of a request
is from that moment to its answer.
"""

import asyncio
import io
import os
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from benchmarks.record import record
from candapt.commands.main import main as candapt
from candapt.data.digits import write_demo_data
from candapt.data.domains import Domain
from candapt.data.features import read_arrays
from candapt.data.images import image_domain
from candapt.model import Predictions, load

REQUESTS = 200
TOLERANCE = 1e-3
CLASSES, PER_CLASS = 10, 8  # of the photographs
PATIENCE = 600.0  # seconds after which a request counts as lost
SLOW = 3  # seconds within which a request must have arrived, for the slow sender


@dataclass(frozen=True)
class Subject:
    """A run to serve, with files to send and what must be answered."""

    name: str
    run: Path
    files: list[bytes]
    expected: Predictions
    classes: tuple[str, ...]


def main() -> None:
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subjects = [digits(folder / "digits")]
        if (shared / "data" / "office31").is_dir():
            subjects.append(photos(folder / "photos", shared))
        rows = []
        for subject in subjects:
            rows.append(measure(subject, "pytorch"))
            if candapt(["export", str(subject.run), "--out", str(subject.run / "model.onnx")]) == 0:
                rows.append(measure(subject, "onnx"))
        hostile = refused(subjects[0])
    record("serve", {"requests": REQUESTS, "rows": rows, "hostile": hostile})


def digits(folder: Path) -> Subject:
    """A small network for small images, which come as PNG files."""
    write_demo_data(folder, 0)
    train(folder / "rendered.npz", folder / "handwritten.npz", folder / "run", rounds=3, steps=30)
    x = read_arrays(folder / "handwritten.npz", "x")["x"]
    low, high = (f(read_arrays(folder / "rendered.npz", "x")["x"]) for f in (np.min, np.max))
    images = np.round((x.reshape(len(x), *x.shape[-2:])[:REQUESTS] - low) / (high - low) * 255).clip(0, 255)
    model = load(folder / "run")
    sent = images.astype(np.uint8).astype(np.float32)[:, None] / 255 * (high - low) + low
    files = [png(each) for each in images]
    return Subject("digits, small network", folder / "run", files, model.predict(Domain(sent)), model.classes)


def photos(folder: Path, shared: Path) -> Subject:
    """Photographs over a frozen ResNet-50."""
    for domain in ("amazon", "webcam"):
        images = shared / "data" / "office31" / domain / "images"
        for of_class in sorted(images.iterdir())[:CLASSES]:
            (folder / domain / of_class.name).mkdir(parents=True)
            for path in sorted(of_class.iterdir())[:PER_CLASS]:
                shutil.copy(path, folder / domain / of_class.name)
    weights = str(shared / "weights" / "resnet50-imagenet.safetensors")
    words = ("--weights", weights, "--finetune", "head", "--network.views", "0", "--cache", str(folder / "cache"))
    train(folder / "amazon", folder / "webcam", folder / "run", *words, rounds=5, steps=20)
    model = load(folder / "run")
    target, _ = image_domain(folder / "webcam", model.images)
    files = [(folder / "webcam" / name).read_bytes() for name in target.names]
    return Subject("photographs, ResNet-50", folder / "run", files, model.predict(target), model.classes)


def train(source: Path, target: Path, out: Path, *words: str, rounds: int, steps: int) -> None:
    """Leave a run in a folder."""
    more = (
        "--rounds",
        str(rounds),
        "--training.steps",
        str(steps),
        "--report",
        "false",
        "--training.accelerator",
        "cpu",
    )
    code = candapt(["adapt", str(source), str(target), "--out", str(out), *words, *more])
    if code != 0:
        sys.exit(code)


@contextmanager
def serving(run: Path, *words: str) -> Iterator[tuple[str, int]]:
    """Address and process number of a server that answers."""
    command = [sys.executable, "-m", "candapt", "serve", str(run), "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = next(filter(None, (re.search(r"at (http://\S+/) ", line) for line in process.stderr)), None)
    assert found is not None, "the server did not start"
    try:
        while True:
            try:
                httpx.get(f"{found[1]}health")
                break
            except httpx.ConnectError:
                time.sleep(0.05)
        yield found[1], process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def measure(subject: Subject, engine: str) -> dict[str, Any]:
    """All requests at once."""
    with serving(subject.run, "--engine", engine) as (address, process):
        before = memory(process)
        name = httpx.get(f"{address}model").json()["engine"]
        started = time.perf_counter()
        answers = asyncio.run(ask(address, [subject.files[row % len(subject.files)] for row in range(REQUESTS)]))
        seconds = time.perf_counter() - started
        peak = memory(process)
    times = sorted(each for _, each in answers)
    row = {
        "model": subject.name,
        "engine": name,
        "lost": sum(content is None for content, _ in answers),
        "wrong": sum(
            is_wrong(subject, row, content) for row, (content, _) in enumerate(answers) if content is not None
        ),
        "p50": round(statistics.median(times), 3),
        "p95": round(statistics.quantiles(times, n=20)[-1], 3),
        "images_per_second": round(REQUESTS / seconds, 1),
        "memory_before": before,
        "memory_peak": peak,
    }
    print(row)
    return row


async def ask(address: str, files: Sequence[bytes]) -> list[tuple[dict[str, Any] | None, float]]:
    """The answer to each file, None for one that is lost or refused, and how long it took."""
    limits = httpx.Limits(max_connections=len(files))
    async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
        started = time.perf_counter()

        async def one(data: bytes) -> tuple[dict[str, Any] | None, float]:
            try:
                answer = await client.post(f"{address}predict", files={"images": ("image", data)})
            except httpx.HTTPError:
                return None, time.perf_counter() - started
            content = answer.json() if answer.status_code == 200 else None
            return content, time.perf_counter() - started

        return await asyncio.gather(*map(one, files))


def is_wrong(subject: Subject, row: int, content: dict[str, Any]) -> bool:
    """Whether an answer is not that of `Model.predict`."""
    place, (prediction,) = row % len(subject.files), content["predictions"]
    same = prediction["label"] == subject.classes[subject.expected.labels[place]]
    return not same or abs(prediction["softmax"] - float(subject.expected.softmax[place])) > TOLERANCE


def refused(subject: Subject) -> dict[str, Any]:
    """What requests are answered that are meant to do harm."""
    bomb = zlib.compress(bytes(1_000_000_000), 9)
    requests: dict[str, Callable[[str], int]] = {
        "an image of 10,000 × 10,000 pixels": lambda at: post(at, [bare_png(10_000, 10_000, bomb)]),
        "a PNG that unpacks to 1 GB": lambda at: post(at, [bare_png(16, 16, bomb)]),
        "500 files": lambda at: post(at, 500 * subject.files[:1]),
        "a file of 200 MB": lambda at: post(at, [bytes(200_000_000)]),
        f"a sender that takes more than {SLOW} s": slow_sender,
    }
    with serving(subject.run, "--upload-seconds", str(SLOW)) as (address, process):
        before, rows = memory(process), []
        for name, send in requests.items():
            started = time.perf_counter()
            status = send(address)
            rows.append({"request": name, "status": status, "seconds": round(time.perf_counter() - started, 2)})
        alive = httpx.get(f"{address}health").json()["status"] == "ok"
        peak = memory(process)
    return {"rows": rows, "alive": alive, "memory_before": before, "memory_peak": peak}


def post(address: str, files: Sequence[bytes]) -> int:
    """The status of the answer."""
    form = [("images", (f"{number}.png", data)) for number, data in enumerate(files)]
    return httpx.post(f"{address}predict", files=form, timeout=PATIENCE).status_code


def slow_sender(address: str) -> int:
    """The status of the answer to a body that comes byte by byte."""
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    port = int(address.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as connection:
        connection.sendall(head + b"Content-Length: 1000000\r\n\r\n" + part)
        while True:
            connection.sendall(b"x")
            try:
                return int(connection.recv(65536).split()[1])
            except TimeoutError:
                continue


def png(pixels: Any) -> bytes:
    """A gray PNG."""
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def bare_png(width: int, height: int, data: bytes) -> bytes:
    """A PNG of this size with these compressed bytes as its pixels."""
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", data), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def memory(process: int) -> int:
    """Largest memory of a process so far, in bytes."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


if __name__ == "__main__":
    main()
