"""`candapt export`: one file or a folder for the Hub, compared with PyTorch, nothing overwritten."""

import json
import logging
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml

import candapt
from candapt.commands.main import main
from candapt.data.domains import Domain
from candapt.errors import UserError
from candapt.export import OnnxModel, agreement, exporting, formats
from candapt.export import network as export_network
from candapt.export.agreement import Agreement, find_examples
from candapt.export.exporting import export_run
from candapt.export.metadata import SIMILAR
from candapt.export.quantization import others
from tests.toy import Toy


def called(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and what was written to standard error."""
    capsys.readouterr()
    code = main(["export", *map(str, words)])
    logging.getLogger("candapt").handlers.clear()
    return code, capsys.readouterr().err


class TestOnnx:
    def test_a_file_and_a_comparison(self, photo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, said = called(capsys, photo_run, "--out", tmp_path / "m.onnx")
        assert code == 0
        assert "On 16 samples of the target the file predicts the same class as PyTorch for all" in said
        assert f"Exported: {tmp_path / 'm.onnx'}" in said
        assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
        onnx.checker.check_model(tmp_path / "m.onnx", full_check=True)

    def test_what_is_in_the_file(self, photo_file: Path, photo_run: Path) -> None:
        model = onnx.load(photo_file, load_external_data=False)
        assert [entry.version for entry in model.opset_import] == [18]
        assert not [node for node in model.graph.node if node.op_type == "BatchNormalization"]
        dims = {
            each.name: [dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim]
            for each in (*model.graph.input, *model.graph.output)
        }
        assert dims == {
            "input": ["batch", 3, 32, 32],
            "probabilities": ["batch", 2],
            "confidence": ["batch"],
            "label": ["batch"],
            "unknown": ["batch"],
            **{name: ["batch", 10] for name in SIMILAR},
        }
        about = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
        images = json.loads((photo_run / "model.json").read_text())["images"]
        assert {name: about[name] for name in ("size", "resize", "mean", "std", "grey")} == {
            name: images[name] for name in ("size", "resize", "mean", "std", "grey")
        }
        assert about["classes"] == ["cat", "dog"]
        assert (about["opset"], about["format"], about["confidence"]) == (18, 1, "neighbors")
        assert "BICUBIC" in about["resize_rule"]

    def test_it_does_not_tell_where_it_was_made(self, photo_file: Path, feature_run: Path, tmp_path: Path) -> None:
        export_run(feature_run, tmp_path / "m.pt2", format="torch")
        with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
            contents = [photo_file.read_bytes(), *(archive.read(name) for name in archive.namelist())]
        for place in (Path(__file__).parents[2], photo_file.parent, Path.home(), Path(torch.__file__).parents[1]):
            assert not any(str(place).encode() in content for content in contents)

    def test_without_the_target_random_inputs_are_compared(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = moved(feature_run, tmp_path)
        code, said = called(capsys, run, "--out", tmp_path / "m.onnx")
        assert code == 0
        assert "The target is not where the run found it" in said
        assert "On 200 random inputs the file predicts the same class" in said
        code, said = called(capsys, run, "--out", tmp_path / "int8.onnx", "--quantize", "int8")
        assert (code, (tmp_path / "int8.onnx").exists()) == (2, False)
        assert "give them by --target" in said

    def test_a_large_bank_is_left_out_and_the_log_says_so(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (export_network, exporting):
            monkeypatch.setattr(module, "MAX_BANK", 1000)
        code, said = called(capsys, feature_run, "--out", tmp_path / "m.onnx")
        assert code == 0
        assert "more than the 1000 bytes that a file may hold: it is left to class and softmax" in said
        assert OnnxModel.load(tmp_path / "m.onnx").metadata.confidence == "class"


class TestOtherFormats:
    def test_a_program_of_torch(
        self, feature_run: Path, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, said = called(capsys, feature_run, "--out", tmp_path / "m.pt2", "--format", "torch")
        assert (code, "same class as PyTorch for all" in said) == (0, True)
        extra = {"candapt.json": ""}
        program = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
        outputs = program(torch.from_numpy(toy.target_x))
        expected = candapt.load(feature_run).predict(Domain(toy.target_x))
        torch.testing.assert_close(outputs["confidence"], expected.confidence, atol=1e-5, rtol=0)
        assert json.loads(json.loads(extra["candapt.json"])["classes"]) == list("0123")

    @pytest.mark.parametrize("name", ["photo_run", "feature_run"])
    def test_int8(
        self, name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, said = called(capsys, request.getfixturevalue(name), "--out", tmp_path / "m.onnx", "--quantize", "int8")
        assert code == 0
        assert re.search(r"the same class as PyTorch for all; .*\(before quantization\)\.\nOn \d+ samples", said)
        assert re.search(r"Exported: .* \([\d.]+ \w+, [\d.]+ \w+ before quantization\)\n$", said)
        model = onnx.load(tmp_path / "m.onnx")
        assert OnnxModel.load(tmp_path / "m.onnx").metadata.quantized == "int8"
        quantized = {node.op_type for node in model.graph.node} & {"DequantizeLinear", "QuantizeLinear"}
        assert len(quantized) == 2
        # The search for neighbors stays as it was: its banks are still stored in single precision.
        assert any(each.data_type == onnx.TensorProto.FLOAT and len(each.dims) == 2 for each in model.graph.initializer)

    def test_nodes_beside_an_output(self, feature_file: Path) -> None:
        """Slowly: those whose results the output cannot be reached from."""
        graph = onnx.load(feature_file).graph
        needed, grew = {"probabilities"}, True
        while grew:
            more = {name for node in graph.node if needed & set(node.output) for name in node.input}
            grew, needed = not more <= needed, needed | more
        expected = {node.name for node in graph.node if not needed & set(node.output)}
        assert set(others(onnx.load(feature_file), "probabilities")) == expected
        assert any(node.op_type == "TopK" and node.name in expected for node in graph.node)


class TestComparison:
    def test_a_file_that_differs_is_not_written(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agreement, "LIMIT", 0.0)
        code, said = called(capsys, feature_run, "--out", tmp_path / "m.onnx")
        assert code == 2
        assert said.count("\n") == 1
        assert "no file was written" in said
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("changes", "fails"),
        [
            ({}, False),
            ({"max_difference": 1.1e-4}, True),
            ({"max_difference": float("nan")}, True),
            ({"confidence_within": 0.9, "max_confidence_difference": 0.05}, False),
            ({"confidence_within": 0.85, "max_confidence_difference": 0.05}, True),
            ({"samples": 4, "confidence_within": 0.5}, False),
        ],
    )
    def test_what_is_required(self, changes: dict[str, Any], fails: bool) -> None:
        """Neighbors that are equally near may change places, which moves the confidence of single samples."""
        figures = {
            "inputs": "target",
            "samples": 200,
            "same_class": 1.0,
            "max_difference": 1e-5,
            "mean_difference": 1e-6,
            "max_confidence_difference": 1e-5,
            "confidence_within": 1.0,
        }
        made = Agreement(**(figures | changes))
        if fails:
            with pytest.raises(UserError, match=r"at most 0\.0001 is expected"):
                made.require()
        else:
            made.require()

    def test_some_of_a_large_target_always_the_same(self, feature_run: Path) -> None:
        model = candapt.load(feature_run)
        examples = [find_examples(model, feature_run, None, count=10) for _ in range(2)]
        assert [each.inputs for each in examples] == ["target", "target"]
        np.testing.assert_array_equal(examples[0].array, examples[1].array)
        first, second = examples[0].split()
        assert (first.domain.size, second.domain.size) == (5, 5)
        assert not set(map(bytes, first.array)) & set(map(bytes, second.array))

    def test_a_given_target_must_fit(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        np.savez(tmp_path / "other.npz", x=np.zeros((5, 7)))
        code, said = called(capsys, feature_run, "--out", tmp_path / "m.onnx", "--target", tmp_path / "other.npz")
        assert (code, "takes samples of shape (24,), but these have (7,)" in said) == (2, True)
        code, said = called(capsys, feature_run, "--out", tmp_path / "m.onnx", "--target", tmp_path / "nowhere.npz")
        assert (code, "nowhere.npz" in said) == (2, True)


@pytest.fixture(scope="module")
def hub(photo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the Hub. Tests do not write there."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    assert main(["export", str(photo_run), "--hub-folder", str(folder)]) == 0
    logging.getLogger("candapt").handlers.clear()
    return folder


class TestHubFolder:
    def test_its_files(self, hub: Path) -> None:
        names = sorted(path.name for path in hub.iterdir())
        assert names == ["README.md", "confidence.safetensors", "model.json", "model.onnx", "model.safetensors"]
        assert not any(str(hub.parent.parent).encode() in path.read_bytes() for path in hub.iterdir())

    def test_both_models_load(self, hub: Path, photo_run: Path) -> None:
        assert candapt.load(hub).classes == OnnxModel.load(hub / "model.onnx").classes == ("cat", "dog")

    def test_the_card_says_how(self, hub: Path) -> None:
        card = (hub / "README.md").read_text(encoding="utf-8")
        assert "onnx" in yaml.safe_load(card.split("---\n")[1])["tags"]
        assert 'OnnxModel.load("model.onnx")' in card
        assert "same class as PyTorch for all" in card
        assert "snapshot_download" in card

    def test_with_a_file_elsewhere_and_another_format(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ("--out", tmp_path / "m.pt2", "--format", "torch", "--hub-folder", tmp_path / "hub")
        assert called(capsys, feature_run, *words)[0] == 0
        assert (tmp_path / "m.pt2").read_bytes() == (tmp_path / "hub" / "model.pt2").read_bytes()
        assert "torch.export.load" in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")

    def test_a_folder_with_files_is_refused(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "thesis.doc").write_text("mine")
        code, said = called(capsys, feature_run, "--hub-folder", tmp_path)
        assert (code, "already holds files" in said) == (2, True)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]

    def test_a_run_without_a_summary(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = Path(shutil.copytree(feature_run, tmp_path / "run"))
        (run / "summary.json").unlink()
        code, said = called(capsys, run, "--hub-folder", tmp_path / "hub")
        assert (code, "no summary.json" in said) == (2, True)
        assert not (tmp_path / "hub").exists()

    def test_a_failure_leaves_no_folder(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agreement, "LIMIT", 0.0)
        assert called(capsys, feature_run, "--hub-folder", tmp_path / "hub")[0] == 2
        assert list(tmp_path.iterdir()) == []


class TestBadInput:
    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            ((), "--out is missing: give a file, or a folder by --hub-folder"),
            (("--out", "m.onnxx"), "ends in .onnx: give another name"),
            (("--out", "m.pt2"), "ends in .onnx: give --format torch, or another name"),
            (("--out", "m.onnx", "--format", "torch"), "ends in .pt2: give --format onnx, or another name"),
            (("--out", "nowhere/m.onnx"), "its folder does not exist"),
            (("--out", "m.pt2", "--format", "torch", "--quantize", "int8"), "--quantize is for the format onnx"),
            (("--out", "m.onnx", "--quantize", "int4"), "--quantize must be int8"),
        ],
    )
    def test_is_one_sentence(
        self,
        feature_run: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        words: tuple[str, ...],
        reason: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        code, said = called(capsys, feature_run, *words)
        assert (code, said.count("\n")) == (2, 1)
        assert reason in said
        assert list(tmp_path.iterdir()) == []

    def test_nothing_is_overwritten(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "m.onnx").write_text("mine")
        for more in ((), ("--hub-folder", tmp_path / "hub")):
            code, said = called(capsys, feature_run, "--out", tmp_path / "m.onnx", *more)
            assert (code, "exists already" in said) == (2, True)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]

    def test_no_finished_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for place in (tmp_path, tmp_path / "nowhere"):
            code, said = called(capsys, place, "--out", tmp_path / "m.onnx")
            assert (code, "holds no finished run" in said) == (2, True)

    @pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
    def test_a_package_that_is_missing(
        self,
        feature_run: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        package: str,
    ) -> None:
        found = formats.find_spec
        monkeypatch.setattr(formats, "find_spec", lambda name: None if name == package else found(name))
        code, said = called(capsys, feature_run, "--out", tmp_path / "m.onnx")
        assert code == 2
        assert f"needs {package}: install it with: pip install 'candapt[export]'" in said

    def test_a_network_that_is_too_large(
        self, feature_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(formats, "MAX_ONNX", 1000)
        code, said = called(capsys, feature_run, "--out", tmp_path / "m.onnx")
        assert (code, "at most 1000 bytes: give --format torch" in said) == (2, True)

    def test_the_help_needs_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["export", "--help"])
        assert "--hub-folder" in capsys.readouterr().out


def moved(run: Path, folder: Path) -> Path:
    """A copy of a run that does not find its target."""
    copied = Path(shutil.copytree(run, folder / "run"))
    config = yaml.safe_load((copied / "config.yaml").read_text(encoding="utf-8"))
    (copied / "config.yaml").write_text(yaml.safe_dump(config | {"target": str(folder / "nowhere.npz")}))
    return copied
