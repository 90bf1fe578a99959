"""Serving an exported model: the same answers as by PyTorch."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from candapt.errors import UserError
from candapt.model import Model, load
from candapt.serving.api import make_app
from candapt.serving.limits import Limits
from candapt.serving.onnx_engine import OnnxEngine, find_onnx
from candapt.serving.service import make_service
from tests.serving.shared import form, photo

pytest.importorskip("onnxruntime")
exporting = pytest.importorskip("candapt.export.exporting")


@pytest.fixture(scope="module")
def exported(photo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run with an exported model in it; its source stays where it was."""
    run = tmp_path_factory.mktemp("exported") / "run"
    shutil.copytree(photo_run, run)
    exporting.export_run(run, run / "model.onnx")
    return run


@pytest.fixture(scope="module")
def engine(exported: Path, photo_model: Model) -> OnnxEngine:
    found = find_onnx(exported, photo_model, None, "auto")
    assert found is not None
    return found


def client_of(run: Path, model: Model, onnx: OnnxEngine | None) -> TestClient:
    return TestClient(make_app(make_service(run, model, Limits(), onnx=onnx)), base_url="http://localhost")


def test_the_same_answers(exported: Path, photo_model: Model, engine: OnnxEngine) -> None:
    files = form(*((str(seed), photo(seed, bright=seed % 2 == 0)) for seed in range(8)))
    answers = []
    for onnx in (None, engine):
        with client_of(exported, photo_model, onnx) as client:
            assert client.get("/model").json()["engine"] == ("PyTorch" if onnx is None else "ONNX Runtime")
            answers.append(client.post("/predict?pictures=true", files=files).json()["predictions"])
    for first, second in zip(*answers, strict=True):
        assert first["label"] == second["label"]
        assert first["softmax"] == pytest.approx(second["softmax"], abs=1e-4)
        assert first["confidence"] == pytest.approx(second["confidence"], abs=0.02)
        assert [each["name"] for each in first["similar"]] == [each["name"] for each in second["similar"]]
        assert second["similar"][0]["picture"].startswith("data:image/jpeg")


def test_which_one_is_used(exported: Path, photo_run: Path, photo_model: Model) -> None:
    assert find_onnx(photo_run, photo_model, None, "auto") is None
    assert find_onnx(exported, photo_model, None, "pytorch") is None
    assert find_onnx(photo_run, photo_model, exported / "model.onnx", "auto") is not None
    with pytest.raises(UserError, match=r"has no model\.onnx"):
        find_onnx(photo_run, photo_model, None, "onnx")


def test_without_onnxruntime(exported: Path, photo_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candapt.serving.onnx_engine.find_spec", lambda name: None)
    assert find_onnx(exported, photo_model, None, "auto") is None
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"candapt\[export\]"):
        find_onnx(exported, photo_model, None, "onnx")


def test_the_model_of_another_run(exported: Path, vector_run: Path) -> None:
    with pytest.raises(UserError, match="another run"):
        find_onnx(vector_run, load(vector_run), exported / "model.onnx", "auto")


def test_files_that_are_none(photo_run: Path, photo_model: Model, exported: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is no model"):
        find_onnx(tmp_path, photo_model, None, "auto")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.onnx").symlink_to(exported / "model.onnx")
    with pytest.raises(UserError, match="leads out"):
        find_onnx(tmp_path / "run", photo_model, None, "auto")


def test_a_file_without_stored_samples_finds_none(tuned_run: Path, tmp_path: Path) -> None:
    model = load(tuned_run)
    exporting.export_run(tuned_run, tmp_path / "tuned.onnx")
    onnx = find_onnx(tuned_run, model, tmp_path / "tuned.onnx", "auto")
    assert onnx is not None
    assert not onnx.stores_source
    outcome = onnx.predict(np.zeros((2, *model.shape), dtype=np.float32))
    assert outcome.near is None
    with client_of(tuned_run, model, onnx) as client:
        answer = client.post("/predict", files=form(("a.png", photo(0))))
        assert client.get("/model").json()["similar"] == {"samples": 0, "pictures": False}
    assert answer.json()["predictions"][0]["similar"] == []
