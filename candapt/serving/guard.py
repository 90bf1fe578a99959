"""Who may ask: checks before anything of a request is read, and headers of every answer."""

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from candapt.errors import UserError
from candapt.serving.refusal import RefusedError

MIN_TOKEN = 16  # characters
OPEN = frozenset({"/", "/docs", "/openapi.json", "/health"})  # paths that need no token: they tell nothing of the model
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}  # of every answer that has no own


@dataclass(frozen=True)
class Access:
    """Which requests are let in."""

    token: str | None = None  # without one, only requests to this very machine

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> RefusedError | None:
        """Why a request is refused; None for one that is let in."""
        host = headers.get("host", "")
        if self.token is None and not is_loopback(_host_name(host)):
            # A page from elsewhere can make its own name lead to this machine; the browser then sends that name.
            return RefusedError(421, "This server answers to localhost alone; a server with a --token has other names.")
        if (origin := headers.get("origin")) is not None and _place(origin) != host.lower():
            return RefusedError(403, "Pages of other servers may not ask this one.")
        if self.token is not None and path not in OPEN and not self._knows(headers.get("authorization", "")):
            challenge = {"WWW-Authenticate": 'Bearer realm="candapt"'}
            return RefusedError(
                401, "A token is needed: send the header Authorization: Bearer TOKEN.", headers=challenge
            )
        return None

    def _knows(self, authorization: str) -> bool:
        """Whether the header has the token; how long that takes does not depend on how much of it is right."""
        scheme, _, given = authorization.partition(" ")
        matches = secrets.compare_digest(given.strip().encode(), (self.token or "").encode())
        return matches and scheme.lower() == "bearer"


def check_token(token: str | None) -> None:
    """Raise a `UserError` for a token that is easy to guess or that no header can carry."""
    if token is None:
        return
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UserError("The token must be made of ASCII letters, digits and signs, without blanks.")
    if len(token) < MIN_TOKEN:
        advice = "make one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        raise UserError(f"The token has {len(token)} characters, but needs at least {MIN_TOKEN}: {advice}.")


def is_loopback(name: str) -> bool:
    """Whether a name or address means this very machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("example.org")
    (True, True, True, False)
    """
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str:
    """Name and port of an origin; empty for one without."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class Guard:
    """Lets requests in or refuses them, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do so."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self.access.refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is not None:
            return await refuse(refusal)(scope, receive, send_guarded)
        return await self.app(scope, receive, send_guarded)


def refuse(refusal: RefusedError) -> JSONResponse:
    """The answer to a request that is refused."""
    headers: dict[str, Any] = refusal.headers
    return JSONResponse(refusal.content, refusal.status, headers)
