"""How a result is recorded: with the command, commit, code, versions, processor, threads and date."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from candapt.storage.files import write_json
from candapt.storage.provenance import measured_with
from candapt.storage.runs import versions

RESULTS = Path(__file__).parent / "results"

measured_with()  # reads the commit and the code now: edits during a measurement must not pass for what ran

T = TypeVar("T")
Provenance = dict[str, Any]  # the entries of `measured_with`


def record(name: str, content: dict[str, Any]) -> None:
    """Write `results/NAME.json`.

    Figures that were measured earlier, such as the cells of a benchmark, bring what they were measured with as the
    entry `measured_with`, a list of provenances; the other entries are then about the process that put them together.
    """
    RESULTS.mkdir(exist_ok=True)
    write_json(
        RESULTS / f"{name}.json", {**measured_with(), "cores": os.cpu_count(), "versions": versions(), **content}
    )


def load(name: str) -> dict[str, Any]:
    """One recorded result."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def is_recorded(name: str) -> bool:
    """Whether there is such a result."""
    return (RESULTS / f"{name}.json").exists()


def distinct(items: Sequence[T]) -> list[T]:
    """Each item once, in the order of appearance."""
    return [each for place, each in enumerate(items) if each not in items[:place]]
