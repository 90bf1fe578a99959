"""Errors whose messages are meant for the user, and sentences for trouble with the machine."""

import difflib
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class UserError(ValueError):
    """Something that the user can fix.

    The message is one sentence: what is wrong, where, and what to do. The command line prints it without a
    traceback and exits with code 2; it is a `ValueError` so that scikit-learn's tools treat it as bad input.
    """


class DivergedError(UserError):
    """A training whose numbers are no longer finite; other settings may help."""


def known_name(name: Any, names: Iterable[str], kind: str) -> str:
    """The name, if it is one of those that exist.

    Raises:
        UserError: it is not; the sentence suggests the nearest one.
    """
    if isinstance(name, str) and name in names:
        return name
    near = nearest_name(str(name), names)
    listed = f"choose one of {', '.join(names)}"
    raise UserError(f"There is no {kind} {str(name)[:80]!r}: " + (f"did you mean {near!r}?" if near else f"{listed}."))


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The most similar of the names, if one is similar enough to be a likely misspelling.

    >>> nearest_name("adpt", ["adapt", "predict"])
    'adapt'
    """
    by_case = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name[:80].lower(), by_case, n=1, cutoff=0.65)
    return by_case[near[0]] if near else None


_ADVICE = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "make room",
    errno.EROFS: "make it writable",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOENT: "it has vanished, put it back",
    errno.EIO: "the disk may be failing",
}  # what to do about errors of the operating system
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc", "is killed by signal: killed")
"""How torch reports it; the last one is of processes that read batches."""


LOST_CODE = 3  # exit code of a process whose connection to the others of its command broke
_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket timeout",
    "[gloo",
    "nccl error",
)
"""How torch reports that another process is gone."""


def is_lost_connection(error: BaseException) -> bool:
    """Whether another process of the same command has ended."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in text for each in _LOST)


def describe_machine_error(error: BaseException) -> str | None:
    """What happened and what to do first, if the machine is the cause (memory, disk, files); else None."""
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in _OUT_OF_MEMORY):
        return "memory ran out: lower --training.batch_size or --training.evaluation_batch, or end other programs"
    if is_lost_connection(error):
        return "another process of this command has ended, and this one with it"
    if not isinstance(error, OSError):
        return None
    reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
    place = f" ({str(error.filename)!r})" if error.filename else ""
    return f"{reason}{place}: {_ADVICE.get(error.errno or 0, 'fix that')}"


@contextmanager
def advice_on_failure(advice: str) -> Iterator[None]:
    """Attach to an error that ends the command early how to continue; the command line prints it."""
    try:
        yield
    except (KeyboardInterrupt, OSError, MemoryError, RuntimeError) as error:
        error.add_note(advice)
        raise
