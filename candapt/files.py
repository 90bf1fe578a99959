"""Writing files so that a reader never meets half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Give a path beside the wanted one to write to; on success it is flushed to disk and takes the wanted name."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
