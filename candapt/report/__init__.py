"""Pages that show a run, several runs side by side, or a benchmark: each one HTML file that opens offline."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from candapt.errors import UserError
from candapt.report.collect import read_run
from candapt.report.comparison import comparison_page
from candapt.report.page import write_page
from candapt.report.run_page import run_page
from candapt.untrusted import shortened

FILE = "report.html"


def write_report(run: Path, out: Path | None = None, *, pictures: bool = True) -> Path:
    """Make the page of a run; by default in its folder, where it replaces the one before.

    Args:
        run: run folder.
        out: file to write.
        pictures: show images from where the run's configuration says that they are.
    """
    path, found = out or run / FILE, read_run(run, pictures=pictures)
    with _damage_told(run):
        page = run_page(found)
    write_page(path, page)
    return path


def write_comparison(
    runs: Sequence[Path],
    out: Path,
    title: str | None = None,
    measured: Sequence[float] | None = None,
    *,
    pictures: bool = True,
) -> Path:
    """Make one page that compares runs.

    Args:
        runs: run folders, two or more.
        out: file to write.
        title: of the page; by default the task.
        measured: accuracy of each by true labels, for an oracle that the runs themselves did not have.
        pictures: show images from where the runs' configurations say that they are.
    """
    found = [read_run(run, pictures=pictures) for run in runs]
    with _damage_told(*runs):
        page = comparison_page(found, title, measured)
    write_page(out, page)
    return out


@contextmanager
def _damage_told(*runs: Path) -> Iterator[None]:
    """Say in a sentence that a run folder's values are not what a training writes, by whatever it is noticed."""
    try:
        yield
    except UserError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = shortened(f"{type(error).__name__}: {error}", 160)
        raise UserError(f"The run in {str(runs[0])!r}, or one beside it, is damaged ({reason}).") from error
