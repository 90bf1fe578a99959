"""The estimator by scikit-learn's own checks, and beside the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import candapt
from candapt import Domain, DomainAdaptationClassifier
from candapt.errors import UserError
from tests.images import write_photos, write_weights
from tests.toy import QUICK, Toy

SETTINGS = {name: value for name, value in QUICK.items() if name != "rounds"}
# The checks ask for 83 % on the training data, which takes a little more than the other tests do.
CHECKED = SETTINGS | {"training.steps": 15, "training.learning_rate": 0.02, "can.warmup": 1}


def quick(**options: Any) -> DomainAdaptationClassifier:
    return DomainAdaptationClassifier(**{"rounds": 2, "settings": SETTINGS} | options)


@parametrize_with_checks([quick(settings=CHECKED)])
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


class TestFit:
    def test_what_is_learned(self, toy: Toy) -> None:
        model = quick().fit(toy.source_x, toy.source_y, target=toy.target_x)
        assert model.classes_.tolist() == [0, 1, 2, 3]
        assert model.n_features_in_ == 24
        assert len(model.history_) == 2
        assert model.pseudo_labels_.shape == toy.target_y.shape
        assert model.model_.classes == ("0", "1", "2", "3")

    def test_outputs(self, toy: Toy) -> None:
        model = quick().fit(toy.source_x, toy.source_y, target=toy.target_x)
        probabilities = model.predict_proba(toy.target_x)
        assert probabilities.shape == (120, 4)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        assert np.array_equal(model.predict(toy.target_x), model.classes_[probabilities.argmax(axis=1)])
        assert model.transform(toy.target_x).shape == (120, 4 * 16)  # four heads
        assert model.score(toy.target_x, toy.target_y) == np.mean(model.predict(toy.target_x) == toy.target_y)

    def test_it_adapts(self, toy: Toy) -> None:
        settings = SETTINGS | {"network.bottleneck": 64, "training.steps": 10, "training.learning_rate": 0.005}
        model = quick(rounds=6, settings=settings | {"can.warmup": 1})
        adapted = model.fit(toy.source_x, toy.source_y, target=toy.target_x)
        assert adapted.score(toy.target_x, toy.target_y) > 0.95

    def test_without_a_target_the_source_is_taken(self, toy: Toy) -> None:
        alone = quick().fit(toy.source_x, toy.source_y)
        given = quick().fit(toy.source_x, toy.source_y, target=toy.source_x)
        assert np.array_equal(alone.predict_proba(toy.source_x), given.predict_proba(toy.source_x))

    @pytest.mark.parametrize("names", [["dog", "cat", "eel", "ant"], [7, -3, 100, 0], [True, False]])
    def test_labels_of_any_kind(self, toy: Toy, names: list[Any]) -> None:
        labels = np.array(names)[toy.source_y % len(names)]
        model = quick().fit(toy.source_x, labels, target=toy.target_x)
        assert model.classes_.tolist() == sorted(names)
        assert model.predict(toy.target_x).dtype == labels.dtype
        assert set(model.predict(toy.target_x)) <= set(names)
        assert set(model.pseudo_labels_) <= set(names)

    def test_names_do_not_matter(self, toy: Toy) -> None:
        numbers = quick().fit(toy.source_x, toy.source_y, target=toy.target_x)
        names = quick().fit(toy.source_x, np.array(list("abcd"))[toy.source_y], target=toy.target_x)
        assert np.array_equal(numbers.predict_proba(toy.target_x), names.predict_proba(toy.target_x))

    @pytest.mark.parametrize("shape", [(40, 12, 12), (40, 1, 12, 12)])
    def test_small_gray_images(self, shape: tuple[int, ...]) -> None:
        images = np.random.default_rng(0).random(shape)
        model = quick(settings={"training.steps": 2}).fit(images, np.arange(40) % 2, target=images[:30])
        assert model.predict(images[:5]).shape == (5,)
        again = quick(settings={"training.steps": 2}).fit(images, np.arange(40) % 2, target=Domain(images[:30]))
        assert np.array_equal(model.predict_proba(images), again.predict_proba(images))

    def test_random_states_are_left_alone(self, toy: Toy) -> None:
        before = torch.get_rng_state()
        quick().fit(toy.source_x, toy.source_y, target=toy.target_x).predict(toy.target_x)
        assert torch.equal(torch.get_rng_state(), before)

    def test_seeds(self, toy: Toy) -> None:
        first, again, other = (
            quick(seed=seed).fit(toy.source_x, toy.source_y, target=toy.target_x).predict_proba(toy.target_x)
            for seed in (0, 0, 1)
        )
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


class TestTools:
    def test_a_clone_is_equal_and_unfitted(self, toy: Toy) -> None:
        model = quick(method="source-only", seed=4).fit(toy.source_x, toy.source_y)
        copy = clone(model)
        assert copy.get_params() == model.get_params()
        assert not hasattr(copy, "model_")
        assert np.array_equal(
            copy.fit(toy.source_x, toy.source_y).predict_proba(toy.target_x), model.predict_proba(toy.target_x)
        )

    def test_grid_search_hands_the_target_on_whole(self, toy: Toy) -> None:
        grid = [SETTINGS | {"can.weight": weight} for weight in (0.1, 0.5)]
        search = GridSearchCV(quick(rounds=1), {"settings": grid}, cv=2, error_score="raise")
        search.fit(toy.source_x, toy.source_y, target=Domain(toy.target_x))
        assert search.best_estimator_.pseudo_labels_.shape == toy.target_y.shape
        assert search.best_params_["settings"] in grid

    def test_a_pipeline(self, toy: Toy) -> None:
        pipeline = make_pipeline(StandardScaler(), quick())
        pipeline.fit(toy.source_x, toy.source_y, domainadaptationclassifier__target=Domain(toy.target_x))
        assert pipeline.predict(toy.target_x).shape == toy.target_y.shape

    def test_prediction_of_a_domain(self, toy: Toy) -> None:
        model = quick().fit(toy.source_x, toy.source_y, target=Domain(toy.target_x))
        assert np.array_equal(model.predict(Domain(toy.target_x)), model.predict(toy.target_x))


class TestFrames:
    """pandas data frames."""

    @pytest.fixture
    def frames(self, toy: Toy) -> tuple[Any, Any]:
        names = [f"feature {number}" for number in range(toy.source_x.shape[1])]
        return tuple(pd.DataFrame(x, columns=names) for x in (toy.source_x, toy.target_x))

    def test_they_are_like_arrays(self, toy: Toy, frames: tuple[Any, Any]) -> None:
        source, target = frames
        arrays = quick().fit(toy.source_x, toy.source_y, target=toy.target_x)
        model = quick().fit(source, pd.Series(toy.source_y), target=target)
        assert np.array_equal(model.predict_proba(target), arrays.predict_proba(toy.target_x))
        assert model.feature_names_in_.tolist() == source.columns.tolist()
        assert not hasattr(arrays, "feature_names_in_")

    def test_columns_must_be_the_same(self, toy: Toy, frames: tuple[Any, Any]) -> None:
        source, target = frames
        turned = target[target.columns[::-1]]
        with pytest.raises(ValueError, match="feature names should match"):
            quick().fit(source, toy.source_y, target=turned)
        with pytest.raises(ValueError, match="feature names should match"):
            quick().fit(source, toy.source_y, target=target).predict(turned)

    def test_transformed_features_can_be_a_frame(self, toy: Toy, frames: tuple[Any, Any]) -> None:
        model = quick().fit(frames[0], toy.source_y, target=frames[1]).set_output(transform="pandas")
        features = model.transform(frames[1])
        assert features.columns.tolist() == [f"domainadaptationclassifier{number}" for number in range(4 * 16)]
        assert features.index.equals(frames[1].index)


class TestPaths:
    """Lists of paths of image files."""

    @pytest.fixture
    def photos(self, tmp_path: Path) -> dict[str, list[Path]]:
        folders = (write_photos(tmp_path / "source"), write_photos(tmp_path / "target", seed=1))
        return {folder.name: sorted(folder.rglob("*.png")) for folder in folders}

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
        own = {"network.backbone": "test_resnet", "network.weights": str(weights), "images.size": 32}
        return SETTINGS | own

    @pytest.mark.parametrize("kind", [list, tuple, lambda paths: np.array(list(map(str, paths))), pd.Series])
    def test_lists_of_any_kind(
        self, photos: dict[str, list[Path]], settings: dict[str, Any], kind: Callable[[list[Path]], Any]
    ) -> None:
        labels = [path.parent.name for path in photos["source"]]
        model = quick(settings=settings).fit(kind(photos["source"]), labels, target=kind(photos["target"]))
        assert model.classes_.tolist() == ["cat", "dog"]
        assert model.pseudo_labels_.shape == (8,)
        assert set(model.predict(kind(photos["target"][:3]))) <= {"cat", "dog"}
        assert model.model_.shape == (3, 32, 32)
        assert not hasattr(model, "n_features_in_")

    def test_the_same_as_the_command(
        self, photos: dict[str, list[Path]], settings: dict[str, Any], tmp_path: Path
    ) -> None:
        labels = [path.parent.name for path in photos["source"]]
        model = quick(settings=settings).fit(photos["source"], labels, target=photos["target"])
        run = candapt.adapt(
            tmp_path / "source", tmp_path / "target", out=tmp_path / "run", rounds=2, report=False, **settings
        )
        assert model.predict(photos["target"]).tolist() == [row.label for row in run.predictions]

    def test_grid_search_cuts_them(self, photos: dict[str, list[Path]], settings: dict[str, Any]) -> None:
        labels = [path.parent.name for path in photos["source"]]
        search = GridSearchCV(quick(settings=settings), {"rounds": [1, 2]}, cv=2, error_score="raise")
        assert len(search.fit(photos["source"], labels).predict(photos["target"])) == 8

    def test_what_is_refused(self, photos: dict[str, list[Path]], settings: dict[str, Any], tmp_path: Path) -> None:
        labels, model = [path.parent.name for path in photos["source"]], quick(settings=settings)
        with pytest.raises(UserError, match="X has 8 images but y 7 labels"):
            model.fit(photos["source"], labels[1:])
        with pytest.raises(UserError, match="only one class"):
            model.fit(photos["source"], ["cat"] * 8)
        with pytest.raises(UserError, match="'X' cannot be used"):
            model.fit([*photos["source"][1:], tmp_path / "nope.png"], labels)
        with pytest.raises(UserError, match="give the target and new samples as lists"):
            model.fit(photos["source"], labels, target=np.zeros((8, 4)))
        with pytest.raises(UserError, match=r"no setting 'images.sise': did you mean 'images.size'"):
            quick(settings=settings | {"images.sise": 3}).fit(photos["source"], labels)


class TestRefusal:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"method": "nope"}, "There is no method 'nope'"),
            ({"preset": "nope"}, "There is no preset 'nope'"),
            ({"settings": {"nope": 1}}, "There is no setting 'nope'"),
            ({"settings": {"can.weigth": 1}}, "There is no setting 'can.weigth' for can: did you mean 'can.weight'"),
            ({"rounds": 0}, "rounds is 0, but must be at least 1"),
        ],
    )
    def test_settings(self, toy: Toy, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            quick(**options).fit(toy.source_x, toy.source_y, target=toy.target_x)

    def test_the_constructor_only_stores(self) -> None:
        assert DomainAdaptationClassifier("nope", rounds=-1).get_params()["rounds"] == -1

    @pytest.mark.parametrize("wrap", [np.asarray, Domain])
    def test_targets(self, toy: Toy, wrap: Any) -> None:
        with pytest.raises(ValueError, match=r"\(24,\) but target samples \(23,\)"):
            quick().fit(toy.source_x, toy.source_y, target=wrap(toy.target_x[:, 1:]))
        with pytest.raises(ValueError, match="NaN"):
            quick().fit(toy.source_x, toy.source_y, target=wrap(toy.target_x * np.nan))

    def test_one_class(self, toy: Toy) -> None:
        with pytest.raises(ValueError, match="only one class"):
            quick().fit(toy.source_x, 0 * toy.source_y, target=toy.target_x)
