"""`candapt report`: the page of a run, or one that compares several."""

import logging
from collections.abc import Sequence
from pathlib import Path

from candapt.commands.writing import refuse_existing
from candapt.errors import UserError

log = logging.getLogger(__name__)


def report(runs: Sequence[Path], out: Path | None = None, *, pictures: bool = True) -> None:
    """Make the page of a run, or one page that compares several; without pictures nothing but the folders is read."""
    from candapt.report import write_comparison, write_report  # Plotly takes seconds to import

    if out is not None:
        refuse_existing(out)
    if len(runs) > 1 and out is None:
        raise UserError("Several runs have no common folder: say by --out which file is to compare them.")
    if len(runs) == 1:
        path = write_report(runs[0], out, pictures=pictures)
    else:
        path = write_comparison(runs, out or Path(), pictures=pictures)
    log.info("Report: %s", path)
