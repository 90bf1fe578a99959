"""Reading the body of a request: bounded in bytes, files and time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from candapt.serving.limits import Limits, Reservation
from candapt.serving.refusal import RefusedError, shown
from candapt.storage.safe_reading import format_size

MAX_FIELDS = 100  # parts of a form that are no files
MAX_NAME = 255  # characters of a file's name
FORM, JSON = "multipart/form-data", "application/json"

Body = TypeVar("Body")


@dataclass(frozen=True)
class Upload:
    """A file of a request."""

    name: str
    data: bytes


def content_type(request: Request) -> str:
    """Type of the body, in lower case and without parameters."""
    return parse_options_header(request.headers.get("content-type"))[0].decode("latin-1")


async def in_time(read: Callable[[], Awaitable[Body]], seconds: float) -> Body:
    """What is read, if it arrives in time."""
    try:
        async with asyncio.timeout(seconds):
            return await read()
    except TimeoutError:
        sentence = f"The request did not arrive within {seconds:g} s."
        raise RefusedError(408, sentence, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise RefusedError(400, "The connection ended before the request was complete.") from None


async def read_files(request: Request, limits: Limits, reservation: Reservation) -> list[Upload]:
    """The files of a form, in their order."""
    boundary = parse_options_header(request.headers.get("content-type"))[1].get(b"boundary")
    if not boundary:
        raise RefusedError(400, f"The header Content-Type: {FORM} lacks its boundary.")
    form = _Form(limits)
    try:
        parser = MultipartParser(boundary, form.callbacks)  # type: ignore[arg-type]  # its hints have one name per key
        async for chunk in _chunks(request, limits.request_bytes, reservation):
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise RefusedError(400, "The body is no complete form of the type multipart/form-data.") from error
    if not form.complete:
        raise RefusedError(400, "The body is no complete form of the type multipart/form-data.")
    return form.files


async def read_text(request: Request, limit: int, reservation: Reservation) -> bytes:
    """The whole body, of at most `limit` bytes."""
    return b"".join([chunk async for chunk in _chunks(request, limit, reservation)])


async def _chunks(request: Request, limit: int, reservation: Reservation) -> AsyncIterator[bytes]:
    """The body in parts; a `RefusedError` as soon as it is known to be too large."""
    too_large = RefusedError(413, f"The request is larger than the limit of {format_size(limit)}.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise too_large
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limit:
            raise too_large
        reservation.grow(len(chunk))
        yield chunk


@dataclass
class _Form:
    """Collects the files of a form while it arrives; parts without a file name are passed over."""

    limits: Limits
    files: list[Upload] = field(default_factory=list)
    complete: bool = False
    _fields: int = 0
    _header: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    _disposition: bytes = b""
    _name: str | None = None  # of the file that is being read; None in a part that is no file
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    @property
    def callbacks(self) -> dict[str, Callable[..., None]]:
        """What the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._disposition, self._name, self._parts, self._size = b"", None, [], 0

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = bytearray(), bytearray()

    def _end_headers(self) -> None:
        """Decide whether the part is a file, of which there may be so many."""
        options = parse_options_header(self._disposition)[1]
        if b"filename" in options:
            self._name = options[b"filename"].decode("utf-8", "replace")[:MAX_NAME] or f"file {len(self.files) + 1}"
        self._fields += self._name is None
        if len(self.files) >= self.limits.samples and self._name is not None:
            raise RefusedError(413, f"The request has more files than the limit of {self.limits.samples}.")
        if self._fields > MAX_FIELDS:
            raise RefusedError(413, f"The form has more than {MAX_FIELDS} fields that are no files.")

    def _add(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._name is None:
            return
        if self._size > self.limits.file_bytes:
            reason = f"is larger than the limit of {format_size(self.limits.file_bytes)}"
            raise RefusedError(413, f"{shown(self._name)} {reason}.", [(self._name, reason)])
        self._parts.append(data[start:end])

    def _end(self) -> None:
        if self._name is not None:
            self.files.append(Upload(self._name, b"".join(self._parts)))
        self._parts = []

    def _finish(self) -> None:
        self.complete = True
