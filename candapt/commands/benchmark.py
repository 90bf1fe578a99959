"""`candapt benchmark`: run what is missing of a plan and show the tables."""

from pathlib import Path

from candapt.benchmark.plan import Plan
from candapt.benchmark.runner import run
from candapt.benchmark.tables import to_terminal
from candapt.console import fitted, output
from candapt.errors import advising
from candapt.interruption import Interruption


def benchmark(plan: Plan, out: Path, *, jobs: int = 1) -> None:
    """Run a plan into a folder; what is stored there already is not run again."""
    with Interruption(), advising("the same command goes on with the cells that are missing"):
        results = run(plan, out, jobs=jobs)
    output.print(fitted(to_terminal(results), to_terminal(results, turned=True)))
    output.print(f"Tables: {out / 'results.md'} and results.tex; page: {out / 'report.html'}")
