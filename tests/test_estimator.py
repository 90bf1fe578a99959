"""The estimator by scikit-learn's own checks, and beside the command line."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from candapt import Domain, DomainAdaptationClassifier
from candapt.errors import UserError
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


class TestRefusal:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"method": "nope"}, "There is no method 'nope'"),
            ({"preset": "nope"}, "There is no preset 'nope'"),
            ({"settings": {"nope": 1}}, "There is no setting 'nope'"),
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
