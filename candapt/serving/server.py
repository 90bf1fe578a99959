"""Listening on an address: a socket, bounds on how long a connection may dawdle, and a clean end on a signal."""

import asyncio
import logging
import signal
import socket
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from candapt.errors import UserError
from candapt.serving.guard import is_loopback

log = logging.getLogger(__name__)

HEAD_SECONDS = 20  # within which the head of a request must have arrived
REST_SECONDS = 20  # for which the rest of a request is thrown away after it was answered, so that the answer is read
IDLE_SECONDS = 10  # for which a connection may stay open between two requests
GRACE_SECONDS = 60  # for which requests that are being answered may go on after a signal
MAX_CONNECTIONS = 1000
MAX_PORT = 65_535


def bind(host: str, port: int) -> socket.socket:
    """A socket on an address, which is not listened on yet."""
    if not 0 <= port <= MAX_PORT:
        raise UserError(f"--port is {port}, but must be between 0 and {MAX_PORT}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UserError(f"The address {host!r} with port {port} is unknown: check --host and --port.") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise UserError(f"{host}:{port} cannot be used ({error.strerror}): give another --host or --port.") from None
    return bound


def is_private(bound: socket.socket) -> bool:
    """Whether only this machine can reach a socket."""
    return is_loopback(str(bound.getsockname()[0]))


def address_of(bound: socket.socket) -> str:
    """The address to type into a browser."""
    host, port = bound.getsockname()[:2]
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def listen(app: FastAPI, bound: socket.socket, announcement: str) -> None:
    """Answer requests until a signal comes; then finish those that are under way.

    The announcement is logged as soon as requests are taken.
    """
    make_server(app, announcement).run(sockets=[bound])


def make_server(app: FastAPI, announcement: str = "") -> uvicorn.Server:
    """A server that does not listen yet."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return _Server(config, announcement)


class _Server(uvicorn.Server):
    """Ends without an error when a signal asks it to; uvicorn would raise the signal once more."""

    def __init__(self, config: uvicorn.Config, announcement: str) -> None:
        super().__init__(config)
        self.announcement = announcement

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        if self.announcement:
            log.info("%s", self.announcement)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after the requests that are under way; a second signal does not wait for them."""
        name = signal.Signals(sig).name
        log.info("%s: %s.", name, "stopping at once" if self.should_exit else "finishing what is under way")
        self.force_exit, self.should_exit = self.should_exit, True


class BoundedProtocol(H11Protocol):
    """HTTP with time limits that uvicorn lacks, and a bound on connections.

    A request's head must arrive in time. When a request is answered before all of it has arrived, the rest is thrown
    away, but not without end.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waits_for: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._answer("503 Service Unavailable", "Too many connections are open.", "Retry-After: 1\r\n")
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take the next bytes."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time limit."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the time limit of what the client has to send now; it does not start anew with every byte."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        unread = theirs is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE)
        waits_for = "head" if theirs is h11.IDLE else "rest" if unread else None
        if waits_for != self._waits_for:
            self._stop_waiting()
            self._waits_for = waits_for
            if waits_for is not None and not self.transport.is_closing():
                seconds = HEAD_SECONDS if waits_for == "head" else REST_SECONDS
                self._timer = self.loop.call_later(seconds, self._too_late)

    def _stop_waiting(self) -> None:
        self._waits_for = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if self._waits_for == "head" and self.conn.trailing_data[0]:
            self._answer("408 Request Timeout", f"The request did not begin within {HEAD_SECONDS} s.")
        self.transport.close()

    def _answer(self, status: str, sentence: str, headers: str = "") -> None:
        """An answer that no application gives, and the end of the connection."""
        body = f'{{"error":"{sentence}","files":[]}}'
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}"
        self.transport.write(f"{head}Connection: close\r\n\r\n{body}".encode("ascii"))
        self.transport.close()
