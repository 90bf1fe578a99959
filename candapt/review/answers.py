"""What people answered: a file to which one line is added per answer, and the same as a table for other programs.

`review/answers.jsonl` in the run folder is only ever added to, under a lock, and every line is on the disk before the
answer counts. Taking an answer back is a line too. A line that a crash cut off is skipped.
"""

import csv
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from candapt.errors import UserError
from candapt.model import UNKNOWN
from candapt.review.sampling import STRATIFY, Stratify
from candapt.storage.files import open_table, write_atomically, writing
from candapt.storage.folders import locked, require_no_links
from candapt.storage.safe_reading import MAX_TABLE, check_file, contained, from_plain, shortened

FOLDER = "review"  # in the run folder
LINES, TABLE, CLAIMS = "answers.jsonl", "answers.csv", "claims.json"
CLAIM_SECONDS = 600  # for how long a sample that one person looks at is shown to nobody else

_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # follow no link, change no line break

Verdict = Literal["right", "wrong", "other", "unsure", "undone"]
"""The prediction is right; it is wrong; the sample is of no class; nobody can say; the answer is withdrawn."""


@dataclass(frozen=True)
class Answer:
    """What a person said of one prediction."""

    path: str  # name of the sample, as in `predictions.csv`
    answer: Verdict
    label: str | None = None  # the true class, if the person named it
    prediction: str = ""  # the class that was shown
    stratify: Stratify = "none"  # how the sample was drawn
    seed: int = 0
    reviewer: str = ""
    time: str = ""

    def is_right(self, prediction: str) -> bool | None:
        """Whether the prediction is right; None if the answer does not tell."""
        if self.answer in ("unsure", "undone"):
            return None
        if self.answer == "other":
            return prediction == UNKNOWN
        if self.label is not None:
            return self.label == prediction
        return False if self.prediction == prediction else None


def now() -> str:
    """The time of an answer."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def current(answers: Iterable[Answer]) -> dict[str, Answer]:
    """The last answer for each sample by name, without those that were withdrawn."""
    last: dict[str, Answer] = {}
    for each in answers:
        last.pop(each.path, None)  # so that the order is that of the answers that count
        last[each.path] = each
    return {name: each for name, each in last.items() if each.answer != "undone"}


class AnswerFile:
    """The answers in a run folder. Several threads and processes may use it at the same time."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / FOLDER
        self._lock = threading.Lock()
        self._known: list[Answer] = []  # the answers in the file up to `_end`
        self._end = 0

    def prepare(self) -> None:
        """Make the folder; a `UserError` if that is not possible, or if it holds links, which we never make."""
        with writing(self.folder, "a run folder that you may write to"):
            self.folder.mkdir(exist_ok=True)
        if self.folder.is_symlink():
            raise UserError(f"{str(self.folder)!r} is a link, which candapt never makes: remove it.")
        require_no_links(self.folder)

    def read(self) -> list[Answer]:
        """Every line in its order; empty if nobody has answered yet. Lines that were read before are not read again."""
        if not (self.folder / LINES).exists():
            return []
        path = contained(self.run, f"{FOLDER}/{LINES}")
        check_file(path, MAX_TABLE)
        if path.stat().st_size < self._end:  # another file lies in its place
            self._known, self._end = [], 0
        with path.open("rb") as file:
            file.seek(self._end)
            whole, newline, cut_off = file.read().rpartition(b"\n")
        self._known += _parsed(whole)
        self._end += len(whole) + len(newline)
        return [*self._known, *_parsed(cut_off)]

    def append(self, answer: Answer) -> None:
        """Store an answer: it is on the disk when this returns. Call it within `exclusive`."""
        path, line = self.folder / LINES, json.dumps(asdict(answer)).encode("ascii") + b"\n"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _PLAIN, 0o666)
        with os.fdopen(descriptor, "rb+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line  # leave a line that was cut off to itself
            file.write(line)
            os.fsync(file.fileno())

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads and processes from adding answers or claims."""
        with self._lock, locked(self.folder, wait=True):
            yield

    def read_claims(self, time: float) -> dict[str, str]:
        """Who looks at which sample right now: reviewers by sample name."""
        path = self.folder / CLAIMS
        try:
            check_file(path, MAX_TABLE)
            content = json.loads(path.read_text(encoding="ascii"))
            fresh = {name: who for name, (who, since) in content.items() if 0 <= time - since < CLAIM_SECONDS}
        except (OSError, ValueError, TypeError, AttributeError):  # none yet, or damaged: nothing depends on them
            return {}
        return {name: who for name, who in fresh.items() if isinstance(who, str)}

    def write_claims(self, claims: dict[str, str], time: float) -> None:
        """Store who looks at which sample."""
        with write_atomically(self.folder / CLAIMS) as part:
            part.write_text(json.dumps({name: (who, time) for name, who in claims.items()}), encoding="ascii")

    def write_table(self) -> Path:
        """Write the answers that count as CSV, and return its path."""
        path = self.folder / TABLE
        with write_atomically(path) as part:
            write_csv(part, list(current(self.read()).values()))
        return path


def _parsed(lines: bytes) -> list[Answer]:
    """The answers in some lines; lines that were cut off or are none of ours are skipped."""
    answers = []
    for line in lines.splitlines():
        with suppress(ValueError, TypeError, RecursionError):
            answers.append(from_plain(Answer, json.loads(line)))
    return answers


COLUMNS = ("path", "label", "answer", "prediction", "stratify", "seed", "reviewer", "time")


def write_csv(path: Path, answers: Sequence[Answer]) -> None:
    """Write answers as CSV; a label that nobody knows is empty. `--known-labels` reads `path` and `label`."""
    with open_table(path) as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(
            {name: "" if value is None else value for name, value in asdict(each).items()} for each in answers
        )


def read_csv(path: Path) -> list[Answer]:
    """Answers from a CSV file with the columns `path` and `label`, and optionally the others of `COLUMNS`.

    Rows without a label count only if their answer says what they mean.
    """
    try:
        check_file(path, MAX_TABLE)
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            missing = {"path", "label"} - set(reader.fieldnames or ())
            rows = [] if missing else list(reader)
    except (OSError, csv.Error, ValueError) as error:
        raise UserError(f"The answers {str(path)!r} cannot be read ({shortened(str(error))}).") from None
    if missing:
        raise UserError(f"{str(path)!r} must be a CSV file with the columns path and label, named in its first line.")
    return [answer for row in rows if (answer := _from_row(row)) is not None]


def _from_row(row: dict[str, Any]) -> Answer | None:
    label, verdict, stratify = row["label"] or None, row.get("answer"), row.get("stratify")
    if verdict not in get_args(Verdict):
        verdict = "wrong" if label is not None else None  # whether it is right, its label says
    if verdict is None or not row["path"] or (verdict == "right" and label is None):
        return None
    drawn = next((kind for kind in STRATIFY if kind == stratify), STRATIFY[0])
    return Answer(row["path"], verdict, label, row.get("prediction") or "", drawn)
