"""The page of a review, for browsers on this machine only.

The address holds a random token, so that neither other users of the machine nor pages of other sites can answer. The
name that a browser asks for must be that of this machine, so that no other name can be made to lead here.
"""

import json
import logging
import re
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from candapt.errors import UserError, describe_machine_error
from candapt.review.answers import TABLE
from candapt.review.session import Session
from candapt.storage.safe_reading import shortened

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
NAMES = re.compile(rf"({re.escape(HOST)}|localhost)(:\d{{1,5}})?")
"""Names under which a browser may ask, with any port, since it may be forwarded."""
MAX_BODY = 16 * 2**10  # bytes of a request
SECONDS = 60  # that a browser may take to send a request
STATIC = {
    "": ("review.html", "text/html; charset=utf-8"),
    "review.css": ("review.css", "text/css; charset=utf-8"),
    "review.js": ("review.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class RequestError(Exception):
    """A request that gets no answer but this status."""

    def __init__(self, status: HTTPStatus, reason: str = "") -> None:
        super().__init__(reason or status.phrase)
        self.status = status


class ReviewServer(ThreadingHTTPServer):
    """Serves one session at `address`; port 0 takes any free one."""

    daemon_threads = True
    block_on_close = False  # a browser that keeps its connection open must not keep the command from ending

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session, self.token = session, secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "there is no such port"
            raise UserError(f"Port {port} cannot be used ({reason}): give another one by --port.") from None

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes its connection is no news."""
        log.debug("a request was cut off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: ReviewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "candapt", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        """The page, its parts, pictures and the table of answers."""
        self._respond(self._get)

    def do_POST(self) -> None:
        """What a reviewer does."""
        self._respond(self._post)

    def _respond(self, work: Callable[[], tuple[bytes, str]]) -> None:
        try:
            body, kind = work()
            status = HTTPStatus.OK
        except RequestError as error:
            status, (body, kind) = error.status, _json({"error": str(error)})
            self.close_connection = True  # what follows may be the rest of a request that was not read
        except UserError as error:
            status, (body, kind) = HTTPStatus.BAD_REQUEST, _json({"error": str(error)})
        except (OSError, MemoryError) as error:  # a full disk: the answer is not stored, and the page says so
            status, (body, kind) = HTTPStatus.INTERNAL_SERVER_ERROR, _json({"error": describe_machine_error(error)})
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _path(self) -> str:
        """The path below the token; refuses requests under other names and without the token."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not NAMES.fullmatch(host) or origin not in (None, f"http://{host}"):
            raise RequestError(HTTPStatus.FORBIDDEN)
        token, slash, path = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise RequestError(HTTPStatus.NOT_FOUND)
        return path

    def _get(self) -> tuple[bytes, str]:
        path, session = self._path(), self.server.session
        if path in STATIC:
            name, kind = STATIC[path]
            return files("candapt.review").joinpath("static", name).read_bytes(), kind
        if path == "about":
            return _json(_about(session))
        if path == TABLE:
            with session.answers.exclusive():
                return session.answers.write_table().read_bytes(), "text/csv; charset=utf-8"
        if path.startswith("picture/"):
            return self._picture(path.removeprefix("picture/")), "image/jpeg"
        raise RequestError(HTTPStatus.NOT_FOUND)

    def _picture(self, row: str) -> bytes:
        samples = self.server.session.population.samples
        known = row.isascii() and row.isdigit() and len(row) < 12 and int(row) < len(samples)
        picture = self.server.session.picture(samples[int(row)].name) if known else None
        if picture is None:
            raise RequestError(HTTPStatus.NOT_FOUND)
        return picture

    def _post(self) -> tuple[bytes, str]:
        path, session, values = self._path(), self.server.session, self._body()
        reviewer = values.get("reviewer")
        if not isinstance(reviewer, str) or not 0 < len(reviewer) <= 64:
            raise RequestError(HTTPStatus.BAD_REQUEST, "reviewer is missing")
        if path == "show":
            return _json(session.show(reviewer))
        if path == "undo":
            return _json(session.undo(reviewer))
        row, verdict, label = (values.get(name) for name in ("row", "answer", "label"))
        if path != "answer":
            raise RequestError(HTTPStatus.NOT_FOUND)
        if type(row) is not int or not isinstance(verdict, str) or not isinstance(label, str | None):
            raise RequestError(HTTPStatus.BAD_REQUEST, "row, answer or label is of another kind")
        return _json(session.answer(reviewer, row, verdict, label))

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 9):
            raise RequestError(HTTPStatus.LENGTH_REQUIRED)
        if int(length) > MAX_BODY:
            raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if self.headers.get_content_type() != "application/json":
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            values = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise RequestError(HTTPStatus.BAD_REQUEST)
        return values

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the address holds the token."""


def _about(session: Session) -> dict[str, Any]:
    """What stays the same during a review."""
    plan = session.plan
    return {
        "title": shortened(session.title),
        "classes": session.classes,
        "number": min(plan.number, len(session.order)),
        "size": len(session.order),
        "stratify": plan.stratify,
        "estimate": session.estimate,
    }


def _json(content: Any) -> tuple[bytes, str]:
    return json.dumps(content).encode("ascii"), "application/json"
