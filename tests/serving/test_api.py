"""The API without a network: what is answered, what is refused, and how."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from candapt.data.domains import Domain
from candapt.data.images import image_domain
from candapt.model import Model, load
from candapt.serving.api import make_app
from candapt.serving.guard import Access
from candapt.serving.limits import MIB, Limits
from candapt.serving.service import make_service
from tests.serving.shared import form, held_service, photo, png
from tests.toy import Toy

LOCAL = "http://localhost"


def client_of(run: Path, access: Access | None = None, *, pictures: bool = True, **limits: Any) -> TestClient:
    service = make_service(run, load(run), Limits(**limits), pictures=pictures)
    return TestClient(make_app(service, access), base_url=LOCAL)


@pytest.fixture(scope="module")
def photos(photo_run: Path) -> Iterator[TestClient]:
    limits = {"file_bytes": MIB, "request_bytes": 2 * MIB, "pixels": 10_000, "samples": 4}
    with client_of(photo_run, **limits) as client:
        yield client


@pytest.fixture(scope="module")
def vectors(vector_run: Path) -> Iterator[TestClient]:
    with client_of(vector_run, samples=16) as client:
        yield client


def refused(answer: httpx.Response, status: int) -> str:
    """The one sentence of a refusal."""
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert set(content) == {"error", "files"}
    assert content["error"].endswith(".")
    assert "Traceback" not in content["error"]
    return str(content["error"])


class TestImages:
    def test_as_candapt_predict(self, photos: TestClient, photo_run: Path, photo_model: Model) -> None:
        folder = photo_run.parent / "target"
        domain, _ = image_domain(folder, photo_model.images)
        expected = photo_model.predict(domain)
        for row in (0, 5, 13, 23):
            name = domain.names[row]
            answer = photos.post("/predict", files=form((name, (folder / name).read_bytes())))
            (prediction,) = answer.json()["predictions"]
            assert prediction["name"] == name
            assert prediction["label"] == photo_model.classes[expected.labels[row]]
            assert prediction["confidence"] == pytest.approx(float(expected.confidence[row]), abs=1e-3)
            assert prediction["softmax"] == pytest.approx(float(expected.softmax[row]), abs=1e-3)
            assert expected.unknown is not None
            assert prediction["unknown"] == pytest.approx(float(expected.unknown[row]), abs=1e-3)

    def test_many_in_their_order(self, photos: TestClient) -> None:
        sent = [(f"{seed}.png", photo(seed, bright=seed % 2 == 1)) for seed in range(4)]
        predictions = photos.post("/predict", files=form(*sent)).json()["predictions"]
        assert [each["name"] for each in predictions] == [name for name, _ in sent]
        assert [each["label"] for each in predictions] == ["cat", "dog", "cat", "dog"]

    def test_top_and_similar(self, photos: TestClient, photo_run: Path) -> None:
        question = {"top": 1, "similar": 3, "pictures": "true"}
        answer = photos.post("/predict", params=question, files=form(("a.png", photo(7))))
        (prediction,) = answer.json()["predictions"]
        assert [each["label"] for each in prediction["probabilities"]] == ["cat"]
        assert prediction["probabilities"][0]["probability"] == prediction["softmax"]
        similar = prediction["similar"]
        assert [each["label"] for each in similar] == ["cat"] * 3
        assert all((photo_run.parent / "source" / each["name"]).is_file() for each in similar)
        assert all(each["picture"].startswith("data:image/jpeg;base64,") for each in similar)
        assert 1 >= similar[0]["similarity"] >= similar[1]["similarity"] >= similar[2]["similarity"]
        plain = photos.post("/predict", params={"similar": 0}, files=form(("a.png", photo(7)))).json()
        assert plain["predictions"][0]["similar"] == []

    def test_a_source_image_resembles_itself(self, photos: TestClient, photo_run: Path) -> None:
        """The domains are alike here, so the stored samples must be those of the files that are named."""
        source = photo_run.parent / "source"
        for name in ("cat/0.png", "cat/11.png", "dog/3.png"):
            answer = photos.post("/predict", files=form((name, (source / name).read_bytes())))
            assert answer.json()["predictions"][0]["similar"][0]["name"] == name

    @pytest.mark.parametrize("kind", ["JPEG", "WEBP", "TIFF", "GIF", "BMP", "PPM"])
    def test_formats(self, photos: TestClient, kind: str) -> None:
        buffer = BytesIO()
        Image.open(BytesIO(photo(0))).save(buffer, kind)
        assert photos.post("/predict", files=form(("a", buffer.getvalue()))).status_code == 200

    def test_what_is_no_image_is_named(self, photos: TestClient) -> None:
        answer = photos.post("/predict", files=form(("a.png", photo(0)), ("notes.txt", b"hello"), ("b.png", b"")))
        sentence = refused(answer, 415)
        assert sentence.startswith("'notes.txt' is not an image in a known format.")
        assert [each["name"] for each in answer.json()["files"]] == ["notes.txt", "b.png"]

    def test_a_truncated_image_is_named(self, photos: TestClient) -> None:
        answer = photos.post("/predict", files=form(("a.png", photo(1)), ("half.png", photo(0)[:2000])))
        assert refused(answer, 415).startswith("'half.png' cannot be decoded")

    def test_names_cannot_do_harm(self, photos: TestClient) -> None:
        answer = photos.post("/predict", files=form(("\x1b[2J<script>" + "a" * 3000, b"hello")))
        assert len(refused(answer, 415)) < 400
        assert "\x1b" not in answer.json()["error"]
        refused(photos.post("/predict", files=form(("a" * 9000, b"hello"))), 400)  # the parser bounds headers

    @pytest.mark.parametrize(
        ("files", "reason"),
        [
            ([("a.png", b"x" * (MIB + 1))], "'a.png' is larger than the limit of 1 MiB."),
            ([("a", b"x" * MIB), ("b", b"x" * MIB), ("c", b"x")], "The request is larger than the limit of 2 MiB."),
            ([(f"{n}", b"x") for n in range(500)], "The request has more files than the limit of 4."),
            ([("big.png", png(np.zeros((101, 100))))], "'big.png' has more pixels than the limit of 10,000."),
        ],
        ids=["file", "request", "number", "pixels"],
    )
    def test_limits(self, photos: TestClient, files: list[tuple[str, bytes]], reason: str) -> None:
        assert refused(photos.post("/predict", files=form(*files)), 413) == reason

    def test_a_body_without_length_is_counted(self, photos: TestClient) -> None:
        head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'

        def body() -> Iterator[bytes]:
            yield head
            for _ in range(100):
                yield b"x" * 100_000

        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        assert "larger" in refused(photos.post("/predict", content=body(), headers=headers), 413)

    @pytest.mark.parametrize(
        ("kind", "body", "status"),
        [
            ("multipart/form-data", b"", 400),
            ("multipart/form-data; boundary=x", b"hello", 400),
            ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\nhe", 400),
            ("multipart/form-data; boundary=x", b"--x--\r\n", 400),
            (f"multipart/form-data; boundary={'x' * 300}", b"--x--\r\n", 400),
            ("application/json", b'{"samples": []}', 415),
            ("image/png", photo(0), 415),
            ("", b"", 415),
        ],
    )
    def test_other_bodies(self, photos: TestClient, kind: str, body: bytes, status: int) -> None:
        refused(photos.post("/predict", content=body, headers={"Content-Type": kind}), status)

    def test_a_form_of_fields_alone(self, photos: TestClient) -> None:
        fields = {f"field{number}": "value" for number in range(5)}
        assert "no file" in refused(photos.post("/predict", data=fields, files={"": (None, "")}), 400)
        many = [(f"{number}", (None, "value")) for number in range(101)]
        refused(photos.post("/predict", files=many), 413)

    @pytest.mark.parametrize("question", ["top=0", "top=x", "similar=-1", "similar=11", "pictures=perhaps"])
    def test_parameters(self, photos: TestClient, question: str) -> None:
        answer = photos.post(f"/predict?{question}", files=form(("a.png", photo(0))))
        assert question.partition("=")[0] in refused(answer, 422)


class TestUnknown:
    """Objects of no class; the stored samples are made to look like some."""

    @pytest.fixture
    def model(self, photo_model: Model) -> Model:
        calibrator = photo_model.calibrator
        assert calibrator is not None
        assert calibrator.bank_unknown is not None
        return replace(
            photo_model, calibrator=replace(calibrator, bank_unknown=torch.full_like(calibrator.bank_unknown, 0.9))
        )

    @pytest.mark.parametrize(("named", "label"), [(True, "unknown"), (False, "cat")])
    def test_they_are_named_if_the_run_names_them(self, photo_run: Path, model: Model, named: bool, label: str) -> None:
        service = make_service(photo_run, replace(model, names_unknown=named), Limits(), pictures=False)
        with TestClient(make_app(service), base_url=LOCAL) as client:
            (prediction,) = client.post("/predict", files=form(("a.png", photo(0)))).json()["predictions"]
        assert prediction["label"] == label
        assert prediction["unknown"] == pytest.approx(0.9, abs=0.01)
        assert 0.89 <= prediction["confidence"] <= 0.91 if named else prediction["confidence"] <= 0.11
        assert prediction["probabilities"][0]["label"] == "cat"

    def test_where_nothing_tells_them_it_is_null(self, tuned_run: Path) -> None:
        with client_of(tuned_run, pictures=False) as client:
            (prediction,) = client.post("/predict", files=form(("a.png", photo(0)))).json()["predictions"]
        assert prediction["unknown"] is None


class TestSource:
    def test_a_fine_tuned_model_is_compared_after_its_network(self, tuned_run: Path) -> None:
        with client_of(tuned_run) as client:
            assert client.get("/model").json()["similar"] == {"samples": 24, "pictures": True}
            answer = client.post("/predict", files=form(("a.png", photo(0, bright=True))))
        similar = answer.json()["predictions"][0]["similar"]
        assert len(similar) == 5
        assert {each["label"] for each in similar} == {"dog"}

    def test_without_pictures_nothing_outside_is_read(self, photo_run: Path, tuned_run: Path) -> None:
        with client_of(photo_run, pictures=False) as client:
            assert client.get("/model").json()["similar"] == {"samples": 24, "pictures": False}
            answer = client.post("/predict?pictures=true", files=form(("a.png", photo(0))))
        near = answer.json()["predictions"][0]["similar"][0]
        assert (near["name"], near["label"], near["picture"]) == (None, "cat", None)
        with client_of(tuned_run, pictures=False) as client:
            assert client.get("/model").json()["similar"]["samples"] == 0

    @pytest.mark.parametrize("change", ["gone", "one more", "another class", "swapped"])
    def test_a_source_that_has_changed_is_not_named(self, photo_run: Path, tmp_path: Path, change: str) -> None:
        run = copied(photo_run, tmp_path)
        source = tmp_path / "source"
        if change == "one more":
            (source / "cat" / "new.png").write_bytes(photo(9))
        elif change == "another class":
            (source / "cat").rename(source / "bird")
        elif change == "swapped":
            (source / "cat" / "0.png").rename(source / "dog" / "new.png")
        else:
            (source / "cat").rename(tmp_path / "elsewhere")
        with client_of(run) as client:
            answer = client.post("/predict", files=form(("a.png", photo(0))))
        assert {each["name"] for each in answer.json()["predictions"][0]["similar"]} == {None}

    def test_files_that_were_left_out_stay_out(self, photo_run: Path, tmp_path: Path) -> None:
        """Paths in left-out.csv are as they were typed, perhaps relative to another folder."""
        run = copied(photo_run, tmp_path)
        listed = (run / "left-out.csv").read_text()
        (run / "left-out.csv").write_text(listed.replace(str(photo_run.parent), ""))
        with client_of(run) as client:
            assert client.get("/model").json()["similar"] == {"samples": 24, "pictures": True}


def copied(run: Path, folder: Path) -> Path:
    """A copy of a run with its source."""
    shutil.copytree(run, folder / "run")
    shutil.copytree(run.parent / "source", folder / "source")
    config = (run / "config.yaml").read_text()
    (folder / "run" / "config.yaml").write_text(config.replace(str(run.parent / "source"), str(folder / "source")))
    listed = (run / "left-out.csv").read_text()
    (folder / "run" / "left-out.csv").write_text(listed.replace(str(run.parent), str(folder)))
    return folder / "run"


class TestArrays:
    def test_as_candapt_predict(self, vectors: TestClient, vector_model: Model, toy: Toy) -> None:
        expected = vector_model.predict(Domain(toy.target_x[:16]))
        answer = vectors.post("/predict", json={"samples": toy.target_x[:16].tolist()})
        predictions = answer.json()["predictions"]
        assert [each["name"] for each in predictions] == [str(row) for row in range(16)]
        assert [each["label"] for each in predictions] == [vector_model.classes[each] for each in expected.labels]
        confidence = [each["confidence"] for each in predictions]
        assert confidence == pytest.approx(expected.confidence.tolist(), abs=1e-3)
        assert all(int(each["name"]) < 120 for each in predictions[0]["similar"])

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ("", 400),
            ("{", 400),
            ("[" * 20_000, 400),
            ("\udc80", 400),
            ("[]", 422),
            ("null", 422),
            ("{}", 422),
            ('{"samples": 3}', 422),
            ('{"samples": []}', 422),
            ('{"samples": [[1, 2]]}', 422),
            (json.dumps({"samples": [[[1.0]] * 24]}), 422),
            (json.dumps({"samples": [["a"] * 24]}), 422),
            (json.dumps({"samples": [[True] * 24]}), 422),
            (json.dumps({"samples": [[None] * 24]}), 422),
            (json.dumps({"samples": [[float("nan")] * 24]}), 422),
            (json.dumps({"samples": [[1e300] * 24]}), 422),
            (json.dumps({"samples": [[10**400] * 24]}), 422),
            (json.dumps({"samples": [[0] * 24] * 17}), 413),
            (json.dumps({"samples": [[0] * 24] * 5000}), 413),
        ],
    )
    def test_what_is_refused(self, vectors: TestClient, body: str, status: int) -> None:
        content = body.encode("utf-8", "surrogateescape")
        refused(vectors.post("/predict", content=content, headers={"Content-Type": "application/json"}), status)

    def test_images_are_for_other_models(self, vectors: TestClient) -> None:
        assert "application/json" in refused(vectors.post("/predict", files=form(("a.png", photo(0)))), 415)

    def test_small_images_come_as_files_too(self, array_run: Path) -> None:
        bar = np.zeros((64, 64))
        bar[16:48] = 255
        with client_of(array_run) as client:
            assert client.get("/model").json()["input"] == {
                **{"kind": "arrays or images", "shape": [1, 16, 16]},
                **{"resize": None, "mean": None, "std": None},
            }
            files = form(("lying.png", png(bar)), ("standing.png", png(bar.T)))
            by_file = client.post("/predict?pictures=true", files=files).json()["predictions"]
            small = np.stack([bar[::4, ::4], bar.T[::4, ::4]])[:, None] / 255 * 9
            by_array = client.post("/predict", json={"samples": small.tolist()}).json()["predictions"]
        assert [each["label"] for each in by_file] == ["lying", "standing"]
        assert [each["label"] for each in by_array] == ["lying", "standing"]
        assert by_file[0]["similar"][0]["label"] == "lying"
        assert by_file[0]["similar"][0]["picture"].startswith("data:image/jpeg")

    def test_without_their_source_nobody_knows_what_white_is(self, array_run: Path) -> None:
        with client_of(array_run, pictures=False) as client:
            assert client.get("/model").json()["input"]["kind"] == "arrays"
            refused(client.post("/predict", files=form(("a.png", photo(0)))), 415)


class TestFacts:
    def test_health(self, photos: TestClient) -> None:
        content = photos.get("/health").json()
        assert content["status"] == "ok"
        assert content["waiting"] == 0

    def test_model(self, photos: TestClient, photo_run: Path) -> None:
        content, summary = photos.get("/model").json(), json.loads((photo_run / "summary.json").read_text())
        assert content["classes"] == ["cat", "dog"]
        assert content["method"] == "can"
        assert content["task"] == "source → target"
        assert content["engine"] == "PyTorch"
        assert content["input"]["shape"] == [3, 160, 160]
        assert content["evidence"]["calibrated"] is True
        assert content["evidence"]["estimated_accuracy"]["value"] == summary["estimated_accuracy"]["value"]
        assert content["evidence"]["warnings"] == [each["sentence"] for each in summary["warnings"]]
        assert content["versions"]["trained"] == summary["versions"]
        assert content["limits"]["samples"] == 4

    @pytest.mark.parametrize(
        "summary",
        [
            {},
            {"warnings": 3, "notes": [4, {"sentence": 5}], "versions": [], "mean_confidence": "x"},
            {"estimated_accuracy": {"value": float("nan"), "low": 0, "high": 9}, "versions": {"a": {"b": 1}}},
        ],
    )
    def test_a_summary_that_no_training_writes(self, photo_run: Path, tmp_path: Path, summary: Any) -> None:
        run = copied(photo_run, tmp_path)
        (run / "summary.json").write_text(json.dumps(summary))
        with client_of(run) as client:
            evidence = client.get("/model").json()["evidence"]
        assert evidence["estimated_accuracy"] is None
        assert evidence["mean_confidence"] is None
        assert evidence["warnings"] == evidence["notes"] == []

    def test_nothing_else_is_there(self, photos: TestClient) -> None:
        refused(photos.get("/nothing"), 404)
        refused(photos.get("/../model.json"), 404)
        assert photos.get("/predict").headers["allow"] == "POST"
        refused(photos.get("/predict"), 405)

    def test_description_and_pages_are_complete_in_themselves(self, photos: TestClient) -> None:
        content = photos.get("/openapi.json").json()
        assert set(content["paths"]) == {"/predict", "/health", "/model"}
        for path in ("/", "/docs"):
            page = photos.get(path)
            assert page.status_code == 200
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert "http" not in page.text.replace("http://localhost/predict", "")
        assert "curl -F images=@first.jpg" in photos.get("/docs").text


TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def guarded(photo_run: Path) -> Iterator[TestClient]:
    with client_of(photo_run, Access(TOKEN)) as client:
        yield client


class TestAccess:
    @pytest.mark.parametrize("path", ["/model", "/predict", "/nothing"])
    @pytest.mark.parametrize(
        "header", [None, "", "Bearer", "Bearer x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer é"]
    )
    def test_a_token_is_needed(self, guarded: TestClient, path: str, header: str | None) -> None:
        headers = {} if header is None else {"Authorization": header.encode()}
        answer = guarded.request("POST" if path == "/predict" else "GET", path, headers=headers)
        assert "token" in refused(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")

    def test_with_it(self, guarded: TestClient) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}", "Host": "any.example"}
        assert guarded.get("/model", headers=headers).status_code == 200
        assert guarded.post("/predict", files=form(("a.png", photo(0))), headers=headers).status_code == 200

    @pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/health"])
    def test_pages_tell_nothing_and_need_none(self, guarded: TestClient, path: str) -> None:
        answer = guarded.get(path)
        assert answer.status_code == 200
        assert "source → target" not in answer.text

    @pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:8000", "[", ""])
    def test_other_names_are_refused(self, photos: TestClient, host: str) -> None:
        refused(photos.get("/model", headers={"Host": host}), 421)

    @pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:80", "127.8.8.8", "[::1]:8000"])
    def test_names_of_this_machine(self, photos: TestClient, host: str) -> None:
        assert photos.get("/health", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9", "http://[", ""])
    def test_pages_of_other_servers_are_refused(self, photos: TestClient, origin: str) -> None:
        answer = photos.post("/predict", files=form(("a.png", photo(0))), headers={"Origin": origin})
        refused(answer, 403)

    def test_its_own_page_may_ask(self, photos: TestClient) -> None:
        assert photos.get("/model", headers={"Origin": LOCAL}).status_code == 200

    def test_every_answer_has_the_headers(self, photos: TestClient) -> None:
        for answer in (photos.get("/"), photos.get("/model"), photos.get("/nothing"), photos.post("/predict")):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "access-control-allow-origin" not in answer.headers


class TestQueue:
    """Requests at the same time; the engine is held so that they wait."""

    @staticmethod
    def requests(run: Path, model: Model, **limits: Any) -> Any:
        service, engine = held_service(run, model, **limits)
        app = make_app(service)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=LOCAL, timeout=None)
        return app, engine, client

    def test_full(self, photo_run: Path, photo_model: Model) -> None:
        app, engine, client = self.requests(photo_run, photo_model, samples=2, queue=6, batch=2)

        async def check() -> None:
            async with app.router.lifespan_context(app), client:
                engine.held.clear()
                pair = form(("a", photo(0)), ("b", photo(1)))
                waiting = [asyncio.create_task(client.post("/predict", files=pair)) for _ in range(3)]
                await until(lambda: app.state.api.batcher.waiting == 6)
                answer = await client.post("/predict", files=form(("c", photo(2))))
                assert "queue is full" in refused(answer, 503)
                assert int(answer.headers["retry-after"]) >= 1
                assert (await client.get("/health")).json()["waiting"] == 6
                engine.held.set()
                answers = await asyncio.gather(*waiting)
                assert [each.status_code for each in answers] == [200] * 3
                assert (await client.post("/predict", files=form(("c", photo(2))))).status_code == 200
                assert (await client.get("/health")).json() == {"status": "ok", "waiting": 0, "predicted": 7}

        asyncio.run(check())

    def test_what_waits_together_is_predicted_together(self, photo_run: Path, photo_model: Model) -> None:
        app, engine, client = self.requests(photo_run, photo_model, batch=8)

        async def check() -> None:
            async with app.router.lifespan_context(app), client:
                engine.held.clear()
                sent = [form((str(seed), photo(seed, bright=seed % 3 == 0))) for seed in range(20)]
                waiting = [asyncio.create_task(client.post("/predict", files=each)) for each in sent]
                await until(lambda: app.state.api.batcher.waiting == 20)
                engine.held.set()
                answers = [each.json()["predictions"][0] for each in await asyncio.gather(*waiting)]
                assert [each["name"] for each in answers] == [str(seed) for seed in range(20)]
                assert [each["label"] for each in answers] == [("dog", "cat")[seed % 3 > 0] for seed in range(20)]
                assert max(engine.sizes) == 8
                assert len(engine.sizes) <= 5

        asyncio.run(check())

    def test_who_leaves_makes_room(self, photo_run: Path, photo_model: Model) -> None:
        app, engine, _ = self.requests(photo_run, photo_model, batch=1, queue=32)
        batcher = app.state.api.batcher

        async def check() -> None:
            async with batcher.running():
                engine.held.clear()
                image = app.state.api.service.images
                reads = [lambda: image.prepare(Image.new("RGB", (40, 40)))] * 8
                tasks = [asyncio.create_task(batcher.outcomes(reads)) for _ in range(2)]
                await until(lambda: batcher.waiting == 16)
                tasks[0].cancel()
                await asyncio.gather(tasks[0], return_exceptions=True)
                assert batcher.waiting == 8
                engine.held.set()
                assert len(await tasks[1]) == 8
                assert sum(engine.sizes) < 16

        asyncio.run(check())

    def test_memory_for_uploads_is_bounded(self, photo_run: Path, photo_model: Model) -> None:
        sizes = {"file_bytes": 100_000, "request_bytes": 100_000, "upload_bytes": 150_000}
        app, engine, client = self.requests(photo_run, photo_model, **sizes)
        large = photo(0) + bytes(80_000)  # what follows an image is passed over

        async def check() -> None:
            async with app.router.lifespan_context(app), client:
                engine.held.clear()
                first = asyncio.create_task(client.post("/predict", files=form(("a", large))))
                await until(lambda: app.state.api.batcher.waiting == 1)
                answer = await client.post("/predict", files=form(("b", large)))
                assert "uploads" in refused(answer, 503)
                assert answer.headers["retry-after"] == "1"
                engine.held.set()
                assert (await first).status_code == 200
                assert app.state.api.memory.used == 0
                assert (await client.post("/predict", files=form(("b", large)))).status_code == 200

        asyncio.run(check())

    def test_an_engine_that_fails_fails_one_batch(self, photo_run: Path, photo_model: Model) -> None:
        app, _, _ = self.requests(photo_run, photo_model)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=None)

        async def check() -> None:
            async with app.router.lifespan_context(app), client:
                good, app.state.api.batcher.predict = app.state.api.batcher.predict, fail
                refused(await client.post("/predict", files=form(("a", photo(0)))), 500)
                app.state.api.batcher.predict = good
                assert (await client.post("/predict", files=form(("a", photo(0))))).status_code == 200

        def fail(batch: Any) -> Any:
            raise RuntimeError("the network is broken")

        asyncio.run(check())


async def until(holds: Any) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)
