"""The server answers those who know the address, on this machine, and nobody else."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from candapt.errors import UserError
from candapt.review.server import MAX_BODY, ReviewServer
from tests.review.made import CLASSES, served, session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReviewServer]:
    with served(session(tmp_path_factory.mktemp("run"))) as started:
        yield started


def ask(
    server: ReviewServer, path: str, values: Any = None, *, token: str | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Status, body and headers of a request below the token."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    method = "GET" if values is None else "POST"
    body = values if isinstance(values, bytes | None) else json.dumps(values).encode()
    kind = {} if values is None else {"Content-Type": "application/json"}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, f"/{server.token if token is None else token}/{path}", body, kind | names)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content, response.headers


def test_it_listens_on_this_machine_only(server: ReviewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address.startswith("http://127.0.0.1:")
    assert len(server.token) >= 32


def test_the_page_and_its_parts(server: ReviewServer) -> None:
    for path, kind in (("", "text/html"), ("review.css", "text/css"), ("review.js", "text/javascript")):
        status, body, headers = ask(server, path)
        assert (status, headers.get_content_type()) == (200, kind)
        assert body
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
    status, body, headers = ask(server, "picture/0")
    assert (status, headers.get_content_type()) == (200, "image/jpeg")
    assert body.startswith(b"\xff\xd8")
    assert tuple(json.loads(ask(server, "about")[1])["classes"]) == CLASSES
    status, body, headers = ask(server, "answers.csv")
    assert (status, headers.get_content_type()) == (200, "text/csv")
    assert body.startswith(b"path,label,answer")


@pytest.mark.parametrize("token", ["", "x", "%C3%A4", "x" * 32])
def test_without_the_token_there_is_nothing(server: ReviewServer, token: str) -> None:
    for values in (None, {"reviewer": "me"}):
        assert ask(server, "show", values, token=token)[0] == 404
        assert ask(server, "", values, token=token)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::", "0.0.0.0"])
def test_other_names_are_refused(server: ReviewServer, host: str) -> None:
    assert ask(server, "", Host=host)[0] == 403
    assert ask(server, "show", {"reviewer": "me"}, Host=host)[0] == 403


def test_a_forwarded_port_is_fine(server: ReviewServer) -> None:
    assert ask(server, "show", {"reviewer": "me"}, Host="localhost:9000", Origin="http://localhost:9000")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_other_sites_are_refused(server: ReviewServer, origin: str) -> None:
    assert ask(server, "show", {"reviewer": "me"}, Origin=origin)[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "x",
        "picture/",
        "picture/300",
        "picture/-1",
        "picture/x",
        "picture/" + "9" * 40,
        "../config.yaml",
        "picture/..%2f1",
    ],
)
def test_other_paths_do_not_exist(server: ReviewServer, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize(
    "values",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 10_000,
        {},
        {"reviewer": ""},
        {"reviewer": "x" * 65},
        {"reviewer": 3},
        {"reviewer": "me"},
        {"reviewer": "me", "row": True, "answer": "right"},
        {"reviewer": "me", "row": 0, "answer": 3},
        {"reviewer": "me", "row": 0, "answer": "wrong", "label": 3},
        {"reviewer": "me", "row": 0, "answer": "wrong", "label": "unicorn"},
        {"reviewer": "me", "row": 10**9, "answer": "right"},
    ],
)
def test_bad_requests_store_nothing(server: ReviewServer, values: Any) -> None:
    status, body, _ = ask(server, "answer", values)
    assert status == 400
    assert json.loads(body)["error"]
    assert server.session.answers.read() == []


def test_requests_are_bounded(server: ReviewServer) -> None:
    assert ask(server, "show", b"x" * (MAX_BODY + 1))[0] == 413
    assert ask(server, "show", {"reviewer": "me"}, Content_Type="text/plain")[0] == 415
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=20) as raw:
        raw.sendall(f"POST /{server.token}/show HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 411")


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviewed = session(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with served(reviewed) as server:
        monkeypatch.setattr(reviewed.answers, "append", fail)
        status, body, _ = ask(server, "answer", {"reviewer": "me", "row": 0, "answer": "right"})
        assert status == 500
        assert "No space left" in json.loads(body)["error"]
        monkeypatch.undo()
        assert ask(server, "answer", {"reviewer": "me", "row": 0, "answer": "right"})[0] == 200


def test_a_port_that_is_taken(server: ReviewServer, tmp_path: Path) -> None:
    for port in (server.server_address[1], 70_000):
        with pytest.raises(UserError, match="give another one by --port"):
            ReviewServer(session(tmp_path), port)
