"""One file given to one reader: it must be read or refused, in bounded time and memory."""

import resource
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from benchmarks.fuzzing.mutation import mutate
from benchmarks.fuzzing.readers import Reader
from candapt.errors import UserError

SECONDS = 10
"""Longest time of the processor for one file; a loaded machine does not count."""
WAIT = 120
"""Longest time altogether, in seconds, after which it must be waiting for something."""
MEMORY = 2 * 2**30
"""Bytes of address space that a file may take beyond what the process has."""


class Hang(BaseException):
    """A file took too long. Not an `Exception`, which a reader might take for a damaged file."""


@dataclass
class Tally:
    """What came of many files."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Files that were read, and that were refused."""
    failures: list[tuple[str, bytes]] = field(default_factory=list)
    """What went wrong, each with the file."""


def fuzz(reader: Reader, folder: Path, seed: int) -> Iterator[Tally]:
    """Give the reader one changed file after another, without end.

    Args:
        reader: what is tried.
        folder: an empty folder to work in; the file that is being read lies there.
        seed: decides all changes.
    """
    random, tally, seeds = Random(seed), Tally(), reader.seeds()
    for data in seeds:
        _give(reader, folder, data, tally)
        if tally.failures or not tally.outcomes["read"]:
            raise AssertionError(f"a valid file was refused: {tally}")
    while True:
        _give(reader, folder, mutate(random.choice(seeds), reader.mutators, random), tally)
        yield tally


def _give(reader: Reader, folder: Path, data: bytes, tally: Tally) -> None:
    (folder / reader.file).write_bytes(data)
    for name, content in reader.beside().items():
        (folder / name).write_bytes(content)
    try:
        with limits():
            reader.read(folder)
        tally.outcomes["read"] += 1
    except UserError:
        tally.outcomes["refused"] += 1
    except (Exception, Hang) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}:{place.lineno})"
        tally.failures.append((text, data))


@contextmanager
def limits(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Stop what takes longer, and refuse memory beyond."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"no end after {seconds} s")

    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    usual = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + memory, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))
        for number, handler in usual.items():
            signal.signal(number, handler)


def _address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
