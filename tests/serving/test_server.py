"""A real server in a process of its own: many requests at once, slow and hostile senders, and how it ends."""

import asyncio
import json
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from candapt.commands.main import main
from candapt.data.images import image_domain
from candapt.model import Model
from tests.serving.shared import PATIENCE, Running, form, photo, serving

WORDS = ("--upload-seconds", 3)


@pytest.fixture(scope="module")
def server(photo_run: Path) -> Iterator[Running]:
    with serving(photo_run, *WORDS) as running:
        yield running


def header_of(width: int, height: int, data: bytes) -> bytes:
    """A PNG that declares this size, with these bytes in place of compressed pixels."""
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", data), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def raw(server: Running, request: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


class TestMany:
    def test_200_at_once(self, server: Running, photo_run: Path, photo_model: Model) -> None:
        """None is lost, and each gets its own answer."""
        folder = photo_run.parent / "target"
        domain, _ = image_domain(folder, photo_model.images)
        expected = photo_model.predict(domain)
        files = [(folder / name).read_bytes() for name in domain.names]

        async def ask() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=200)
            async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
                sent = (form((str(number), files[number % len(files)])) for number in range(200))
                return await asyncio.gather(*(client.post(f"{server.address}predict", files=each) for each in sent))

        for number, answer in enumerate(asyncio.run(ask())):
            assert answer.status_code == 200
            (prediction,) = answer.json()["predictions"]
            row = number % len(files)
            assert prediction["name"] == str(number)
            assert prediction["label"] == photo_model.classes[expected.labels[row]]
            assert prediction["softmax"] == pytest.approx(float(expected.softmax[row]), abs=1e-3)

    def test_a_full_queue_loses_nothing_that_tries_again(self, photo_run: Path) -> None:
        async def ask(client: httpx.AsyncClient, address: str, seed: int) -> tuple[str, int]:
            busy = 0
            while True:
                sent = form((str(seed), photo(seed, bright=seed % 2 == 1)))
                answer = await client.post(f"{address}predict", files=sent)
                if answer.status_code == 200:
                    return answer.json()["predictions"][0]["label"], busy
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                busy += 1
                await asyncio.sleep(0.1)

        async def all_of(address: str) -> list[tuple[str, int]]:
            async with httpx.AsyncClient(timeout=PATIENCE, limits=httpx.Limits(max_connections=60)) as client:
                return await asyncio.gather(*(ask(client, address, seed) for seed in range(60)))

        with serving(photo_run, "--queue", 2, "--max-files", 1, "--batch", 1) as running:
            answers = asyncio.run(all_of(running.address))
        assert [label for label, _ in answers] == [("cat", "dog")[seed % 2] for seed in range(60)]
        assert sum(busy for _, busy in answers) > 0


