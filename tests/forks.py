"""Commands in processes of their own that import nothing: a server that has imported everything forks them.

An interpreter of its own takes seconds of a processor until it has imported torch.
"""

import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.kills import processes
from candapt.commands.main import main

processes.set_forkserver_preload(
    [
        *("candapt.commands.adapt", "candapt.commands.benchmark", "candapt.commands.tune"),
        *("candapt.commands.review", "candapt.commands.serve", "candapt.review.server", "candapt.serving.api"),
        *("candapt.report", "candapt.report.domain_map", "lightning_fabric", "sklearn.linear_model"),
        *("tests.forks", "torch._dynamo", "torchvision", "uvicorn.protocols.http.h11_impl"),
    ]
)


class Command:
    """`candapt` with some words, and what it prints, of both kinds."""

    def __init__(self, *words: object, environment: dict[str, str] | None = None) -> None:
        reader, writer = processes.Pipe(duplex=False)
        arguments = [str(word) for word in words], environment or {}, Path.cwd(), writer
        self._process = processes.Process(target=_work, args=arguments)
        self._process.start()
        writer.close()
        self._printed = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Each line that it prints, until it has ended."""
        return iter(self._printed.readline, "")  # a generator would close the pipe when nobody wants more of it

    def wait(self, seconds: float | None = None) -> int:
        """The exit code, once it has ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "the command has not ended"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.join()


def _work(words: list[str], environment: dict[str, str], folder: Path, writer: Connection) -> None:
    for descriptor in (1, 2):
        os.dup2(writer.fileno(), descriptor)
    writer.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.exit(main(words))
