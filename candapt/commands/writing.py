"""Files that a command writes where the user says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from candapt.errors import UserError


def refuse_existing(out: Path) -> None:
    """Nothing is ever overwritten."""
    if out.exists():
        raise UserError(f"{str(out)!r} exists already: give another file by --out; nothing was changed.")


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Say in a sentence why a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{str(out)!r} cannot be written ({error.strerror}): give another file by --out.") from None
