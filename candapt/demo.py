"""The demonstration: from digits rendered with fonts to digits written by hand, all of it shipped."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table

from candapt.baseline import METHOD as BASELINE
from candapt.baseline import Baseline, as_baseline
from candapt.commands.adapt import adapt
from candapt.commands.job import Job
from candapt.console import output
from candapt.data.digits import handwritten_digits, rendered_digits
from candapt.evaluation.metrics import accuracy
from candapt.presets import make_settings
from candapt.report import write_comparison
from candapt.runs import RunFolder, write_json
from candapt.settings import Settings

RENDERED = 2000
"""Digits in the source."""
SIDE = 16
"""Height and width to which the 8×8 digits are enlarged, so that three poolings are possible."""

MAP_POINTS = 400
"""Digits of each domain on the maps, fewer than usual: there are two runs, and the demonstration is to be short."""
TITLE = "Demonstration: from rendered to handwritten digits"
DEMO: dict[str, Any] = {"rounds": 20, "training.steps": 40}


def demo(out: Path, seed: int, *, report: bool = True) -> dict[str, dict[str, float]]:
    """Write the data, adapt with source-only and CAN, and show both; labels of the target serve the table alone."""
    RunFolder.check(out)
    data = out / "data"
    write_data(data, seed)
    truth = handwritten_digits()[1]
    summary: dict[str, dict[str, float]] = {}
    baseline: Baseline | None = None
    for method in (BASELINE, "can"):
        settings, paths = settings_for(method, seed), (data / "rendered.npz", data / "handwritten.npz")
        job = Job(*paths, settings, baseline=method != BASELINE, report=report, map_points=MAP_POINTS)
        adapted = adapt(job, out / method, baseline=baseline)
        baseline = baseline or as_baseline(adapted, settings)
        summary[method] = {
            "accuracy": accuracy(truth, adapted.predictions.labels),
            "seconds": round(adapted.seconds, 2),
            "rounds": len(adapted.history),
        }
    write_json(out / "summary.json", summary)
    show(summary, out)
    if report:
        measured = [row["accuracy"] for row in summary.values()]
        page = write_comparison([out / name for name in summary], out / "report.html", TITLE, measured)
        output.print(f"Report: {page}")
    return summary


def settings_for(method: str, seed: int) -> Settings:
    """The demonstration's settings: the defaults but for its length."""
    return make_settings(method, seed=seed, changes=DEMO)


def write_data(folder: Path, seed: int) -> None:
    """Write both domains as feature files, for every command to be tried on, and the target's labels beside them."""
    folder.mkdir(parents=True)
    x, y = rendered_digits(RENDERED, seed)
    np.savez_compressed(folder / "rendered.npz", x=enlarge(x), y=y)
    x, y = handwritten_digits()
    np.savez_compressed(folder / "handwritten.npz", x=enlarge(x))
    rows = "".join(f"{row},{label}\n" for row, label in enumerate(y))
    (folder / "handwritten-labels.csv").write_text(f"path,label\n{rows}", encoding="utf-8")


def enlarge(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Images of ink counts from 0 to 16, enlarged by interpolation and scaled to 0 … 1."""
    images = torch.as_tensor(x)[:, None] / 16
    return F.interpolate(images, size=(SIDE, SIDE), mode="bilinear").squeeze(1).numpy()


def show(summary: dict[str, dict[str, float]], out: Path) -> None:
    """A table for the terminal."""
    table = Table("method", "accuracy on handwritten digits", "rounds", "seconds")
    for method, row in summary.items():
        table.add_row(method, f"{row['accuracy']:.1%}", f"{row['rounds']}", f"{row['seconds']:.1f}")
    output.print(table)
    output.print("The accuracy was measured with the target's labels, which no training saw.")
    output.print(f"Run folders: {out / 'source-only'} and {out / 'can'}")
