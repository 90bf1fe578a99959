"""The one exception whose message is meant for the user, and words for trouble that no program can foresee."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Something the user can put right.

    The message is one sentence: what is wrong, where, and what to do. The command line prints it without a
    traceback and leaves with exit code 2; it is a `ValueError` so that scikit-learn's tools treat it as bad input.
    """


class DivergedError(UserError):
    """A training whose numbers went wrong; with other settings they may not."""


_ADVICE = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "make room",
    errno.EROFS: "make it writable",
    errno.EACCES: "see to its permissions",
    errno.EPERM: "see to its permissions",
    errno.ENOENT: "it has vanished, put it back",
    errno.EIO: "the disk may be failing",
}
"""What to do about errors of the system."""
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc", "is killed by signal: killed")
"""How torch says it, the last one of processes that read batches."""


def trouble(error: BaseException) -> str | None:
    """What happened and what to do first, for trouble with the machine; None if it is something else."""
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY):
        return "memory ran out: lower --training.batch_size or --training.evaluation_batch, or end other programs"
    if not isinstance(error, OSError):
        return None
    reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
    place = f" ({str(error.filename)!r})" if error.filename else ""
    return f"{reason}{place}: {_ADVICE.get(error.errno or 0, 'put that right')}"


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Note on what ends a command too early how to go on after it."""
    try:
        yield
    except (KeyboardInterrupt, OSError, MemoryError, RuntimeError) as error:
        error.add_note(advice)
        raise
