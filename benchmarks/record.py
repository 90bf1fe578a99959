"""How a result is recorded: with the command, the versions, the seeds and the date."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from candapt.storage.files import write_json
from candapt.storage.runs import versions

RESULTS = Path(__file__).parent / "results"


def record(name: str, content: dict[str, Any]) -> None:
    """Write `results/NAME.json`."""
    entries = {
        "command": " ".join(["python -m", _module(name), *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **content,
    }
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}.json", entries)


def _module(name: str) -> str:
    """The module that runs; what it records may be called otherwise."""
    spec = sys.modules["__main__"].__spec__
    return f"benchmarks.{name}" if spec is None else spec.name
