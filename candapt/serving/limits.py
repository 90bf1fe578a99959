"""How much a request may bring, and how much may wait."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from candapt.errors import UserError
from candapt.serving.refusal import busy

MIB = 2**20
VALUE_BYTES = 32  # of JSON for each number: a double precision number takes at most 24 characters, and a comma
PAUSE = 1  # seconds after which a sender may try again if the memory for uploads is full


@dataclass(frozen=True)
class Limits:
    """Bounds of one request, and of all that are being worked on."""

    samples: int = 32  # of one request
    file_bytes: int = 20 * MIB
    request_bytes: int = 64 * MIB
    upload_bytes: int = 512 * MIB  # of all requests together that are not answered yet
    pixels: int = 50_000_000  # of one image
    seconds: float = 60.0  # within which a request must have arrived
    queue: int = 512  # samples that wait or are worked on
    batch: int = 16  # samples that the network takes at once

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise UserError(f"The limit of {name.replace('_', ' ')} is {value}, but must be above 0.")
        if self.queue < self.samples:
            raise UserError(f"A queue of {self.queue} cannot hold a request of {self.samples} samples: raise --queue.")
        if not self.file_bytes <= self.request_bytes <= self.upload_bytes:
            raise UserError("A file may not be larger than a request, nor that than all uploads together.")

    def json_bytes(self, values: int) -> int:
        """Largest JSON body for samples of so many values: Python needs far more memory for numbers than JSON has."""
        return min(self.request_bytes, 4096 + self.samples * (values * VALUE_BYTES + 512))


class UploadMemory:
    """Counts the bytes of requests that are not answered yet."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def reserved(self) -> Iterator["Reservation"]:
        """A reservation that grows while a request arrives, and ends with its answer."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.used -= reservation.size


class Reservation:
    """The share of one request."""

    def __init__(self, memory: UploadMemory) -> None:
        self.memory, self.size = memory, 0

    def grow(self, size: int) -> None:
        """Add bytes; a `RefusedError` if there is no room for them."""
        if self.memory.used + size > self.memory.limit:
            raise busy("Too many uploads are under way", PAUSE)
        self.memory.used += size
        self.size += size


def waiting_time(samples: int, rate: float) -> int:
    """Whole seconds after which so many samples are probably done, at a rate a second; at least 1, at most a minute.

    >>> waiting_time(100, 40.0), waiting_time(1, 0.0), waiting_time(10_000, 1.0)
    (3, 1, 60)
    """
    return min(60, max(1, math.ceil(samples / rate) if rate > 0 else 1))
