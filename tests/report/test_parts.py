"""The map, the thumbnails and the discrepancy of domains."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.manifold import TSNE

from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.evaluation.metrics import domain_discrepancy
from candapt.losses import contrastive_domain_discrepancy
from candapt.network.network import Outputs
from candapt.report.domain_map import map_after, map_before, project, read_map
from candapt.report.thumbnails import Thumbnails
from tests.toy import Toy, make_training, quick_settings, weights


class TestMap:
    def test_it_reads_back_and_looking_changes_nothing(self, toy: Toy, tmp_path: Path) -> None:
        training = make_training(toy.task, quick_settings())
        before = weights(training)
        domain_map = map_before(training, points=30)
        assert all(torch.equal(value, before[name]) for name, value in weights(training).items())
        assert domain_map.side.tolist() == [0] * 30 + [1] * 30
        assert domain_map.label[:30].tolist() == toy.task.source.labels[domain_map.rows(Side.SOURCE)].tolist()
        assert (domain_map.label[30:] == -1).all()
        assert domain_map.name[30:].tolist() == [str(row) for row in domain_map.index[30:]]
        domain_map = map_after(domain_map, torch.randn(30, 5), torch.randn(30, 5))
        domain_map.write(tmp_path)
        again = read_map(tmp_path)
        assert again is not None
        for name, values in vars(domain_map).items():
            assert np.array_equal(values, getattr(again, name))
        assert again.before.dtype == again.after.dtype == np.float32

    def test_no_file_and_a_wrong_one(self, tmp_path: Path) -> None:
        assert read_map(tmp_path) is None
        np.savez(tmp_path / "embedding.npz", before=np.zeros((3, 2)))
        with pytest.raises(UserError, match="remove it"):
            read_map(tmp_path)

    def test_the_same_features_have_the_same_places_and_groups_stay_together(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("candapt.report.domain_map.TSNE", TSNE)  # not the short one of the other tests
        random = np.random.default_rng(0)
        labels = np.arange(60) % 3
        features = (8 * np.eye(3, 10)[labels] + random.normal(size=(60, 10))).astype(np.float32)
        places = project(features)
        assert np.array_equal(places, project(features))
        centers = np.stack([places[labels == each].mean(0) for each in range(3)])
        nearest = np.linalg.norm(places[:, None] - centers, axis=2).argmin(1)
        assert (nearest == labels).all()

    @pytest.mark.parametrize("features", [np.ones((20, 4)), np.zeros((20, 4)), np.eye(3), np.ones((20, 1))])
    def test_features_that_have_no_map(self, features: np.ndarray) -> None:  # type: ignore[type-arg]
        assert np.array_equal(project(features.astype(np.float32)), np.zeros((len(features), 2)))


class TestThumbnails:
    def test_files(self, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        for name in ("a.jpg", "b.png"):
            Image.new("RGB", (300, 200), "red").save(tmp_path / "photos" / name)
        Image.new("RGB", (30, 20)).save(tmp_path / "secret.png")
        (tmp_path / "photos" / "broken.jpg").write_bytes(b"no")
        made = Thumbnails(tmp_path / "photos", (3, 224, 224)).make(
            ["a.jpg", "b.png", "broken.jpg", "gone.jpg", "../secret.png", str(tmp_path / "secret.png"), "a\0b"], 50
        )
        assert made.keys() == {"a.jpg", "b.png"}
        assert all(uri.startswith("data:image/jpeg;base64,") for uri in made.values())

    def test_the_budget_is_kept(self, tmp_path: Path) -> None:
        names = [f"{number}.png" for number in range(100)]
        for name in names:
            Image.effect_noise((64, 64), 80).save(tmp_path / name)
        thumbnails = Thumbnails(tmp_path, (3, 224, 224))
        one = len(thumbnails.make(names[:1], 64)[names[0]])
        made = thumbnails.make(names, 64, budget=20 * one)
        assert 15 <= len(made) <= 25
        assert sum(map(len, made.values())) <= 20 * one
        assert list(made) == names[: len(made)]

    def test_rows_of_a_file_of_small_images(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(4, 3, 8, 8)))
        thumbnails = Thumbnails(tmp_path / "x.npz", (3, 8, 8))
        assert thumbnails.make(["0", "3", "4", "-1", "x"], 64).keys() == {"0", "3"}

    def test_features_and_missing_places_have_none(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", x=np.zeros((4, 8)))
        assert not Thumbnails(tmp_path / "x.npz", (8,)).available
        assert not Thumbnails(tmp_path / "gone.npz", (1, 8, 8)).available
        assert not Thumbnails(tmp_path / "gone", (3, 224, 224)).available


class TestDiscrepancy:
    def test_few_samples_are_all_taken(self) -> None:
        torch.manual_seed(0)
        labels = torch.arange(12) % 3
        source, target = (Outputs(torch.randn(12, 5), torch.randn(12, 3)) for _ in range(2))
        expected = contrastive_domain_discrepancy(
            (source.features, source.probabilities), (target.features, target.probabilities), labels, labels
        )
        assert domain_discrepancy(source, target, labels, labels) == pytest.approx(float(expected), rel=1e-5)

    def test_unknown_labels_take_no_part(self) -> None:
        torch.manual_seed(0)
        labels = torch.arange(12) % 3
        source, target = (Outputs(torch.randn(12, 5), torch.randn(12, 3)) for _ in range(2))
        known = labels.where(torch.arange(12) < 9, -1)
        some = Outputs(target.features[:9], target.logits[:9])
        discrepancy = domain_discrepancy(source, target, labels, known)
        assert discrepancy == pytest.approx(domain_discrepancy(source, some, labels, labels[:9]), rel=1e-5)

    def test_without_two_shared_classes_there_is_none(self) -> None:
        outputs = Outputs(torch.randn(4, 5), torch.randn(4, 3))
        assert domain_discrepancy(outputs, outputs, torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 2, 2])) is None
