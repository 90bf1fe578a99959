"""Output folders: a command claims one before it works, locks it while it writes, and overwrites nothing in it.

The lock is the operating system's, on the file `.lock` in the folder, so it ends with the process that holds it,
however that process ends. The file names its owner. On network file systems locks work between machines where the
server supports them (NFS version 4 does); where it does not, the log says that the folder is used without a lock.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from filelock import BaseFileLock, FileLock, Timeout

from candapt.errors import UserError
from candapt.storage.files import writing

log = logging.getLogger(__name__)

PART = ".part"  # ending of a file that a killed process left half written
LOCK_FILE = ".lock"
GRACE_SECONDS = 0.1  # how long a lock must stay taken before another process counts as writing
POLL_SECONDS = 0.1  # time between two attempts to get a lock that another process holds


class OutputFolder:
    """A folder that one command writes. Subclasses say which files it may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def check(cls, path: Path, *, resume: bool = False) -> None:
        """Raise a `UserError` if the folder cannot be claimed; nothing is touched."""
        if path.is_dir():
            require_unlocked(path)
            cls.check_content(path, resume=resume)
            require_no_links(path)
        elif path.exists():
            raise UserError(f"{str(path)!r} is not a folder: give another one by --out; nothing was changed.")
        elif resume:
            raise UserError(f"There is nothing to resume in {str(path)!r}: check --out, or start without --resume.")

    @classmethod
    def check_content(cls, path: Path, *, resume: bool) -> None:
        """Raise a `UserError` if an existing folder holds what it must not; for subclasses."""
        raise NotImplementedError

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, resume: bool = False) -> Iterator[Self]:
        """Claim a new folder, or with `resume` one with earlier results, and lock it; an empty one is removed again."""
        cls.check(path, resume=resume)
        new = not path.exists()
        with writing(path, "another folder by --out"):
            path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(path):
                cls.check_content(path, resume=resume)  # another process may have been faster
                folder = cls(path)
                folder.prepare()
                yield folder
        finally:
            if new:
                with suppress(OSError):  # it is not empty
                    path.rmdir()

    def prepare(self) -> None:
        """What to do once the folder is locked: remove what a killed process left half written."""
        for part in self.path.rglob(f"*{PART}"):
            part.unlink()


def names_in(folder: Path) -> set[str]:
    """Names of the entries of a folder, but for the lock; half-written files count by the name they would get."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return {entry.name.removesuffix(PART) for entry in entries} - {LOCK_FILE}


def require_no_links(folder: Path) -> None:
    """Raise a `UserError` for links and pipes: they may lead out of the folder, or never end."""
    for entry in sorted(folder.rglob("*")):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            kind, name = "a link" if entry.is_symlink() else "not a plain file", str(entry.relative_to(folder))
            raise UserError(f"{name!r} in {str(folder)!r} is {kind}, which candapt never makes: remove it.")


class LockedError(UserError):
    """Another process is writing to a folder; the message names it."""


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing to an existing folder; a `LockedError` if one does, unless `wait` is given."""
    lock = _acquire(folder, claim=True, wait=wait)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file; there filelock removes it afterwards
            (folder / LOCK_FILE).unlink()  # while the lock is held, so that nobody else has it yet
        if lock is not None:
            lock.release()


def require_unlocked(folder: Path) -> None:
    """Raise a `LockedError` if another process is writing to the folder; nothing is created."""
    if (folder / LOCK_FILE).is_file() and (lock := _acquire(folder, claim=False)) is not None:
        lock.release()


def _acquire(folder: Path, *, claim: bool, wait: bool = False) -> BaseFileLock | None:
    """The lock, held, with this process as its owner if it is to claim it; None where the file system has no locks."""
    path = folder / LOCK_FILE
    # A pipe or a link that someone put there must be neither opened nor followed.
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{str(folder)!r} cannot be written ({LOCK_FILE} is not a plain file): remove that.")
    lock = FileLock(path, fallback_to_soft=False, on_acquired=_write_owner if claim else None)
    try:
        folder.stat()  # filelock would make a missing folder
        try:
            # More than one attempt: the owner may just be ending, or another process may be checking the lock.
            lock.acquire(timeout=GRACE_SECONDS, poll_interval=GRACE_SECONDS / 10)
        except Timeout:
            error = LockedError(f"{str(folder)!r} is being written by {_read_owner(path)}: wait until it ends.")
            if not wait:
                raise error from None
            log.info("%s", error)
            lock.acquire(poll_interval=POLL_SECONDS)
    except OSError as error:
        if not os.access(path, os.R_OK | os.W_OK):  # it could not even be opened
            raise UserError(f"{str(folder)!r} cannot be written ({error.strerror}): nothing was changed.") from None
        log.warning("%s cannot be locked (%s): make sure that nothing else writes there.", path, error.strerror)
        return None
    return lock


def _write_owner(descriptor: int) -> None:
    """Write who holds the lock to its open file; Windows lets nobody else write there."""
    with suppress(OSError):  # a full disk: the owner remains unnamed
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def _read_owner(path: Path) -> str:
    owner = ""
    with suppress(OSError):
        owner = path.read_text(encoding="utf-8", errors="replace")[:200].strip()
    return owner or "another process"
