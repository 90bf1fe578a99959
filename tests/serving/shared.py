"""What the tests of serving share: images in memory, an engine that waits, and a server in a process of its own."""

import io
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from candapt.model import Model
from candapt.serving.engine import Array, Outcome, TorchEngine
from candapt.serving.limits import Limits
from candapt.serving.service import Service, make_service
from candapt.serving.source import SourceSamples
from tests.forks import Command

PATIENCE = 120  # seconds after which a test gives up waiting; it says nothing of how long anything should take


def png(pixels: Any) -> bytes:
    """An image file with these pixels."""
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def photo(seed: int, *, bright: bool = False) -> bytes:
    """Noise like that of `tests.images.write_photos`: dark for a cat, bright for a dog."""
    return png(np.random.default_rng(seed).integers(0, 128, size=(40, 40, 3)) + 127 * bright)


def form(*files: tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Files as httpx sends them."""
    return [("images", (name, data, "application/octet-stream")) for name, data in files]


class HeldEngine(TorchEngine):
    """An engine that computes nothing before it is let go, and remembers the sizes of its batches."""

    def __init__(self, model: Model, source: SourceSamples | None = None) -> None:
        super().__init__(model, source)
        self.held, self.sizes = threading.Event(), list[int]()
        self.held.set()

    def predict(self, batch: Array) -> Outcome:
        assert self.held.wait(PATIENCE)
        self.sizes.append(len(batch))
        return super().predict(batch)


def held_service(run: Path, model: Model, **limits: Any) -> tuple[Service, HeldEngine]:
    """A service whose engine can be held."""
    engine = HeldEngine(model)
    service = make_service(run, model, Limits(**limits), pictures=False)
    return replace(service, engine=engine), engine


class Running:
    """A server in a process of its own."""

    def __init__(self, process: Command, address: str, lines: list[str]) -> None:
        self.process, self.address, self.lines = process, address, lines

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    @property
    def memory(self) -> int:
        """Largest memory so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])

    def post(self, *files: tuple[str, bytes], **options: Any) -> httpx.Response:
        return httpx.post(f"{self.address}predict", files=form(*files), timeout=PATIENCE, **options)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def serving(run: Path, *words: object, token: str | None = None) -> Iterator[Running]:
    """`candapt serve` on a free port; it is killed if it has not ended."""
    process = Command("serve", run, "--port", 0, *words, environment={"CANDAPT_TOKEN": token} if token else {})
    lines: list[str] = []
    try:
        for line in process.lines():
            lines.append(line.rstrip())
            if found := re.search(r"at (http://\S+/) ", line):
                break
        else:
            raise AssertionError("\n".join(lines))
        reader = threading.Thread(target=lambda: lines.extend(process.lines()), daemon=True)
        reader.start()
        running = Running(process, found[1], lines)
        _wait_until_it_answers(running)
        yield running
    finally:
        process.kill()


def _wait_until_it_answers(running: Running) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            assert httpx.get(f"{running.address}health").status_code == 200
            return
        except httpx.ConnectError:
            assert time.monotonic() < end
            time.sleep(0.05)
