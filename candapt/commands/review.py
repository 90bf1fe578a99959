"""`candapt review`: a page on which a person checks a random sample; gives the accuracy with a confidence interval."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from candapt.commands.parser import parse_options, positional
from candapt.commands.report import report
from candapt.console import output
from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.report.run_data import Run, read_run
from candapt.report.thumbnails import thumbnails_of
from candapt.review.answers import AnswerFile, read_csv
from candapt.review.measurement import ENOUGH, Measurement, measure_answers, percent
from candapt.review.server import ReviewServer
from candapt.review.session import Plan, Session
from candapt.storage.interruption import Interrupted, Interruption

log = logging.getLogger(__name__)

SIDE = 960  # largest width and height of a picture on the page in pixels


@dataclass(frozen=True)
class ReviewOptions:
    """Options of `candapt review`."""

    run: Path = positional()
    """Run folder."""
    number: int = 50
    """Answers after which the page shows the outcome; you can go on after that."""
    stratify: Literal["none", "confidence", "class"] = "confidence"
    """confidence: draw equally many from each quarter by confidence; class: from each predicted class in proportion to
    its size; none: from all alike."""
    seed: int = 0
    """Seed of the random sample."""
    port: int = 0
    """Port of the page on this machine; 0 for any free one."""
    estimate: Path | None = None
    """CSV file with answers (path,label): compute the accuracy from it, without the page; nothing is written."""
    report: bool = True
    """Make the run's page again at the end, with the outcome in it."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    run(parse_options(ReviewOptions, "review", arguments))


def run(options: ReviewOptions) -> Measurement:
    """Serve the page until Ctrl-C, or compute the accuracy from a file; prints the outcome and returns it."""
    if options.number < 1:
        raise UserError(f"--number is {options.number}, but must be at least 1.")
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}, but must be at least 0.")
    reviewed = read_run(options.run)
    if not reviewed.population.rows:
        raise UserError(f"Labels of all samples steered the run in {str(options.run)!r}: none is left to measure with.")
    if options.estimate is None:
        return _serve(options, reviewed)
    measured = measure_answers(reviewed.population, read_csv(options.estimate))
    if measured.interval is None:
        reasons = " ".join(measured.remarks) or "It has no answers."
        raise UserError(f"{str(options.estimate)!r} measures no accuracy of this run. {reasons}")
    show(measured)
    return measured


def _serve(options: ReviewOptions, reviewed: Run) -> Measurement:
    answers, thumbnails = AnswerFile(options.run), thumbnails_of(reviewed)[Side.TARGET]
    answers.prepare()
    estimate = reviewed.section("estimated_accuracy")
    shown = {name: value for name in ("value", "low", "high") if isinstance(value := estimate.get(name), int | float)}
    session = Session(
        reviewed.population,
        reviewed.classes,
        answers,
        Plan(options.number, options.stratify, options.seed),
        title=reviewed.task,
        estimate=shown if len(shown) == 3 else {},
        picture=lambda name: thumbnails.jpeg(name, SIDE),
    )
    before = len(answers.read())
    with Interruption(), ReviewServer(session, options.port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log.info("Judge %d predictions of %s in a browser on this machine.", options.number, reviewed.task)
        output.print(f"Open {server.address}", markup=False)
        log.info("Ctrl-C ends the review; every answer is stored at once.")
        try:
            wait_for_signal()
        except Interrupted:
            server.shutdown()
    with answers.exclusive():
        answers.write_table()
    measured = session.measure()
    show(measured)
    if options.report and len(answers.read()) != before:
        report([options.run])
    return measured


def wait_for_signal() -> None:
    """Wait until a signal raises `Interrupted`."""
    threading.Event().wait()


def show(measured: Measurement) -> None:
    """Print the outcome, and the classes that have enough answers."""
    output.print(measured.sentence, markup=False)
    for remark in measured.remarks:
        output.print(remark, markup=False)
    if measured.classes:
        table = Table("predicted class", "right", "accuracy", "between")
        for each in measured.classes:
            value, low, high = map(percent, each.interval)
            table.add_row(each.name, f"{each.right} of {each.judged}", value, f"{low} and {high}")
        output.print(table)
        output.print(f"Classes with fewer than {ENOUGH} answers are not listed.")
