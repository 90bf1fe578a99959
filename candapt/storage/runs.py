"""A run folder: everything that one training made, in open formats."""

import csv
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from candapt.errors import UserError
from candapt.settings import Settings
from candapt.storage.files import plain, write_atomically, write_json, writing
from candapt.storage.folders import OutputFolder, names_in
from candapt.storage.safe_reading import read_json, shortened

PACKAGES = ("candapt", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn")
PROVENANCE = "checkpoints/origin.json"  # what a run was started with; its checkpoints are only good with that
LEFT_OUT = "left-out.csv"  # list of image files that do not decode
CANDIDATES = "candidates"  # runs of the methods that `--method auto` compares
TUNING = "tuning.json"  # provenance of `candapt tune`, whose folder holds a config.yaml too, but no run
RUNS = Path("runs")  # where runs go for which the user names no folder


class RunFolder(OutputFolder):
    """The files of one run. `summary.json` is written last: a run that has it is complete."""

    @classmethod
    def check(cls, path: Path, *, resume: bool = False) -> None:
        """Raise a `UserError` if the folder cannot be claimed, or with `resume` holds no run to continue."""
        if resume and not path.is_dir():
            raise UserError(f"There is no run {str(path)!r} to resume: check --out, or start it without --resume.")
        super().check(path, resume=resume)
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise UserError(f"{str(path)!r} cannot be written below {str(existing)!r}: give another folder by --out.")

    @classmethod
    def check_content(cls, path: Path, *, resume: bool) -> None:
        """Raise a `UserError` if the folder holds files, or with `resume` files that no run makes."""
        names, place = names_in(path), str(path)
        if resume and TUNING in names:
            raise UserError(f"{place!r} holds trials of `candapt tune` and no run: give another folder by --out.")
        if resume and not names & {"config.yaml", CANDIDATES} and names - {"log.txt", "checkpoints", "auto.yaml"}:
            raise UserError(f"{place!r} holds no run (no config.yaml): give a folder made by `candapt adapt`.")
        if names and not resume:
            unfinished = bool(names & {"config.yaml", CANDIDATES}) and TUNING not in names and not cls(path).complete
            hint = "--resume to continue the run in it, or " if unfinished else ""
            raise UserError(f"{place!r} already holds files: give {hint}another folder by --out; nothing was changed.")

    def prepare(self) -> None:
        """Make what every run folder has."""
        with writing(self.path, "another folder by --out"):
            super().prepare()
            if not (self.path / "log.txt").exists():
                (self.path / "log.txt").touch()
            (self.path / "checkpoints").mkdir(exist_ok=True)

    @property
    def complete(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "summary.json").is_file()

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Store what the run was started with."""
        write_json(self.path / PROVENANCE, provenance)

    def read_provenance(self) -> dict[str, Any] | None:
        """What the run was started with; None if it was stopped before that was written."""
        path = self.path / PROVENANCE
        try:
            return read_json(path) if path.is_file() else None
        except (OSError, ValueError) as error:
            reason = shortened(str(error))
            raise UserError(f"{str(path)!r} cannot be read ({reason}): remove it to resume without a check.") from None

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write everything that is needed to repeat the run."""
        write_config(self.path / "config.yaml", config, "Run again with: candapt adapt --config config.yaml --out NEW")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add the line of one round; lines from that round on, left by a killed process, are replaced."""
        path = self.path / "metrics.jsonl"
        before = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        with write_atomically(path) as part:
            part.write_bytes(b"".join([*before[: record["round"]], json.dumps(record).encode(), b"\n"]))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the outcome; the run is complete from here on."""
        write_json(self.path / "summary.json", summary)


def new_run_path(method: str) -> Path:
    """A folder that does not exist yet, named by method and time."""
    name = f"{method}-{datetime.now():%Y%m%d-%H%M%S}"
    candidates = (RUNS / (f"{name}-{number}" if number else name) for number in range(1000))
    return next(path for path in candidates if not path.exists())


def write_config(path: Path, config: Mapping[str, Any], comment: str) -> None:
    """Write a configuration for `candapt adapt --config`, with a comment on top."""
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    with write_atomically(path) as part:
        part.write_text(f"# {comment}\n{text}", encoding="utf-8")


def write_left_out(folder: Path, left_out: Sequence[tuple[Path, str]]) -> None:
    """List the image files that cannot be used, if there are any, each with the reason."""
    if left_out:
        with (folder / LEFT_OUT).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            csv.writer(file).writerows([("path", "reason"), *left_out])


def describe_settings(settings: Settings) -> dict[str, Any]:
    """Settings as plain values, the method's own under its name, in the order of the flags."""
    names = ("method", "seed", "rounds", "select", "network", "training")
    description = {name: plain(getattr(settings, name)) for name in names}
    own = plain(settings.method_settings) if settings.method_settings is not None else {}
    return description | ({settings.method: own} if own else {})


def versions() -> dict[str, str]:
    """Versions of the packages that decide a result."""
    return {"python": platform.python_version()} | {name: _installed(name) for name in PACKAGES}


_installed = cache(importlib.metadata.version)  # it reads files, and every cell of a benchmark asks
