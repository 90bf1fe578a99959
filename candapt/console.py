"""What the user sees while a command works: progress bars in a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from candapt.storage.safe_reading import printable

console = Console(stderr=True)  # for messages and bars
output = Console(highlight=False, soft_wrap=True)  # for the output that the user asked for
log = logging.getLogger("candapt")

LINE_SECONDS = 30.0  # time between two log lines about the progress of one piece of work


def fitted(*tables: Table) -> Table:
    """The first of several forms of a table that fits the terminal, or else the narrowest; in a file the first one."""
    widths = [output.measure(table, options=output.options.update(width=1000)).maximum for table in tables]
    if not output.is_terminal:  # a file or a pipe has no width that a table must fit
        tables[0].width = widths[0]
        return tables[0]
    fitting = (table for table, width in zip(tables, widths, strict=True) if width <= output.width)
    return next(fitting, tables[widths.index(min(widths))])


class _Printable(logging.Formatter):
    """Log lines in which no name of a file or class can control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with escapes in place of control characters."""
        return printable(super().format(record))


def show_log(*, quiet: bool = False) -> None:
    """Send the log to standard error, once; a quiet process shows nothing but errors, and no bars."""
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    console.quiet = quiet or console.quiet
    if not log.handlers:
        plain = logging.StreamHandler(sys.stderr)
        rich = RichHandler(console=console, show_level=False, show_path=False, markup=False)
        handler = rich if console.is_terminal else plain
        handler.setFormatter(_Printable("%(message)s"))
        log.addHandler(handler)
    # Fabric announces accelerators that the machine lacks.
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)


@contextmanager
def shown_log(*, quiet: bool) -> Iterator[None]:
    """Show log and bars for the time of a call, as a command does, unless it shall be quiet.

    A program that has set up logging itself sees the log where it wants it. Quiet or not, log files are complete.
    """
    level, handlers, was_quiet = log.level, list(log.handlers), console.quiet
    console.quiet = quiet
    if quiet or log.hasHandlers():
        log.setLevel(logging.INFO)
    else:
        show_log()
    try:
        yield
    finally:
        console.quiet = was_quiet
        log.setLevel(level)
        for handler in [each for each in log.handlers if each not in handlers]:
            log.removeHandler(handler)


class _LogFile(logging.FileHandler):
    """A log file that may be on a full disk; the lines are on the screen too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore errors of the disk, for which logging would print a traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close; lines that could not be written are given up."""
        with suppress(OSError):
            super().close()


class _Recorder(logging.Handler):
    """Remembers log records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def recorded_log() -> Iterator[list[logging.LogRecord]]:
    """Remember what is logged before there is a file for it."""
    recorder = _Recorder()
    log.addHandler(recorder)
    try:
        yield recorder.records
    finally:
        log.removeHandler(recorder)


@contextmanager
def log_to(path: Path, before: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Write the log to a file too, with the time of each line, after the records from before."""
    handler = _LogFile(path, encoding="utf-8", errors="surrogateescape")
    handler.setFormatter(_Printable("%(asctime)s %(levelname)s %(message)s"))
    for record in before:
        handler.handle(record)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


class SeriesBar:
    """One progress bar over many trainings in a terminal; elsewhere one log line per training."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self.total, self.done, self.begun = total, done, done
        self.started = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(
            *columns,
            console=console,
            disable=not console.is_terminal,
            transient=True,
            speed_estimate_period=3600,  # a training may take minutes
        )
        self.task = self.bar.add_task(title, total=total, completed=done)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def advance(self, share: float) -> None:
        """Move the bar within a training."""
        self.bar.update(self.task, completed=self.done + share)

    def count(self, description: str) -> None:
        """Count one training as done."""
        self.done += 1
        self.bar.update(self.task, completed=self.done, description=description)

    @property
    def time_left(self) -> str:
        """Estimated time for the remaining trainings."""
        seconds = (time.perf_counter() - self.started) / (self.done - self.begun) * (self.total - self.done)
        return f"about {duration(seconds) if seconds >= 60 else f'{seconds:.0f} s'} left"


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(7.31), duration(75), duration(750), duration(7500)
    ('7.3 s', '1 min 15 s', '12 min', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{minutes // 60} h"


@contextmanager
def counting(title: str) -> Iterator["Counter"]:
    """A progress bar for work whose size becomes known on the way."""
    with progress_bar() as bar:
        yield Counter(bar, title)


class Counter:
    """Called with (done, total)."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar, self.task = bar, bar.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show the progress."""
        self.bar.update(self.task, completed=done, total=total)


class _Bar(Progress):
    """A progress bar; where there is no terminal, a log line now and then in its place."""

    _logged = 0.0  # when the latest line was written

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Show the progress of a task."""
        super().update(task_id, **changes)
        task, now = self.tasks[self.task_ids.index(task_id)], self.get_time()
        begun = task.start_time or now
        if console.is_terminal or task.finished or not task.completed or now - max(self._logged, begun) < LINE_SECONDS:
            return
        self._logged = now
        left = (now - begun) * ((task.total or 0) / task.completed - 1)
        log.info("%s: %.0f %%, about %s left", task.description, task.percentage, duration(left))


def progress_bar() -> Progress:
    """A progress bar with percentage and time left; where there is no terminal, a log line every half minute."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return _Bar(*columns, console=console, disable=not console.is_terminal, transient=True)
