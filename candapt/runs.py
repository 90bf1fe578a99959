"""A run folder: everything that one training made, in open formats."""

import csv
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from candapt.errors import UserError
from candapt.files import write_atomically
from candapt.locks import NAME as LOCK
from candapt.locks import locked, refuse_if_locked
from candapt.settings import Settings
from candapt.untrusted import read_json, shortened

PACKAGES = ("candapt", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn")
ORIGIN = "checkpoints/origin.json"
"""What a run was started with, beside the checkpoints, which are only good with it."""
LEFT_OUT = "left-out.csv"
"""Image files that do not decode."""
TUNING = "tuning.json"
"""What `candapt tune` was started with; its folder holds a config.yaml too, but no run."""


class RunFolder:
    """The files of one run. The folder is claimed before any work is done, and nothing in it is ever overwritten.

    `summary.json` is written last: a run that has it is complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def check(path: Path) -> None:
        """Refuse a folder that cannot be claimed, without touching anything."""
        refuse_if_locked(path)
        RunFolder._check_free(path)

    @staticmethod
    def _check_free(path: Path) -> None:
        if path.is_dir() and any(entry.name != LOCK for entry in path.iterdir()):
            begun = (path / "config.yaml").is_file() and not (path / TUNING).exists()
            unfinished = begun and not RunFolder(path).complete
            hint = "--resume to go on with the run in it, or " if unfinished else ""
            raise UserError(
                f"{str(path)!r} already holds files: give {hint}another folder by --out; nothing was changed."
            )
        nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise UserError(f"{str(path)!r} cannot be written below {str(nearest)!r}: give another folder by --out.")

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Claim a new or empty folder."""
        cls._check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "log.txt").touch()
            (path / "checkpoints").mkdir()
        except OSError as error:
            raise UserError(
                f"{str(path)!r} cannot be written ({error.strerror}): give another folder by --out."
            ) from None
        return cls(path)

    @classmethod
    @contextmanager
    def claimed(cls, path: Path, *, resume: bool = False) -> Iterator["RunFolder"]:
        """A new run folder, or one to go on with, that no other process writes to meanwhile."""
        if resume:
            cls.check_resumable(path)
        else:
            cls.check(path)
            with suppress(OSError):  # said in a sentence by `create`
                path.mkdir(parents=True, exist_ok=True)
        with locked(path) if path.is_dir() else nullcontext():
            yield cls._reopen(path) if resume else cls.create(path)

    @staticmethod
    def check_resumable(path: Path) -> None:
        """Refuse a folder that holds no run to go on with, without touching anything."""
        if not path.is_dir():
            raise UserError(f"There is no run {str(path)!r} to resume: check --out, or start it without --resume.")
        refuse_if_locked(path)
        names = {entry.name.removesuffix(".part") for entry in path.iterdir()}
        if "config.yaml" not in names and names - {LOCK, "log.txt", "checkpoints"}:
            raise UserError(f"{str(path)!r} holds no run (no config.yaml): give a folder made by `candapt adapt`.")
        if TUNING in names:
            raise UserError(f"{str(path)!r} holds trials of `candapt tune` and no run: give another folder by --out.")
        refuse_links(path)

    @classmethod
    def _reopen(cls, path: Path) -> "RunFolder":
        """Go on in a folder; what a killed process left half written is removed."""
        try:
            (path / "checkpoints").mkdir(exist_ok=True)
            for part in (*path.glob("*.part"), *path.glob("checkpoints/*.part")):
                part.unlink()
        except OSError as error:
            raise UserError(f"{str(path)!r} cannot be written ({error.strerror}): nothing was changed.") from None
        return cls(path)

    @property
    def complete(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "summary.json").is_file()

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Keep what the run was started with."""
        write_json(self.path / ORIGIN, origin)

    def read_origin(self) -> dict[str, Any] | None:
        """What the run was started with; None if it was stopped before that was written."""
        path = self.path / ORIGIN
        if not path.is_file():
            return None
        try:
            return read_json(path)
        except (OSError, ValueError) as error:
            reason = shortened(str(error))
            raise UserError(f"{str(path)!r} cannot be read ({reason}): remove it to go on without a check.") from None

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Everything that is needed to make the run again."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        with write_atomically(self.path / "config.yaml") as part:
            part.write_text(f"# Run again with: candapt adapt --config config.yaml --out NEW\n{text}", encoding="utf-8")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """One line for one round; lines from there on, of a process that was killed, make way."""
        path = self.path / "metrics.jsonl"
        before = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        with write_atomically(path) as part:
            part.write_bytes(b"".join([*before[: record["round"]], json.dumps(record).encode(), b"\n"]))

    def write_broken(self, broken: Sequence[tuple[Path, str]]) -> None:
        """List the image files that were left out, if there are any."""
        if broken:
            with (self.path / LEFT_OUT).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
                csv.writer(file).writerows([("path", "reason"), *((str(name), reason) for name, reason in broken)])

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The outcome in short."""
        write_json(self.path / "summary.json", summary)


def refuse_links(folder: Path) -> None:
    """Refuse links and pipes in a folder that is to be written to: they may lead out of it, or never end."""
    for entry in sorted(folder.rglob("*")):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            kind = "a link" if entry.is_symlink() else "no plain file"
            name = str(entry.relative_to(folder))
            raise UserError(f"{name!r} in {str(folder)!r} is {kind}, which no run makes: put the file itself there.")


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON; names stay readable, odd bytes in them survive."""
    with write_atomically(path) as part:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=True) + "\n", encoding="utf-8")


def describe_settings(settings: Settings) -> dict[str, Any]:
    """Settings as plain values, the method's own under its name, in the order of the flags."""
    told = {
        "method": settings.method,
        "seed": settings.seed,
        "rounds": settings.rounds,
        "select": settings.select,
        "network": plain(settings.network),
        "training": plain(settings.training),
    }
    own = plain(settings.adaptation) if settings.adaptation is not None else {}
    return told | ({settings.method: own} if own else {})


def leaves(tree: Any, name: str = "") -> dict[str, Any]:
    """Leaves of nested dictionaries by dotted name."""
    if not isinstance(tree, dict):
        return {name: tree}
    found: dict[str, Any] = {}
    for key, branch in tree.items():
        found |= leaves(branch, f"{name}.{key}" if name else key)
    return found


def plain(value: Any) -> Any:
    """Dataclasses, tuples and paths, which become absolute, as YAML and JSON know them."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return os.path.abspath(value) if isinstance(value, os.PathLike) else value


def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
