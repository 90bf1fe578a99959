"""Requests that are not answered, each with a status and one sentence."""

from collections.abc import Mapping, Sequence

from candapt.data.decoding import BrokenImageError, TooManyPixelsError
from candapt.storage.safe_reading import printable, shortened

MAX_NAME = 200  # characters of a file's name that an answer repeats
MAX_NAMED = 20  # files that one answer lists


class RefusedError(Exception):
    """A request that is not answered, and why."""

    def __init__(
        self,
        status: int,
        sentence: str,
        files: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.files, self.headers = status, sentence, files, dict(headers or {})

    @property
    def content(self) -> dict[str, object]:
        """The body of the answer: the sentence, and the files that it is about, each with the reason."""
        named = [{"name": name, "reason": reason} for name, reason in self.files[:MAX_NAMED]]
        return {"error": self.sentence, "files": named}


def refused_files(broken: Sequence[tuple[str, BrokenImageError]], sent: int) -> RefusedError:
    """The answer to a request of which these files, of all that were sent, cannot be used."""
    name, error = broken[0]
    others = len(broken) - 1
    more = f" {others} more of the {sent} files cannot be used either." if others else ""
    status = 413 if isinstance(error, TooManyPixelsError) else 415
    return RefusedError(status, f"{shown(name)} {error.reason}.{more}", [(name, each.reason) for name, each in broken])


def shown(name: str) -> str:
    """A file's name, perhaps from a stranger, for a sentence."""
    return repr(printable(shortened(name, MAX_NAME)))


def busy(reason: str, seconds: int) -> RefusedError:
    """The answer to a request for which there is no room now."""
    return RefusedError(503, f"{reason}; try again in {seconds} s.", headers={"Retry-After": str(seconds)})
