"""Ctrl-C and SIGTERM: stop after a checkpoint, and at once if asked twice."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # exit code of a process that the signal ended: 130 for Ctrl-C, 143 for SIGTERM


def ignore_signals(*_: object) -> None:
    """Let the parent decide when this process ends: terminals and service managers signal all processes at once."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals; processes that are started meanwhile never get them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Interruption:
    """Within this context the two signals raise `Interrupted`, or are remembered until the work is saved."""

    def __init__(self) -> None:
        self.requested: int | None = None  # the signal that came
        self.patient = False  # remember a signal rather than raise; whoever sets this calls `stop_if_requested` soon
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook
        self._process = os.getpid()

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # Python lets no other one set handlers
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
            self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            sys.unraisablehook = self._hook

    def stop_if_requested(self) -> None:
        """Raise for a signal that came meanwhile."""
        if self.requested is not None:
            raise Interrupted(self.requested)

    def _unraisable(self, dropped: "sys.UnraisableHookArgs") -> None:
        """Ignore a dropped `Interrupted`, which is remembered."""
        if not isinstance(dropped.exc_value, Interrupted):
            self._hook(dropped)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # processes that read batches get Ctrl-C as well; their parent decides when they end
        at_once = self.requested is not None or not self.patient
        self.requested = number  # also when it is raised: where the interpreter calls back, exceptions are dropped
        if at_once:
            raise Interrupted(number)
        log.info("Stopping after this step; once more stops at once.")