class TestHostile:
    """Each is answered, and the server takes little memory and goes on."""

    @pytest.fixture(autouse=True)
    def _goes_on(self, server: Running) -> Iterator[None]:
        before = server.memory
        yield
        assert server.post(("a.png", photo(0))).json()["predictions"][0]["label"] == "cat"
        assert server.memory - before < 400e6

    def test_a_large_image(self, server: Running) -> None:
        rows = zlib.compress(bytes(10_000 * 30_001), 1)  # 300 MB of black pixels
        answer = server.post(("huge.png", header_of(10_000, 10_000, rows)))
        assert answer.status_code == 413
        assert answer.json()["error"] == "'huge.png' has more pixels than the limit of 50,000,000."

    def test_a_bomb(self, server: Running) -> None:
        bomb = zlib.compress(bytes(100_000_000), 1)
        answer = server.post(("small.png", header_of(10, 10, bomb)))
        assert answer.status_code in (200, 415)  # what is more than the pixels need is never unpacked
        assert server.post(("wide.png", header_of(2**31 - 1, 2**31 - 1, bomb))).status_code == 413
        text = b"zTXt", b"Comment\0\0" + bomb
        body = header_of(10, 10, zlib.compress(bytes(310)))
        chunk = struct.pack(">I", len(text[1])) + b"".join(text) + struct.pack(">I", zlib.crc32(b"".join(text)))
        assert server.post(("text.png", body[:33] + chunk + body[33:])).status_code in (200, 415)

    def test_500_files(self, server: Running) -> None:
        answer = server.post(*((f"{number}.png", photo(number)) for number in range(500)))
        assert answer.status_code == 413
        assert answer.json()["error"] == "The request has more files than the limit of 32."

    def test_a_body_of_gigabytes_is_refused_by_its_length(self, server: Running) -> None:
        head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        answer = raw(server, f"{head}Connection: close\r\nContent-Length: 99999999999\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 413 ")

    def test_a_large_body_is_answered_though_it_is_sent_first(self, server: Running) -> None:
        """Clients that read only after they have sent everything get the answer, not a broken connection."""
        answer = server.post(("large.png", bytes(80_000_000)))
        assert answer.status_code == 413
        assert answer.json()["error"] == "The request is larger than the limit of 64 MiB."

    def test_a_slow_sender(self, server: Running) -> None:
        """Bytes that keep coming do not extend the time."""
        head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            start = '--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
            connection.sendall(f"{head}Content-Length: 100000\r\n\r\n{start}".encode())
            stop = threading.Event()
            sender = threading.Thread(target=drip, args=(connection, stop))
            sender.start()
            answer = b""
            while part := connection.recv(65536):
                answer += part
            stop.set()
            sender.join()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "The request did not arrive within 3 s."

    def test_what_is_not_http(self, server: Running) -> None:
        assert raw(server, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert raw(server, b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 4")


def drip(connection: socket.socket, stop: threading.Event) -> None:
    """Send a byte now and then until the other side has had enough."""
    while not stop.wait(0.2):
        try:
            connection.sendall(b"x")
        except OSError:
            return


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_requests_under_way_are_answered(self, photo_run: Path, number: int) -> None:
        with serving(photo_run, "--batch", 1) as running:
            answers: list[httpx.Response] = []
            many = [(f"{seed}.png", photo(seed)) for seed in range(32)]
            senders = [threading.Thread(target=lambda: answers.append(running.post(*many))) for _ in range(4)]
            for sender in senders:
                sender.start()
            end = time.monotonic() + PATIENCE
            while httpx.get(f"{running.address}health").json()["waiting"] < 96:
                assert time.monotonic() < end
            running.process.send_signal(number)
            for sender in senders:
                sender.join()
            assert running.process.wait(PATIENCE) == 0
        assert [answer.status_code for answer in answers] == [200] * 4
        assert all(len(answer.json()["predictions"]) == 32 for answer in answers)
        assert "Traceback" not in "\n".join(running.lines)

    def test_idle_connections_do_not_delay_it(self, photo_run: Path) -> None:
        with serving(photo_run) as running:
            with socket.create_connection(("127.0.0.1", running.port)), httpx.Client() as client:
                client.get(f"{running.address}health")
                assert running.stop() == 0
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{running.address}health")


class TestToken:
    def test_it_is_needed(self, photo_run: Path) -> None:
        token = "from-the-environment-4711"
        with serving(photo_run, "--host", "0.0.0.0", token=token) as running:
            address = f"http://127.0.0.1:{running.port}/"
            assert httpx.get(f"{address}model").status_code == 401
            assert httpx.get(f"{address}model", headers={"Authorization": f"Bearer {token}"}).status_code == 200
            assert token not in "\n".join(running.lines)


class TestCommand:
    """What is refused before anything is served, in one sentence."""

    @pytest.fixture
    def refused(self, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
        def check(*words: object) -> str:
            assert main(["serve", *map(str, words)]) == 2
            error = capsys.readouterr().err
            assert error.count("\n") == 1
            return error

        return check

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (("--host", "0.0.0.0"), "Other machines can reach 0.0.0.0"),
            (("--host", "0.0.0.0", "--token", "short"), "needs at least 16"),
            (("--token", "with some blanks in it"), "without blanks"),
            (("--token", ""), "needs at least 16"),
            (("--host", "no.such.name.invalid"), "is unknown"),
            (("--host", "203.0.113.1", "--token", "long-enough-for-this"), "cannot be used"),
            (("--port", 99999), "must be between"),
            (("--max-files", 0), "samples is 0"),
            (("--max-files", 600, "--queue", 512), "raise --queue"),
            (("--max-file-mib", 100), "may not be larger"),
            (("--upload-seconds", -1), "seconds is -1"),
        ],
    )
    def test_options(
        self,
        refused: Callable[..., str],
        photo_run: Path,
        words: tuple[object, ...],
        reason: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.delenv("CANDAPT_TOKEN", raising=False)
        assert reason in refused(photo_run, "--port", 0, *words)

    def test_no_run(self, refused: Callable[..., str], tmp_path: Path) -> None:
        assert "holds no finished run" in refused(tmp_path, "--port", 0)

    def test_a_port_in_use(self, refused: Callable[..., str], photo_run: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            assert "cannot be used (Address already in use)" in refused(photo_run, "--port", taken.getsockname()[1])

    def test_without_the_extra(
        self, refused: Callable[..., str], photo_run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        assert "pip install 'candapt[serve]'" in refused(photo_run)
