"""What a run folder says, as plain data. Nothing is read but the folder."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from candapt.errors import UserError
from candapt.report.domain_map import DomainMap, read_map


class Prediction(NamedTuple):
    """One line of `predictions.csv`."""

    name: str
    label: str
    """Name of the predicted class."""
    confidence: float
    cluster_label: str
    kept: bool


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    """The lines of `metrics.jsonl`."""
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    """Shape of one sample."""
    predictions: tuple[Prediction, ...]
    map: DomainMap | None

    @property
    def name(self) -> str:
        """What the run is called where there are several."""
        return self.folder.absolute().name

    @property
    def source(self) -> Path:
        """Folder or file that the source was read from."""
        return Path(self.config["source"])

    @property
    def target(self) -> Path:
        """Folder or file that the target was read from."""
        return Path(self.config["target"])

    @property
    def task(self) -> str:
        """The task in short."""
        return f"{self.source.stem} → {self.target.stem}"

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.summary["method"])

    @property
    def oracle(self) -> dict[str, Any] | None:
        """What was measured with true labels, if there were any."""
        found = self.summary.get("oracle")
        return found if isinstance(found, dict) else None


def read_run(folder: Path) -> Run:
    """Everything that a page shows of a run."""
    if not (folder / "summary.json").is_file():
        raise UserError(
            f"{str(folder)!r} holds no finished run (no summary.json): give a folder made by `candapt adapt`."
        )
    try:
        model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        run = Run(
            folder,
            yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")),
            json.loads((folder / "summary.json").read_text(encoding="utf-8")),
            [json.loads(line) for line in lines if line.strip()],
            tuple(model["classes"]),
            tuple(model["shape"]),
            _read_predictions(folder / "predictions.csv"),
            read_map(folder),
        )
        if not run.method or not run.task or not run.predictions:
            raise UserError(f"The run in {str(folder)!r} has no prediction to show.")
    except (OSError, LookupError, TypeError, ValueError, csv.Error, yaml.YAMLError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise UserError(f"The run in {str(folder)!r} is damaged ({reason}).") from error
    return run


def _read_predictions(path: Path) -> tuple[Prediction, ...]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return tuple(
            Prediction(
                row["path"], row["label"], float(row["confidence"]), row["cluster_label"], row["kept"] in ("1", "True")
            )
            for row in csv.DictReader(file)
        )
