"""A bounded queue in front of the network; samples that wait together are predicted together."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from candapt.serving.engine import Array, Outcome
from candapt.serving.limits import Limits, waiting_time
from candapt.serving.refusal import busy

MEMORY = 0.8  # weight of earlier batches in the mean rate

Read = Callable[[], Array]  # makes a sample, perhaps by decoding an image


@dataclass(eq=False)
class _Job:
    """A sample that waits."""

    read: Read
    outcome: asyncio.Future[Outcome]


class Batcher:
    """Reads and predicts samples of all requests, one batch at a time.

    While the network computes a batch, the next one is read. So at most three batches of samples are in memory: one
    that is computed, one that is ready and one that is being read. What waits is as small as it was sent.
    """

    def __init__(self, predict: Callable[[Array], Outcome], limits: Limits) -> None:
        self.predict, self.limits = predict, limits
        self.readers = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="read")
        self.waiting = 0  # samples that have no outcome yet
        self.done = 0  # samples that have one
        self.rate = 0.0  # samples a second, a mean that forgets
        self._network = ThreadPoolExecutor(1, thread_name_prefix="network")
        self._jobs: deque[_Job] = deque()
        self._arrived = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within this context samples are worked on; at its end everything that was accepted is done."""
        ready: asyncio.Queue[list[tuple[_Job, Array]]] = asyncio.Queue(1)
        tasks = [asyncio.create_task(self._read_batches(ready)), asyncio.create_task(self._predict_batches(ready))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.readers.shutdown(cancel_futures=True)
            self._network.shutdown()

    def require_room(self, samples: int) -> None:
        """Raise a `RefusedError` unless so many samples can wait."""
        if self.waiting + samples > self.limits.queue:
            raise busy("The queue is full", waiting_time(self.waiting, self.rate))

    async def outcomes(self, reads: Sequence[Read]) -> list[Outcome | BaseException]:
        """The outcome of each sample, or what went wrong with it; a `RefusedError` if the queue is full.

        If the caller is canceled, its samples leave the queue.
        """
        self.require_room(len(reads))
        loop = asyncio.get_running_loop()
        jobs = [_Job(read, loop.create_future()) for read in reads]
        self.waiting += len(jobs)
        self._jobs.extend(jobs)
        self._arrived.set()
        try:
            return await asyncio.gather(*(job.outcome for job in jobs), return_exceptions=True)
        finally:
            self.waiting -= len(jobs)
            for job in jobs:
                if not job.outcome.done() or job.outcome.cancelled():
                    job.outcome.cancel()
                    if job in self._jobs:
                        self._jobs.remove(job)

    async def _read_batches(self, ready: asyncio.Queue[list[tuple[_Job, Array]]]) -> None:
        """Read the next samples as soon as there is room for them."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            jobs = [self._jobs.popleft() for _ in range(min(self.limits.batch, len(self._jobs)))]
            if not self._jobs:
                self._arrived.clear()
            reading = (loop.run_in_executor(self.readers, job.read) for job in jobs)
            samples = await asyncio.gather(*reading, return_exceptions=True)
            batch = []
            for job, sample in zip(jobs, samples, strict=True):
                if isinstance(sample, BaseException):
                    _fail(job, sample)
                elif not job.outcome.done():
                    batch.append((job, sample))
            if batch:
                await ready.put(batch)

    async def _predict_batches(self, ready: asyncio.Queue[list[tuple[_Job, Array]]]) -> None:
        """Predict what is ready."""
        loop = asyncio.get_running_loop()
        while True:
            batch = await ready.get()
            started = time.perf_counter()
            samples = np.stack([sample for _, sample in batch])
            try:
                outcome = await loop.run_in_executor(self._network, partial(self.predict, samples))
            except Exception as error:  # the server goes on: the next batch may be well
                for job, _ in batch:
                    _fail(job, error)
                continue
            for row, (job, _) in enumerate(batch):
                if not job.outcome.done():
                    job.outcome.set_result(outcome[row])
            self._count(len(batch), time.perf_counter() - started)

    def _count(self, samples: int, seconds: float) -> None:
        self.done += samples
        rate = samples / max(seconds, 1e-6)
        self.rate = MEMORY * self.rate + (1 - MEMORY) * rate if self.rate else rate


def _fail(job: _Job, error: BaseException) -> None:
    if not job.outcome.done():
        job.outcome.set_exception(error)
