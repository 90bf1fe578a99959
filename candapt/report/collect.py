"""What a run folder says, as plain data. Nothing is read but the folder."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from candapt.errors import UserError
from candapt.report.domain_map import DomainMap, read_map
from candapt.untrusted import MAX_JSON, MAX_TABLE, check_file, contained, fitted, read_json, read_yaml, shortened


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
    pictures: bool = True
    """Whether images may be shown from where the configuration says that they are."""

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
        return f"{_short(self.source)} → {_short(self.target)}"

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.summary["method"])

    @property
    def oracle(self) -> dict[str, Any] | None:
        """What was measured with true labels, if there were any."""
        found = self.summary.get("oracle")
        return found if isinstance(found, dict) else None


def read_run(folder: Path, *, pictures: bool = True) -> Run:
    """Everything that a page shows of a run."""
    if not (folder / "summary.json").is_file():
        raise UserError(
            f"{str(folder)!r} holds no finished run (no summary.json): give a folder made by `candapt adapt`."
        )
    try:
        model = read_json(contained(folder, "model.json"))
        run = Run(
            folder,
            read_yaml(contained(folder, "config.yaml")),
            read_json(contained(folder, "summary.json")),
            _read_rounds(contained(folder, "metrics.jsonl")),
            fitted(model["classes"], tuple[str, ...], "classes"),
            fitted(model["shape"], tuple[int, ...], "shape"),
            _read_predictions(contained(folder, "predictions.csv")),
            read_map(folder),
            pictures,
        )
        if not run.method or not run.task or not run.predictions:
            raise UserError(f"The run in {str(folder)!r} has no prediction to show.")
    except UserError:
        raise
    except (OSError, LookupError, RecursionError, TypeError, ValueError, csv.Error) as error:
        reason = shortened(f"{type(error).__name__}: {error}", 160)
        raise UserError(f"The run in {str(folder)!r} is damaged ({reason}).") from error
    return run


def _read_rounds(path: Path) -> list[dict[str, Any]]:
    check_file(path, MAX_JSON)
    lines = path.read_text(encoding="utf-8").splitlines()
    return [fitted(json.loads(line), dict, "a round") for line in lines if line.strip()]


def _short(place: Path) -> str:
    """A domain's name: that of its folder or file; `images` alone, as in Office-31, says nothing."""
    return place.parent.name if place.name == "images" and place.parent.name else place.stem


def _read_predictions(path: Path) -> tuple[Prediction, ...]:
    check_file(path, MAX_TABLE)
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return tuple(
            Prediction(
                row["path"], row["label"], float(row["confidence"]), row["cluster_label"], row["kept"] in ("1", "True")
            )
            for row in csv.DictReader(file)
        )
