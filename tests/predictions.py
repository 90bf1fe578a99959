"""Tables of predictions in tests."""

import csv
from pathlib import Path


def rows(path: Path) -> list[dict[str, str]]:
    """The lines of a table by column; names that are not valid Unicode are kept byte for byte."""
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def without_confidence(path: Path) -> list[dict[str, str]]:
    """Predictions but for confidence and `unknown`, which `candapt predict` tells one by one, beside a small bank."""
    own = ("confidence", "unknown")
    return [{name: value for name, value in row.items() if name not in own} for row in rows(path)]
