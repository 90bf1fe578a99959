"""A scikit-learn estimator over the same code as the command line."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from candapt.adaptation import adapt
from candapt.data.domains import ArraySamples, Domain, Task
from candapt.data.features import array_samples, labeled_arrays
from candapt.model import Predictions
from candapt.presets import DEFAULT, make_settings
from candapt.settings import Settings


class DomainAdaptationClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Classify a target domain without labels, adapted from a labeled source domain.

    Args:
        method: a name in `candapt.METHODS`.
        preset: where the settings' defaults come from: default, paper or official.
        rounds: rounds at most; None takes the preset's.
        seed: seed of every random draw.
        settings: further settings by the names of the command line's flags, for instance {"can.weight": 0.5}.

    Attributes:
        classes_: the class labels, as given in y.
        model_: the adapted `Model`.
        history_: the record of each round.
        pseudo_labels_: cluster label of each target sample.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = np.arange(60) % 2
        >>> X = rng.normal(size=(60, 8)) + 3 * y[:, None]
        >>> model = DomainAdaptationClassifier(rounds=2).fit(X, y, target=X + 1)
        >>> model.predict(X + 1).shape
        (60,)
    """

    def __init__(
        self,
        method: str = "can",
        *,
        preset: str = DEFAULT,
        rounds: int | None = None,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.preset = preset
        self.rounds = rounds
        self.seed = seed
        self.settings = settings

    def fit(self, X: Any, y: Any, target: Any = None) -> Self:  # noqa: N803
        """Adapt from X, y to the target.

        Args:
            X: source samples: features (n, d), or small gray images (n, h, w) or (n, 1, h, w).
            y: their labels, shape (n,).
            target: target samples, an array like X or a `Domain`. Inside scikit-learn's cross-validation give a
                `Domain`: scikit-learn would cut an array with as many rows as X like X. Without a target there is
                nothing to adapt to and the source itself is used.
        """
        X, y = validate_data(self, X, y, dtype=np.float32, allow_nd=True, ensure_min_samples=2)  # noqa: N806
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        source = labeled_arrays(X, numbers, [str(name) for name in self.classes_], where="X")
        result = adapt(Task(source, self._domain(X if target is None else target)), self._settings())
        self.model_ = result.model
        self.history_ = result.history
        self.pseudo_labels_ = self.classes_[result.predictions.cluster_labels.numpy()]
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Class of each sample, which is assumed to come from the target domain; shape (n,)."""
        labels = self._predictions(X).labels.numpy()
        return self.classes_[labels]

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """Probability of each class in the order of `classes_`, shape (n, classes)."""
        return self._predictions(X).probabilities.numpy()

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Adapted features, shape (n, num_features)."""
        return self._predictions(X).features.numpy()

    def __sklearn_tags__(self) -> Any:
        """Tags for scikit-learn: features are in single precision."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        check_is_fitted(self, "model_")
        if not isinstance(X, Domain):
            X = validate_data(self, X, reset=False, dtype=np.float32, allow_nd=True)  # noqa: N806
        return self.model_.predict(self._domain(X))

    def _domain(self, X: Any) -> Domain:  # noqa: N803
        samples, names = (X.samples, X.names) if isinstance(X, Domain) else (X, ())
        if isinstance(X, Domain) and not isinstance(samples, ArraySamples):
            return X
        # An array inside a domain is treated like a bare one, so that both give the same result.
        array = samples.array.numpy() if isinstance(samples, ArraySamples) else samples
        return Domain(array_samples(check_array(array, dtype=np.float32, allow_nd=True)), names)

    def _settings(self) -> Settings:
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        changes = {**rounds, **(self.settings or {})}
        return make_settings(self.method, preset=self.preset, seed=self.seed, changes=changes)
