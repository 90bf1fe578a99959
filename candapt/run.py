"""Runs in Python: `adapt` does what the command `candapt adapt` does, and gives the run that it wrote."""

import csv
from collections.abc import Callable
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from candapt.commands.adapt import adapt_parser, options_of, with_folder
from candapt.commands.adapt import run as run_command
from candapt.commands.predict import model_reading
from candapt.console import shown_log
from candapt.data.memory import domain_of
from candapt.errors import UserError
from candapt.model import Model, PredictionRow, load
from candapt.storage.safe_reading import MAX_TABLE, check_file, contained, read_json, read_yaml, shortened

Content = TypeVar("Content")


def adapt(
    source: str | PathLike[str] | None = None,
    target: str | PathLike[str] | None = None,
    *,
    out: str | PathLike[str] | None = None,
    method: str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> "Run":
    """Train on a labeled source and an unlabeled target, into a run folder, as `candapt adapt` does.

    Args:
        source: a folder with one subfolder per class, a `.txt` list or an `.npz` file.
        target: a folder of images, a `.txt` list or an `.npz` file; labels are never read.
        out: the new run folder; by default a new one under `runs/`.
        method: a name in `candapt.METHODS`; by default `can`.
        quiet: show neither log nor progress; `log.txt` in the run folder has the log all the same.
        **settings: flags of the command by name, with `_` for a dash and `__` for a dot: `rounds=5`, `strict=True`,
            `weights="resnet50.safetensors"`, `can__weight=0.5`, or `**{"can.weight": 0.5}`.

    Raises:
        UserError: something that the caller can fix: a missing file, an unknown setting, a folder that is not empty.
    """
    own = {"source": source, "target": target, "out": out, "method": method}
    for name in ("source", "target"):
        if not isinstance(own[name], str | PathLike | None):
            raise UserError(f"{name} must be a path: arrays and lists are for candapt.DomainAdaptationClassifier.")
    parser = adapt_parser()
    given = parser.from_keywords({name: value for name, value in own.items() if value is not None} | settings)
    options = with_folder(options_of(parser, given))
    with shown_log(quiet=quiet):
        run_command(options)
    return Run(options.out or Path())


def load_run(path: str | PathLike[str]) -> "Run":
    """The finished run in a folder, which `candapt adapt` or `adapt` wrote."""
    return Run(Path(path))


class Run:
    """A finished run: everything that one training left in a folder.

    Attributes:
        path: the run folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "summary.json").is_file():
            reason = "holds no finished run (no summary.json)"
            raise UserError(f"{str(path)!r} {reason}: give a folder made by `candapt adapt`.")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def report(self) -> Path:
        """The page of the run, `report.html`."""
        page = self.path / "report.html"
        if not page.is_file():
            raise UserError(f"{str(self.path)!r} has no page: make it by `candapt report {self.path}`.")
        return page

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The outcome: warnings, the estimated accuracy, the round kept, times and more (`summary.json`)."""
        return self._read("summary.json", read_json)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings of the run (`config.yaml`)."""
        return self._read("config.yaml", read_yaml)

    @cached_property
    def predictions(self) -> list[PredictionRow]:
        """The prediction for each target sample (`predictions.csv`); `pandas.DataFrame(...)` makes a table of them."""
        return self._read("predictions.csv", _read_predictions)

    @cached_property
    def model(self) -> Model:
        """The adapted classifier, for features and the probabilities of all classes."""
        return load(self.path)

    def predict(self, samples: Any, *, strict: bool = False) -> list[PredictionRow]:
        """The prediction for each of other samples from the target domain.

        Args:
            samples: a folder, a `.txt` list, an `.npz` file, a list of image paths, an array or data frame of features,
                or a `Domain`: whatever the run was trained on.
            strict: raise for files in a folder that do not decode, rather than leave them out.
        """
        with model_reading(self.model, strict=strict) as reading:
            domain = domain_of(samples, reading)
        model = self.model
        return model.predict(domain).rows(model.classes, name_unknown=model.names_unknown)

    def _read(self, name: str, reader: Callable[[Path], Content]) -> Content:
        """A file of the folder, which may come from a stranger."""
        try:
            return reader(contained(self.path, name))
        except (OSError, TypeError, ValueError, LookupError, csv.Error) as error:
            raise UserError(f"{name} in {str(self.path)!r} cannot be read ({shortened(str(error))}).") from None


def _read_predictions(path: Path) -> list[PredictionRow]:
    """The lines of a `predictions.csv`; in those of version 0.1 the confidence is the softmax."""
    check_file(path, MAX_TABLE)
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return [
            PredictionRow(
                row["path"],
                row["label"],
                float(row["confidence"]),
                float(row.get("softmax", row["confidence"])),
                float(row["unknown"]) if row.get("unknown") else None,
                row["cluster_label"],
                float(row["cluster_distance"]),
                row["kept"] == "1",
            )
            for row in csv.DictReader(file)
        ]
