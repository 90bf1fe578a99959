"""Pages that show a run, several runs side by side, or a benchmark: each one HTML file that opens offline."""

from collections.abc import Sequence
from pathlib import Path

from candapt.report.collect import read_run
from candapt.report.comparison import comparison_page
from candapt.report.page import write_page
from candapt.report.run_page import run_page

FILE = "report.html"


def write_report(run: Path, out: Path | None = None) -> Path:
    """Make the page of a run; by default in its folder, where it replaces the one before."""
    path = out or run / FILE
    write_page(path, run_page(read_run(run)))
    return path


def write_comparison(
    runs: Sequence[Path], out: Path, title: str | None = None, measured: Sequence[float] | None = None
) -> Path:
    """Make one page that compares runs.

    Args:
        runs: run folders, two or more.
        out: file to write.
        title: of the page; by default the task.
        measured: accuracy of each by true labels, for an oracle that the runs themselves did not have.
    """
    write_page(out, comparison_page([read_run(run) for run in runs], title, measured))
    return out
