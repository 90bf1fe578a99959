"""Connections that dawdle: no application sees them, so the protocol itself must end them."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from fastapi import FastAPI

from candapt.serving import server
from tests.serving.shared import PATIENCE

Connect = Callable[[], socket.socket]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Connections to a server with short limits, whose only answer comes before anything of a body is read."""
    for name, value in {"HEAD_SECONDS": 1, "REST_SECONDS": 1, "MAX_CONNECTIONS": 3}.items():
        monkeypatch.setattr(server, name, value)
    app = FastAPI()
    app.add_api_route("/", lambda: "early", methods=["POST"])
    bound = server.bind("127.0.0.1", 0)
    address = bound.getsockname()
    running = server.make_server(app)
    thread = threading.Thread(target=lambda: running.run(sockets=[bound]))
    thread.start()
    end = time.monotonic() + PATIENCE
    while not running.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    opened: list[socket.socket] = []

    def one() -> socket.socket:
        opened.append(socket.create_connection(address, timeout=PATIENCE))
        return opened[-1]

    yield one
    for each in opened:
        each.close()
    running.should_exit = True
    thread.join()


def everything(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    answer = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            answer += part
    return answer


def error(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"])


def test_a_head_that_never_ends(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nX: ")
    answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert error(answer) == "The request did not begin within 1 s."


def test_a_connection_that_says_nothing(connect: Connect) -> None:
    assert everything(connect()) == b""


def test_a_second_head_that_never_ends(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\nPOST / HT")
    answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


def test_the_rest_of_a_body_that_never_ends(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    stopped = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            while not stopped.wait(0.1):
                connection.sendall(b"x")

    sender = threading.Thread(target=drip)
    sender.start()
    everything(connection)
    stopped.set()
    sender.join()


def test_too_many_connections(connect: Connect) -> None:
    first = [connect() for _ in range(3)]
    for each in first:  # accepted once they are answered
        each.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert each.recv(65536).startswith(b"HTTP/1.1 200 ")
    answer = everything(connect())
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in answer
    assert error(answer) == "Too many connections are open."
