"""An exported file in use: images and arrays in, what the run's model says out."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import candapt
from candapt.data.decoding import read_image, upright_pixels
from candapt.data.domains import Domain
from candapt.data.images import image_domain
from candapt.data.transforms import Views
from candapt.errors import UserError
from candapt.export import OnnxModel
from candapt.export.metadata import FORMAT, Metadata
from candapt.export.runtime import evaluation_view
from candapt.settings import ImageSettings
from tests.toy import Toy

ORIENTATION = 0x0112


class TestFeatures:
    def test_it_says_what_the_model_says(self, feature_run: Path, feature_file: Path, toy: Toy) -> None:
        model, expected = OnnxModel.load(feature_file), candapt.load(feature_run).predict(Domain(toy.target_x))
        probabilities, confidence = model.predict(toy.target_x)
        np.testing.assert_allclose(probabilities, expected.probabilities.numpy(), atol=1e-5)
        np.testing.assert_allclose(confidence, expected.confidence.numpy(), atol=1e-5)
        assert (model.outputs(toy.target_x)["label"] == expected.labels.numpy()).all()

    def test_batches_of_any_size_and_type(self, feature_file: Path, toy: Toy) -> None:
        model = OnnxModel.load(feature_file, threads=1)
        whole = model.predict(toy.target_x)[0]
        np.testing.assert_allclose(model.predict(toy.target_x[3:4].astype(np.float64))[0], whole[3:4], atol=1e-6)
        probabilities, confidence = model.predict(np.empty((0, 24)))
        assert (probabilities.shape, confidence.shape) == ((0, 4), (0,))

    @pytest.mark.parametrize("shape", [(24,), (2, 23), (2, 24, 1), ()])
    def test_another_shape_is_one_sentence(self, feature_file: Path, shape: tuple[int, ...]) -> None:
        with pytest.raises(UserError, match=r"takes a batch of shape \(n, 24\)"):
            OnnxModel.load(feature_file).predict(np.zeros(shape))

    def test_images_are_refused_by_a_model_over_features(self, feature_file: Path) -> None:
        with pytest.raises(UserError, match=r"takes arrays of shape \(24,\) for a sample, not image files"):
            OnnxModel.load(feature_file).preprocess(Image.new("RGB", (3, 3)))

    def test_threads_share_it(self, feature_file: Path, toy: Toy) -> None:
        model = OnnxModel.load(feature_file, threads=1)
        alone = [model.predict(row[None])[0] for row in toy.target_x]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda row: model.predict(row[None])[0], toy.target_x))
        np.testing.assert_array_equal(np.stack(alone), np.stack(together))

    def test_torch_is_not_imported(self, feature_file: Path) -> None:
        code = f"import sys\nfrom candapt.export import OnnxModel\nOnnxModel.load({str(feature_file)!r})"
        subprocess.run([sys.executable, "-c", f"{code}\nassert not {{'torch', 'timm'}} & set(sys.modules)"], check=True)


class TestImages:
    def test_it_says_what_the_model_says(self, photo_run: Path, photo_file: Path) -> None:
        run, model = candapt.load(photo_run), OnnxModel.load(photo_file)
        domain, check = image_domain(photo_run.parent / "target", run.images)
        expected = run.predict(domain)
        probabilities, confidence = model.predict_files(check.paths)
        np.testing.assert_allclose(probabilities, expected.probabilities.numpy(), atol=1e-4)
        np.testing.assert_allclose(confidence, expected.confidence.numpy(), atol=1e-4)
        assert model.classes == run.classes == ("cat", "dog")
        assert model.predict_files([])[0].shape == (0, 2)

    def test_what_is_no_image_is_named(self, photo_file: Path, tmp_path: Path) -> None:
        (tmp_path / "notes.jpg").write_text("no image")
        with pytest.raises(UserError, match=r"notes\.jpg"):
            OnnxModel.load(photo_file).predict_files([tmp_path / "notes.jpg"])

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
    @pytest.mark.parametrize("grey", [False, True])
    def test_the_view_is_that_of_the_training(self, tmp_path: Path, mode: str, grey: bool) -> None:
        """Bit for bit, for every mode; a file and the image in it, also one that was made upright before."""
        pixels = np.random.default_rng(0).integers(0, 256, size=(31, 45, 4)).astype(np.uint8)
        image = Image.fromarray(pixels, mode="RGBA")
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 200) if mode == "I;16" else image.convert(mode)
        exif = image.getexif()
        exif[ORIENTATION] = 6
        image.save(tmp_path / "image.tif", exif=exif)
        values = ((0.4,), (0.3,)) if grey else ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
        settings = ImageSettings(20, 23, *values, grey=grey)
        decoded = read_image(tmp_path / "image.tif", grey=grey)
        expected = Views(settings).evaluation(decoded).numpy()
        with Image.open(tmp_path / "image.tif") as opened:
            for each in (decoded, opened):
                np.testing.assert_array_equal(evaluation_view(each, settings), expected)

    def test_an_image_is_turned_once(self) -> None:
        """What was made upright must not be turned again, whoever did it."""
        image = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
        image.getexif()[ORIENTATION] = 6
        settings = ImageSettings(4, 4, (0.5,), (0.5,), grey=True)
        once = evaluation_view(image, settings)
        np.testing.assert_array_equal(evaluation_view(upright_pixels(image, grey=True), settings), once)
        assert image.getexif()[ORIENTATION] == 6  # and the caller's own stays as it is


class TestFiles:
    @pytest.mark.parametrize("content", [b"", b"nothing", b"\x08\x0a" * 100])
    def test_what_is_no_model(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "model.onnx").write_bytes(content)
        with pytest.raises(UserError, match="is no model made by `candapt export`"):
            OnnxModel.load(tmp_path / "model.onnx")

    def test_no_file_and_a_folder(self, tmp_path: Path) -> None:
        for place in (tmp_path, tmp_path / "nowhere.onnx"):
            with pytest.raises(UserError, match="is no model made by"):
                OnnxModel.load(place)

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("format", None, "not made by candapt"),
            ("format", str(FORMAT + 1), f"written in format {FORMAT + 1}; this version reads {FORMAT}"),
            ("classes", "[1, 2]", "classes"),
            ("classes", "{", "JSONDecodeError"),
            ("confidence", '"magic"', "confidence"),
        ],
    )
    def test_metadata_that_candapt_does_not_write(
        self, feature_file: Path, tmp_path: Path, name: str, value: str | None, reason: str
    ) -> None:
        model = onnx.load(feature_file)
        kept = [entry for entry in model.metadata_props if entry.key != name]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)
        if value is not None:
            model.metadata_props.add(key=name, value=value)
        onnx.save(model, tmp_path / "model.onnx")
        with pytest.raises(UserError, match=f"is no model made by.*{reason}"):
            OnnxModel.load(tmp_path / "model.onnx")

    def test_weights_in_another_file_are_not_read(self, feature_file: Path, tmp_path: Path) -> None:
        """A stranger's model must not reach files beside it, nor anywhere else."""
        (tmp_path / "models").mkdir()
        (tmp_path / "secret").write_bytes(bytes(2**16))
        model = onnx.load(feature_file)
        tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
        size = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "../secret"), ("offset", "0"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
        (tmp_path / "models" / "model.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(UserError, match="is no model made by"):
            OnnxModel.load(tmp_path / "models" / "model.onnx")

    def test_onnxruntime_is_named_if_it_is_missing(self, feature_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(UserError, match=r"needs onnxruntime: .*candapt\[export\]"):
            OnnxModel.load(feature_file)


class TestMetadata:
    IMAGES = ImageSettings(size=12, resize=14, mean=(0.5,), std=(0.25,), grey=True, shrink=False)

    @pytest.mark.parametrize("images", [None, IMAGES])
    def test_it_reads_back(self, images: ImageSettings | None) -> None:
        shape = (1, 12, 12) if images else (7,)
        names = ("zebra, striped", "caf\udce9", "日本")
        metadata = Metadata("can", names, shape, images, "class", 18, "0.1", "int8")
        described = metadata.describe()
        assert all(value.isascii() for value in described.values())
        assert Metadata.read(described) == metadata

    def test_settings_that_do_not_fit_the_shape(self) -> None:
        metadata = Metadata("can", ("a", "b"), (3, 12, 12), self.IMAGES, "class", 18, "0.1")
        with pytest.raises(ValueError, match="image settings do not make"):
            Metadata.read(metadata.describe())
