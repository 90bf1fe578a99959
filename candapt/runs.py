"""A run folder: everything that one training made, in open formats."""

import csv
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from candapt.errors import UserError
from candapt.files import write_atomically
from candapt.settings import Settings

PACKAGES = ("candapt", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn")


class RunFolder:
    """The files of one run. The folder is claimed before any work is done, and nothing in it is ever overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def check(path: Path) -> None:
        """Refuse a folder that cannot be claimed, without touching anything."""
        if path.is_dir() and any(path.iterdir()):
            raise UserError(f"{str(path)!r} already holds files: give another folder by --out; nothing was changed.")
        nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise UserError(f"{str(path)!r} cannot be written below {str(nearest)!r}: give another folder by --out.")

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Claim a new or empty folder."""
        cls.check(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "log.txt").touch()
            (path / "checkpoints").mkdir()
        except OSError as error:
            raise UserError(
                f"{str(path)!r} cannot be written ({error.strerror}): give another folder by --out."
            ) from None
        return cls(path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Everything that is needed to make the run again."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        with write_atomically(self.path / "config.yaml") as part:
            part.write_text(f"# Run again with: candapt adapt --config config.yaml --out NEW\n{text}", encoding="utf-8")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """One line for one round."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def write_broken(self, broken: Sequence[tuple[Path, str]]) -> None:
        """List the image files that were left out, if there are any."""
        if broken:
            path = self.path / "left-out.csv"
            with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
                csv.writer(file).writerows([("path", "reason"), *((str(name), reason) for name, reason in broken)])

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The outcome in short."""
        write_json(self.path / "summary.json", summary)


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
