"""What the user sees while a command works: bars in a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

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

from candapt.training.loop import Record, Training
from candapt.untrusted import printable

console = Console(stderr=True)
"""For messages and bars."""
output = Console(highlight=False, soft_wrap=True)
"""For what a command was asked to show."""
log = logging.getLogger("candapt")


def fitted(*tables: Table) -> Table:
    """The first form of a table that fits the terminal, or else the narrowest; in a file the first, unbroken."""
    widths = [output.measure(table, options=output.options.update(width=1000)).maximum for table in tables]
    if not output.is_terminal:  # a file or a pipe has no width that a table must fit
        tables[0].width = widths[0]
        return tables[0]
    fitting = (table for table, width in zip(tables, widths, strict=True) if width <= output.width)
    return next(fitting, tables[widths.index(min(widths))])


class _Printable(logging.Formatter):
    """Lines in which no name of a file or class can steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with escapes in place of control characters."""
        return printable(super().format(record))


def show_log() -> None:
    """Send the log to standard error, once."""
    log.setLevel(logging.INFO)
    if not log.handlers:
        plain = logging.StreamHandler(sys.stderr)
        rich = RichHandler(console=console, show_level=False, show_path=False, markup=False)
        handler = rich if console.is_terminal else plain
        handler.setFormatter(_Printable("%(message)s"))
        log.addHandler(handler)
    # Fabric announces accelerators that the machine lacks.
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)


class _LogFile(logging.FileHandler):
    """A file that may be on a full disk: what it cannot take is on the screen all the same."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say nothing of trouble with the file, where logging would print a traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close; lines that could not be written are given up."""
        with suppress(OSError):
            super().close()


class _Notes(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def noting() -> Iterator[list[logging.LogRecord]]:
    """Keep what is logged before there is a file for it."""
    notes = _Notes()
    log.addHandler(notes)
    try:
        yield notes.records
    finally:
        log.removeHandler(notes)


@contextmanager
def log_to(path: Path, before: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Send the log to a file too, with the time of each line, after what was logged before."""
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


@contextmanager
def quiet_trainings() -> Iterator[None]:
    """Keep what single trainings say out of the log, warnings excepted."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("candapt.adaptation", "candapt.cache"))}
    for logger in levels:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


class TrainingBar:
    """A bar with the time left in a terminal; elsewhere the log lines alone tell how it goes."""

    def __init__(self, title: str, rounds: int) -> None:
        self.title, self.rounds = title, rounds
        self.round = 0
        self.bar = _bar()
        self.task = self.bar.add_task(title, total=rounds)
        self.embedding: TaskID | None = None

    def __enter__(self) -> "TrainingBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def on_embedded(self, done: int, total: int) -> None:
        """Show how many images are through the frozen layers, on a bar of its own."""
        if self.embedding is None:
            self.embedding = self.bar.add_task("features", total=total)
        self.bar.update(self.embedding, completed=done, visible=done < total)

    def on_step(self, done: int, planned: int) -> None:
        """Move the bar; a round counts as one."""
        self.bar.update(self.task, completed=self.round + done / planned)

    def on_round(self, training: Training, record: Record) -> None:
        """Log the round."""
        self.round = int(record["round"]) + 1
        log.info("%s", describe_round(self.title, self.rounds, record))


class SeriesBar:
    """One bar over many trainings in a terminal; elsewhere a line for each of them."""

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
        """One training is done."""
        self.done += 1
        self.bar.update(self.task, completed=self.done, description=description)

    @property
    def time_left(self) -> str:
        """How long the others will take if they take as long."""
        seconds = (time.perf_counter() - self.started) / (self.done - self.begun) * (self.total - self.done)
        return f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """A time for reading, to the second below two minutes and to the minute below two hours.

    >>> duration(100), duration(1000), duration(10000)
    ('100 s', '17 min', '2.8 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def describe_round(title: str, rounds: int, record: Record) -> str:
    """One line of plain text for a round."""
    words = {
        "classification": "classification {:.3f}",
        "discrepancy": "discrepancy {:.3f}",
        "kept_samples": "kept {:.0f} samples",
        "kept_classes": "of {:.0f} classes",
        "label_change": "labels changed {:.1%}",
        "center_shift": "centers moved {:.4f}",
        "learning_rate": "learning rate {:.2g}",
        "oracle_accuracy": "oracle accuracy {:.1%}",
        "seconds": "{:.1f} s",
    }
    told = [text.format(record[name]) for name, text in words.items() if name in record]
    return f"{title} round {int(record['round']) + 1}/{rounds}: {', '.join(told)}"


@contextmanager
def counting(title: str) -> Iterator["Counter"]:
    """A bar for work whose size is told as it goes."""
    with _bar() as bar:
        yield Counter(bar, title)


class Counter:
    """Called with (done, total)."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar, self.task = bar, bar.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show how far the work is."""
        self.bar.update(self.task, completed=done, total=total)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
