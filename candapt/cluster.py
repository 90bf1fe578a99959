"""Trainings on other machines: a cluster of Dask workers, which the user has started, runs functions.

Dask is chosen over Ray: it is pure Python, needs no service but its scheduler, which a laptop and a batch system can
start alike, runs what was lost with a worker again by itself, and installs a tenth of the megabytes.

Workers must run one thing at a time, since random draws of layers come from one generator in each process.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from candapt.errors import UserError

SECONDS = 20  # how long to wait for the scheduler


class Cluster:
    """A connection to a scheduler."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @property
    def workers(self) -> int:
        """Workers that there are now, at least one."""
        return max(1, len(self.client.nthreads()))

    def start(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Let some worker call a function, and another one if the worker ends meanwhile; gives a future."""
        return self.client.submit(_call, work, arguments, torch.get_num_threads(), pure=False)

    def finished(self, running: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """Results in the order in which they are finished, each with what the mapping has for it.

        What is added to the mapping meanwhile is waited for too.
        """
        import distributed
        from distributed.comm.core import CommClosedError

        waiting: Any = distributed.as_completed(list(running))  # type: ignore[no-untyped-call]
        known = set(running)
        for future in waiting:
            try:
                yield running[future], future.result()
            except distributed.KilledWorker:
                raise UserError(
                    "Several workers of the cluster ended one after the other at the same training, perhaps because "
                    "memory ran out: start workers with more of it, and repeat the command to continue."
                ) from None
            except (CancelledError, CommClosedError):
                raise UserError(
                    "The scheduler of the cluster has ended or cannot be reached any more: start it again, and "
                    "continue as after an interruption; what was finished is stored."
                ) from None
            waiting.update([new for new in running if new not in known])
            known |= set(running)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The cluster whose scheduler is at an address, such as tcp://host:8786; a `UserError` if there is none."""
    try:
        import distributed
    except ImportError:
        raise UserError("--cluster needs Dask: install it with: pip install 'candapt[cluster]'.") from None
    for name in ("distributed", "distributed.client"):  # the second one has a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client: Any = distributed.Client(address, timeout=SECONDS)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise UserError(f"--cluster is {address!r}, where no Dask scheduler answers ({str(error)[:100]}).") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=SECONDS)
        except TimeoutError:
            raise UserError(f"The cluster at {address!r} has no workers: start some by dask worker.") from None
        if any(threads != 1 for threads in client.nthreads().values()):
            raise UserError("The workers of the cluster must run one thing at a time: start them with --nthreads 1.")
        yield Cluster(client)


def require(address: str | None) -> None:
    """Raise a `UserError` if an address is given that is not that of a cluster with workers."""
    if address is not None:
        with connected(address):
            pass


def for_all_machines(value: Any) -> Any:
    """A path from the root on, since workers may run in other folders; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(for_all_machines, value))
    return value.absolute() if isinstance(value, Path) else value


def _call(work: Callable[..., Any], arguments: tuple[Any, ...], threads: int) -> Any:
    """Call a function in a worker with as many threads as this process has, so that results are the same."""
    torch.set_num_threads(threads)
    return work(*arguments)
