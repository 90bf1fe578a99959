"""A model that is saved and loaded says the same, and a damaged one says so."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import candapt
from candapt.adaptation import Result, adapt
from candapt.assessment import assess, with_confidence
from candapt.clustering import Clusters
from candapt.data.domains import Domain, LabeledDomain, Side, Task
from candapt.data.features import labeled_arrays
from candapt.errors import UserError
from candapt.model import Predictions, load, reach_of
from candapt.settings import ImageSettings
from tests.toy import Toy, make_toy, quick_settings

HARD_NAMES = ("zebra, striped", "Fahrräder\n2", 'a "quoted" one', "caf\udce9")
"""Class names as folders may have them; the last is what a name in Latin-1 is read as."""


@pytest.fixture(scope="module")
def toy() -> Toy:
    return make_toy(samples=12)


@pytest.fixture(scope="module")
def result(toy: Toy) -> Result:
    source = toy.task.source
    task = Task(LabeledDomain(source.samples, (), source.labels, HARD_NAMES), toy.task.target)
    return adapt(task, quick_settings(can__max_distance=0.1))


@pytest.fixture
def folder(result: Result, tmp_path: Path) -> Path:
    result.model.save(tmp_path)
    return tmp_path


def equal(first: Predictions, second: Predictions) -> bool:
    fields = ("probabilities", "features", "cluster_labels", "cluster_distances", "kept")
    return list(first.names) == list(second.names) and all(
        torch.equal(getattr(first, name), getattr(second, name)) for name in fields
    )


class TestRoundTrip:
    def test_a_loaded_model_predicts_the_same_bits(self, toy: Toy, result: Result, folder: Path) -> None:
        model = candapt.load(folder)
        assert equal(model.predict(Domain(toy.target_x)), result.predictions)
        assert equal(load(str(folder)).predict(Domain(toy.target_x)), result.predictions)

    def test_class_names_travel_with_it(self, folder: Path) -> None:
        assert load(folder).classes == HARD_NAMES

    @pytest.mark.parametrize("method", ["source-only", "can"])
    @pytest.mark.parametrize("finetune", ["all", "head"])
    def test_small_images(self, tmp_path: Path, method: str, finetune: str) -> None:
        x = np.random.default_rng(0).normal(size=(30, 1, 12, 12)).astype(np.float32)
        task = Task(labeled_arrays(x, np.arange(30) % 3, where="x"), Domain(x[::-1].copy()))
        images = ImageSettings(size=12, resize=14, mean=(0.5,), std=(0.5,), grey=True)
        settings = quick_settings(method, network__finetune=finetune, training__steps=2)
        result = adapt(task, settings, images=images)
        result.model.save(tmp_path)
        again = load(tmp_path)
        assert again.images == images
        assert (again.parts.frozen is not None) is (finetune == "head")
        assert equal(again.predict(task.target), result.predictions)

    def test_both_sides_are_kept(self, toy: Toy, result: Result, folder: Path) -> None:
        domain = Domain(toy.source_x)
        by_source = load(folder).predict(domain, Side.SOURCE)
        assert equal(by_source, result.model.predict(domain, Side.SOURCE))
        assert not torch.equal(by_source.probabilities, load(folder).predict(domain).probabilities)

    def test_one_sample_alone_gets_what_it_gets_among_others(self, toy: Toy, folder: Path) -> None:
        model = load(folder)
        alone, among = model.predict(Domain(toy.target_x[3:4])), model.predict(Domain(toy.target_x))
        torch.testing.assert_close(alone.probabilities[0], among.probabilities[3])

    def test_files_are_open_formats(self, folder: Path) -> None:
        assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]
        description = json.loads((folder / "model.json").read_text(encoding="ascii"))
        assert description["method"] == "can"
        assert description["classes"] == list(HARD_NAMES)
        assert description["network"]["weights"] is None
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            assert {"centers", "reach"} < set(file.keys())

    def test_another_shape_is_refused(self, folder: Path) -> None:
        with pytest.raises(UserError, match=r"takes samples of shape \(24,\), but these have \(7,\)"):
            load(folder).predict(Domain(np.zeros((3, 7))))  # type: ignore[arg-type]


class TestPredictions:
    def test_labels_and_confidence(self, result: Result) -> None:
        predictions = result.predictions
        rows = torch.arange(len(predictions.labels))
        assert torch.equal(predictions.probabilities[rows, predictions.labels], predictions.softmax)
        assert torch.equal(predictions.confidence, predictions.softmax)  # until it is calibrated
        calibrated = replace(predictions, calibrated=torch.rand(len(rows)))
        assert torch.equal(calibrated.confidence, calibrated.calibrated)
        assert torch.equal(calibrated.softmax, predictions.softmax)
        torch.testing.assert_close(predictions.probabilities.sum(1), torch.ones(len(rows)))

    def test_evidence_of_the_clusters(self, result: Result) -> None:
        """Slowly: the nearest center by angle, and kept if not further than the furthest that training kept."""
        model, predictions = result.model, result.predictions
        for row, feature in enumerate(predictions.features.double()):
            cosines = [float(torch.cosine_similarity(feature, center, dim=0)) for center in model.centers.double()]
            assert int(predictions.cluster_labels[row]) == int(np.argmax(cosines))
            assert float(predictions.cluster_distances[row]) == pytest.approx((1 - max(cosines)) / 2, abs=1e-6)
        assert 0 < int(predictions.kept.sum()) < len(predictions.kept)

    @pytest.mark.parametrize("limit", [0.02, 0.05, 0.1, 0.2, 1.0])
    def test_kept_is_what_training_would_keep(self, toy: Toy, limit: float) -> None:
        result = adapt(toy.task, quick_settings(can__max_distance=limit, can__min_samples=1))
        assert torch.equal(result.predictions.kept, result.predictions.cluster_distances < limit)

    def test_table(self, result: Result, tmp_path: Path) -> None:
        names = ["a,b.png", "c\nd.png", 'e"f.png', "\udcff.png", "日本.png"]
        random = torch.rand(2, len(result.predictions.labels))
        every = replace(result.predictions, calibrated=random[0], unknown=random[1])
        first = Predictions(names, *(getattr(every, field)[:5] for field in list(Predictions.__annotations__)[1:]))
        first.write_csv(tmp_path / "out.csv", HARD_NAMES)
        with (tmp_path / "out.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file))
        columns = ["path", "label", "confidence", "softmax", "unknown", "cluster_label", "cluster_distance", "kept"]
        assert list(rows[0]) == columns
        assert [row["path"] for row in rows] == names
        assert [row["label"] for row in rows] == [HARD_NAMES[label] for label in first.labels]
        assert [float(row["confidence"]) for row in rows] == pytest.approx(first.confidence.tolist(), abs=1e-6)
        assert [float(row["softmax"]) for row in rows] == pytest.approx(first.softmax.tolist(), abs=1e-6)
        assert [float(row["unknown"]) for row in rows] == pytest.approx(every.unknown[:5].tolist(), abs=1e-6)
        assert {row["kept"] for row in rows} <= {"0", "1"}

    def test_unknown_objects_are_named_if_wanted(self, result: Result, tmp_path: Path) -> None:
        names, labels = list("abcde"), result.predictions.labels[:5]
        every = replace(result.predictions, calibrated=torch.rand(len(result.predictions.labels)))
        cut = {field: getattr(every, field)[:5] for field in list(Predictions.__annotations__)[1:-1]}
        first = Predictions(names, **cut, unknown=torch.tensor([0.9, 0.1, 0.51, 0.5, 0.0]))
        named = [HARD_NAMES[label] for label in labels]
        assert first.names_of(HARD_NAMES) == named
        assert first.names_of(HARD_NAMES, name_unknown=True) == ["unknown", named[1], "unknown", *named[3:]]
        confidence = [row.confidence for row in first.rows(HARD_NAMES, name_unknown=True)]  # of the name that is given
        own = first.confidence.tolist()
        assert confidence == pytest.approx([0.9, own[1], 0.51, *own[3:]])
        nobody_looked = replace(first, unknown=None)
        assert nobody_looked.names_of(HARD_NAMES, name_unknown=True) == named
        nobody_looked.write_csv(tmp_path / "out.csv", HARD_NAMES)
        assert b"unknown" in (tmp_path / "out.csv").read_bytes().splitlines()[0]

    def test_reach(self) -> None:
        clusters = Clusters(
            labels=torch.tensor([0, 0, 0, 1, 2]),
            distances=torch.tensor([0.1, 0.3, 0.4, 0.2, 0.05]),
            centers=torch.eye(4),
            kept=torch.tensor([True, True, False, False, True]),
            steps=1,
        )
        torch.testing.assert_close(reach_of(clusters), torch.tensor([0.3, -1, 0.05, -1]))


class TestDamage:
    def test_no_run(self, tmp_path: Path) -> None:
        for place in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(UserError, match="holds no finished run"):
                load(place)

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", "3", "null", "{}", '{"format": 1}', '"text"', "\ufeff{}", '{"format": 1, "classes": 3}'],
    )
    def test_descriptions(self, folder: Path, text: str) -> None:
        (folder / "model.json").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="is damaged"):
            load(folder)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("method", "nope"),
            ("settings", {"nope": 1}),
            ("classes", ["a"]),
            ("shape", []),
            ("shape", [5]),
            ("images", [3]),
            ("network", {"backbone": 3, "nope": 2}),
            ("network", None),
            ("layout", 3),
        ],
    )
    def test_values(self, folder: Path, key: str, value: object) -> None:
        description = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(description | {key: value}))
        with pytest.raises(UserError) as caught:
            load(folder)
        assert len(str(caught.value)) < 200 + len(str(folder))

    def test_a_later_format_is_named(self, folder: Path) -> None:
        description = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(description | {"format": 2}))
        with pytest.raises(UserError, match="written in format 2; this version reads 1"):
            load(folder)

    @pytest.mark.parametrize("size", [0, 5, 100, -1])
    def test_weights_cut_short(self, folder: Path, size: int) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(UserError, match="is damaged"):
            load(folder)

    def test_no_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with pytest.raises(UserError, match="is damaged"):
            load(folder)


class TestConfidence:
    @pytest.fixture(scope="class")
    def folder(self, toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A saved model with what tells the confidence of new samples."""
        folder = tmp_path_factory.mktemp("confidence")
        result = adapt(toy.task, quick_settings())
        with_confidence(result, assess(result)).model.save(folder)
        return folder

    def test_new_samples_get_one(self, folder: Path, toy: Toy) -> None:
        model = candapt.load(folder)
        predictions = model.predict(Domain(toy.target_x))
        assert predictions.calibrated is not None
        assert not torch.equal(predictions.confidence, predictions.softmax)
        alone = model.predict(Domain(toy.target_x[:1]))
        torch.testing.assert_close(alone.confidence, predictions.confidence[:1], atol=1e-5, rtol=0)

    def test_batches_do_not_matter(self, folder: Path, toy: Toy) -> None:
        model = candapt.load(folder)
        small = replace(model, batch_size=7)
        pair = [each.predict(Domain(toy.target_x)).confidence for each in (model, small)]
        torch.testing.assert_close(*pair, atol=1e-5, rtol=0)

    def test_a_model_without_it_gives_the_softmax(self, folder: Path, toy: Toy, tmp_path: Path) -> None:
        shutil.copytree(folder, tmp_path / "run")
        (tmp_path / "run" / "confidence.safetensors").unlink()
        predictions = candapt.load(tmp_path / "run").predict(Domain(toy.target_x))
        assert torch.equal(predictions.confidence, predictions.softmax)

    @pytest.mark.parametrize("name", ["class_confidence", "reference.weights", "bank_labels", "means.agreement"])
    def test_what_a_stranger_changed_is_refused(self, folder: Path, tmp_path: Path, name: str) -> None:
        shutil.copytree(folder, tmp_path / "run")
        path = tmp_path / "run" / "confidence.safetensors"
        tensors = load_file(path)
        tensors[name] = tensors[name][:-1].contiguous()
        save_file(tensors, path, metadata={"kind": "pretrained"})
        with pytest.raises(UserError, match=rf"damaged.*{name}"):
            candapt.load(tmp_path / "run")

    def test_a_kind_that_is_unknown_and_values_that_are_not_finite(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder, tmp_path / "run")
        path = tmp_path / "run" / "confidence.safetensors"
        tensors = load_file(path)
        save_file(tensors, path, metadata={"kind": "magic"})
        with pytest.raises(UserError, match=r"damaged.*kind"):
            candapt.load(tmp_path / "run")
        tensors["class_confidence"][0] = torch.nan
        save_file(tensors, path, metadata={"kind": "pretrained"})
        with pytest.raises(UserError, match="NaN or infinite"):
            candapt.load(tmp_path / "run")
