"""`candapt demo`: from digits rendered with fonts to digits written by hand, all of it shipped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from candapt.assessment import BASELINE, Baseline, as_baseline
from candapt.benchmark.suites import SUITES
from candapt.commands import adapt
from candapt.commands.parser import parse_options
from candapt.console import output
from candapt.data.digits import handwritten_digits, write_demo_data
from candapt.evaluation.metrics import accuracy
from candapt.presets import make_settings
from candapt.storage.files import write_json
from candapt.storage.runs import RunFolder

MAP_POINTS = 400
"""Digits of each domain on the maps, fewer than usual: there are two runs, and the demonstration is to be short."""
SCORED = 5
"""Rounds of the source-only run from one that is scored to the next: it does not cluster, and would pass over both
domains for nothing else."""
TITLE = "Demonstration: from rendered to handwritten digits"


@dataclass(frozen=True)
class DemoOptions:
    """Options of `candapt demo`."""

    out: Path = Path("demo")
    """Folder for the two runs and their summary."""
    seed: int = 0
    """Seed of every random draw."""
    report: bool = True
    """Write report.html for each run and for both."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    run(parse_options(DemoOptions, "demo", arguments))


def run(options: DemoOptions) -> dict[str, dict[str, float]]:
    """Write the data, adapt with source-only and CAN, and show both; target labels are used for the table alone."""
    out, data = options.out, options.out / "data"
    RunFolder.check(out)
    write_demo_data(data, options.seed)
    truth = handwritten_digits()[1]
    summary: dict[str, dict[str, float]] = {}
    baseline: Baseline | None = None
    for method, every in ((BASELINE, SCORED), ("can", 1)):
        changes = {**SUITES["demo"].changes, "training.score_every": every}
        training = adapt.AdaptOptions(
            data / "rendered.npz",
            data / "handwritten.npz",
            make_settings(method, seed=options.seed, changes=changes),
            baseline=method != BASELINE,
            report=options.report,
            map_points=MAP_POINTS,
            out=out / method,
        )
        result = adapt.run(training, baseline)
        assert result is not None  # the folder is new
        baseline = baseline or as_baseline(result)
        summary[method] = {
            "accuracy": accuracy(truth, result.predictions.labels),
            "seconds": round(result.seconds, 2),
            "rounds": len(result.history),
        }
    write_json(out / "summary.json", summary)
    show(summary, out)
    if options.report:
        from candapt.report import write_comparison

        measured = [row["accuracy"] for row in summary.values()]
        page = write_comparison([out / name for name in summary], out / "report.html", TITLE, measured)
        output.print(f"Report: {page}")
    return summary


def show(summary: dict[str, dict[str, float]], out: Path) -> None:
    """Print a table."""
    table = Table("method", "accuracy on handwritten digits", "rounds", "seconds")
    for method, row in summary.items():
        table.add_row(method, f"{row['accuracy']:.1%}", f"{row['rounds']}", f"{row['seconds']:.1f}")
    output.print(table)
    output.print("The accuracy was measured with the target's labels, which no training saw.")
    output.print(f"Run folders: {out / 'source-only'} and {out / 'can'}")
