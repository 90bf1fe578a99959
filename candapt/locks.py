"""One writer at a time: a folder is locked while a process writes to it.

The lock is the operating system's, on the file `.lock` in the folder, so it ends with the process that holds it,
however that ends. The file says who that is. On network file systems locks work between machines where the server
supports them (NFS version 4 does); where it supports none, the folder is used without a lock and the log says so.
"""

import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from candapt.errors import UserError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

log = logging.getLogger(__name__)

NAME = ".lock"
_held: set[int] = set()
"""Open files of the locks that this process holds."""
PAUSE = 0.1
"""Seconds between two looks at a lock that is waited for."""
_FAR = 1 << 30
"""Windows keeps others from reading the bytes that are locked, so a byte far behind the text is."""


class LockedError(UserError):
    """Someone else is writing to a folder; the message says who."""


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing to an existing folder.

    Args:
        folder: where nobody else shall write.
        wait: until whoever writes there now has ended; else that is refused.
    """
    path = folder / NAME
    descriptor = _acquire(path, wait=wait)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file; there it stays, which does no harm
            path.unlink()  # while the lock is held, so that nobody else has it yet
        _held.discard(descriptor)
        os.close(descriptor)


def refuse_if_locked(folder: Path) -> None:
    """Say who is writing to a folder, if someone is; nothing is created."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return
    try:
        _take(descriptor, folder / NAME)
    finally:
        os.close(descriptor)


def _acquire(path: Path, *, wait: bool) -> int:
    """The locked file at this path."""
    told = False
    while True:
        try:
            if (descriptor := _open_locked(path)) is not None:
                return descriptor
        except LockedError as error:
            if not wait:
                raise
            if not told:
                log.info("%s", error)
            told = True
            time.sleep(PAUSE)


def _open_locked(path: Path) -> int | None:
    """The locked file at this path; None if it was removed meanwhile."""
    try:
        # A link in a folder from someone else shall not lead to the truncation of another file.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise UserError(f"{str(path.parent)!r} cannot be written ({error.strerror}): nothing was changed.") from None
    try:
        _take(descriptor, path)
        # Its last holder may have removed the file after it was opened here: then the name is free, or another's.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            _held.add(descriptor)
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _take(descriptor: int, path: Path) -> None:
    """Lock an open file without waiting, or say who has."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            log.warning("%s cannot be locked (%s): see to it that nothing else writes there.", path, error.strerror)
            return
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        raise LockedError(f"{str(path.parent)!r} is being written by {holder}: wait until it ends.") from None


def _forget() -> None:
    """Close the files in a child, such as one that reads batches, lest the lock outlive its holder with it."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
