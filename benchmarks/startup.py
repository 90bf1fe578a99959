"""Processor time until the command line answers: `python -m benchmarks.startup`.

Each command runs in a fresh process, once to warm the file cache and then `--repetitions` times; the median counts.
"""

import argparse
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.record import record

COMMANDS = {
    "candapt --help": ["-m", "candapt", "--help"],
    "candapt --version": ["-m", "candapt", "--version"],
    "candapt adpt (misspelled)": ["-m", "candapt", "adpt"],
    "import candapt": ["-c", "import candapt"],
    "python -c pass": ["-c", "pass"],
    "from candapt.losses import contrastive_domain_discrepancy": [
        "-c",
        "from candapt.losses import contrastive_domain_discrepancy",
    ],
    "import torch": ["-c", "import torch"],
    "candapt adapt --help": ["-m", "candapt", "adapt", "--help"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    repetitions = parser.parse_args().repetitions
    seconds = {}
    for name, arguments in COMMANDS.items():
        times = [processor_seconds(arguments) for _ in range(repetitions + 1)][1:]
        seconds[name] = round(statistics.median(times), 3)
        print(f"{seconds[name]:.3f} s  {name}")
    record("startup", {"repetitions": repetitions, "seconds": seconds})


def processor_seconds(arguments: Sequence[str]) -> float:
    """User and system time of a Python process with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
