"""The demonstration with three seeds: `python -m benchmarks.demo`."""

import tempfile
from pathlib import Path

from benchmarks.record import record
from candapt.console import show_log
from candapt.demo import demo

SEEDS = (0, 1, 2)


def main() -> None:
    show_log()
    with tempfile.TemporaryDirectory() as folder:
        record("demo", {"seeds": SEEDS, "runs": [demo(Path(folder, str(seed)), seed) for seed in SEEDS]})


if __name__ == "__main__":
    main()
