"""The choice of views by the labeled source."""

from pathlib import Path

import pytest
import torch

from candapt.data.domains import LabeledDomain
from candapt.data.images import labeled_image_domain
from candapt.evaluation import view_choice
from candapt.evaluation.reference import RIDGE
from candapt.evaluation.view_choice import FOLDS, LIMIT, candidates, choose_views, compare, held_out, sample_rows
from candapt.network.activations import ActivationCache
from candapt.settings import ImageSettings, NetworkSettings
from tests.images import write_photos, write_weights

PLAIN = ImageSettings()


def test_candidates() -> None:
    first, second = candidates(PLAIN, mirror=False, any_size=True)
    assert (first.images, first.mirror) == (PLAIN, False)
    assert (second.images.size, second.images.resize, second.mirror) == (288, 328, True)
    assert second.images.mean == PLAIN.mean
    assert second.name == "288×288 with mirror images"
    sizes = [candidates(ImageSettings(size, size), mirror=False, any_size=True)[1].images.size for size in (240, 260)]
    assert sizes == [320, 320]
    assert candidates(PLAIN, mirror=True, any_size=False)[1].images == PLAIN


class TestSample:
    def test_a_small_source_is_taken_whole(self) -> None:
        labels = torch.arange(450) % 5
        assert torch.equal(sample_rows(labels), torch.arange(450))

    def test_of_a_large_one_as_many_of_each_class(self) -> None:
        labels = torch.cat([torch.arange(3000) % 10, torch.full((1000,), 3)])
        rows = sample_rows(labels)
        assert torch.equal(rows, rows.sort().values)
        assert labels[rows].bincount().tolist() == [LIMIT // 10] * 10
        assert torch.equal(rows, sample_rows(labels))

    def test_classes_too_small_for_the_folds_are_left_out(self) -> None:
        labels = torch.tensor([0] * 40 + [1] * (FOLDS - 1) + [2] * 40)
        assert labels[sample_rows(labels)].unique().tolist() == [0, 2]
        assert len(sample_rows(torch.arange(30))) == 0

    def test_many_classes(self) -> None:
        labels = torch.arange(3000) % 300
        assert labels[sample_rows(labels)].bincount().tolist() == [FOLDS] * 300


def clouds(noise: float, *, width: int = 600, count: int = 150) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes around their centers, with more dimensions than samples."""
    torch.manual_seed(0)
    labels = torch.arange(count) % 3
    return torch.randn(3, width)[labels] + noise * torch.randn(count, width), labels


class TestHeldOut:
    def test_each_row_is_tested_by_a_classifier_of_the_other_folds(self) -> None:
        """The same by scikit-learn, in all dimensions."""
        from sklearn.linear_model import LogisticRegression

        features, labels = clouds(8.0)
        units = torch.nn.functional.normalize(features)
        units = torch.nn.functional.normalize((units - units.mean(0)) / (units.std(0, correction=0) + 1e-6))
        inputs, expected = (units * 600**0.5).numpy(), torch.empty(150, 3)
        for number in range(FOLDS):
            tested = (torch.arange(150) // 3 % FOLDS == number).numpy()  # by the place in its class
            model = LogisticRegression(C=1 / RIDGE / (~tested).sum(), tol=1e-8, max_iter=1000)
            model.fit(inputs[~tested], labels.numpy()[~tested])
            expected[tested] = torch.from_numpy(model.predict_log_proba(inputs[tested])).float()
        torch.testing.assert_close(held_out(features, labels), expected, atol=0.02, rtol=0.02)

    def test_labels_without_a_meaning_are_guessed(self) -> None:
        features, labels = clouds(1.0)
        random = torch.randint(3, labels.shape)
        assert (held_out(features, labels).argmax(1) == labels).all()
        assert (held_out(features, random).argmax(1) == random).float().mean() < 0.6


class TestChoice:
    def choose(self, monkeypatch: pytest.MonkeyPatch, *noise: float) -> view_choice.ViewChoice:
        features = iter([clouds(each)[0] for each in noise])
        monkeypatch.setattr(view_choice, "_features", lambda *_: next(features))
        domain = LabeledDomain(torch.zeros(150, 1), labels=clouds(1)[1], classes=("a", "b", "c"))
        pair = candidates(PLAIN, mirror=False, any_size=True)
        return choose_views(domain, pair, NetworkSettings(), ActivationCache(), torch.device("cpu"))

    def test_better_views_are_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = self.choose(monkeypatch, 12.0, 6.0)
        assert made.chosen.images.size == 288
        assert made.chosen.mirror
        assert made.sentence.startswith(
            "Views: 288×288 with mirror images, which are better than 224×224 on the source"
        )
        assert made.figures["gain"] > 2 * made.figures["error"] > 0
        assert made.figures["compared"] == 150

    @pytest.mark.parametrize("noise", [(6.0, 12.0), (8.0, 8.0)])
    def test_others_are_not(self, monkeypatch: pytest.MonkeyPatch, noise: tuple[float, float]) -> None:
        made = self.choose(monkeypatch, *noise)
        assert (made.chosen.images, made.chosen.mirror) == (PLAIN, False)
        assert "are not better by more than chance" in made.sentence

    def test_chance_rarely_decides(self) -> None:
        """Other noise of the same size is taken for better in few of many trials."""
        torch.manual_seed(0)
        labels, centers, taken = torch.arange(90) % 3, torch.randn(3, 40), 0
        for _ in range(30):
            made = compare(*(centers[labels] + 3 * torch.randn(90, 40) for _ in range(2)), labels)
            taken += made.gain > view_choice.SURE * made.error
        assert taken <= 4

    def test_too_few_images(self) -> None:
        domain = LabeledDomain(torch.zeros(20, 1), labels=torch.arange(20) % 2, classes=("a", "b"))
        pair = candidates(PLAIN, mirror=False, any_size=True)
        made = choose_views(domain, pair, NetworkSettings(), ActivationCache(), torch.device("cpu"))
        assert made.chosen == pair[0]
        assert "too few images" in made.sentence

    def test_features_come_by_way_of_the_cache(self, tmp_path: Path) -> None:
        weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
        images, cache = ImageSettings(size=32, resize=36), ActivationCache(tmp_path / "cache")
        source, _ = labeled_image_domain(write_photos(tmp_path / "photos", per_class=30), images)
        network = NetworkSettings("test_resnet", weights, finetune="head")
        pair = candidates(images, mirror=False, any_size=True)
        assert pair[1].images.size == 32
        made = [choose_views(source, pair, network, cache, torch.device("cpu")) for _ in range(2)]
        assert made[0] == made[1]
        assert made[0].figures["right"][0] > 0.9
        assert [entry.views for entry in cache.entries()] == [["evaluation"]] * 2
