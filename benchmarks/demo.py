"""The demonstration with three seeds: `python -m benchmarks.demo`."""

import tempfile
from pathlib import Path

from benchmarks.record import record
from candapt.commands.demo import DemoOptions, run
from candapt.console import show_log

SEEDS = (0, 1, 2)


def main() -> None:
    show_log()
    with tempfile.TemporaryDirectory() as folder:
        runs = [run(DemoOptions(Path(folder, str(seed)), seed)) for seed in SEEDS]
        record("demo", {"seeds": SEEDS, "runs": runs})


if __name__ == "__main__":
    main()
