"""Pages that show a run, several runs side by side, or a benchmark: each one HTML file that opens offline."""

from collections.abc import Sequence
from pathlib import Path

from candapt.report.comparison import comparison_page
from candapt.report.page import write_page
from candapt.report.run_data import damage_explained, read_run
from candapt.report.run_page import run_page

FILE = "report.html"


def write_report(run: Path, out: Path | None = None, *, pictures: bool = True) -> Path:
    """Write the page of a run, by default in its folder, and return the path; an existing page is replaced.

    With pictures, images are read from where the run's configuration says that they are.
    """
    path, content = out or run / FILE, read_run(run, pictures=pictures)
    with damage_explained(run):
        page = run_page(content)
    write_page(path, page)
    return path


def write_comparison(
    runs: Sequence[Path], out: Path, title: str = "", measured: Sequence[float] = (), *, pictures: bool = True
) -> Path:
    """Write one page that compares two or more runs, and return its path.

    Args:
        runs: run folders.
        out: file to write.
        title: of the page; by default the task.
        measured: accuracy of each run by true labels that the runs themselves did not have.
        pictures: whether to read images from where the runs' configurations say that they are.
    """
    contents = [read_run(run, pictures=pictures) for run in runs]
    with damage_explained(*runs):
        page = comparison_page(contents, title, measured)
    write_page(out, page)
    return out
