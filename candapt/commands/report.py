"""`candapt report`: the page of a run, or one that compares several."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from candapt.commands.parser import parse_options, positional
from candapt.errors import UserError
from candapt.storage.files import require_new

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReportOptions:
    """Options of `candapt report`."""

    runs: tuple[Path, ...] = positional(many=True)
    """Run folders."""
    out: Path | None = None
    """HTML file (default for one run: its report.html)."""
    pictures: bool = True
    """Show images from where the run says that they are; false reads nothing outside its folder."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    options = parse_options(ReportOptions, "report", arguments)
    report(options.runs, options.out, pictures=options.pictures)


def report(runs: Sequence[Path], out: Path | None = None, *, pictures: bool = True) -> None:
    """Make the page and the model card of a run, or one page that compares several.

    Without pictures only the run folders are read. With `out` nothing is written to them.
    """
    from candapt.export.card import write_card  # needs torch, for the methods
    from candapt.report import write_comparison, write_report  # Plotly takes seconds to import

    if out is not None:
        require_new(out)
    if len(runs) > 1 and out is None:
        raise UserError("Several runs have no common folder: give the file for their comparison by --out.")
    if len(runs) == 1:
        path = write_report(runs[0], out, pictures=pictures)
    else:
        path = write_comparison(runs, out or Path(), pictures=pictures)
    log.info("Report: %s", path)
    if len(runs) == 1 and out is None:
        write_card(runs[0])
