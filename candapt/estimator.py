"""A scikit-learn estimator over the same code as the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from candapt.adaptation import adapt
from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Task
from candapt.data.features import array_samples, labeled_arrays
from candapt.data.memory import image_paths, listed_samples
from candapt.errors import UserError
from candapt.model import Predictions
from candapt.network.build import check_named_weights, expected_images
from candapt.presets import DEFAULT, make_settings
from candapt.settings import ImageSettings, Settings, image_choice


class DomainAdaptationClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Classify a target domain without labels, adapted from a labeled source domain.

    Samples are the rows of an array or a pandas data frame, or a list of paths of image files.

    Args:
        method: a name in `candapt.METHODS`.
        preset: where the settings' defaults come from: default, paper or official.
        rounds: rounds at most; None takes the preset's.
        seed: seed of every random draw.
        settings: further settings by the names of the command line's flags, for instance {"can.weight": 0.5} or
            {"network.weights": "resnet50.safetensors"}.

    Attributes:
        classes_: the class labels, as given in y.
        model_: the adapted `Model`.
        history_: the record of each round.
        pseudo_labels_: cluster label of each target sample.
        n_features_in_: number of features, unless the samples are images.
        feature_names_in_: names of the columns, if X is a data frame.

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
            X: source samples: features (n, d) in an array or a data frame, small gray images (n, h, w) or (n, 1, h, w),
                or a list of paths of image files.
            y: their labels, shape (n,).
            target: target samples, given like X, or a `Domain`. Inside scikit-learn's cross-validation give a `Domain`:
                scikit-learn would cut an array with as many rows as X like X. Without a target there is nothing to
                adapt to and the source itself is used.
        """
        settings, images = self._settings(), None
        if paths := image_paths(X):
            images = self._images(settings)
            source = self._labeled_images(paths, y, images)
        else:
            source = self._labeled_rows(X, y)
        task = Task(source, self._domain(X if target is None else target, images))
        result = adapt(task, settings, images=images)
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

    @property
    def _n_features_out(self) -> int:
        """Number of adapted features, which scikit-learn names after the class."""
        return int(self.model_.method.network.num_features)

    def _labeled_rows(self, X: Any, y: Any) -> LabeledDomain:  # noqa: N803
        X, y = validate_data(self, X, y, dtype=np.float32, allow_nd=True, ensure_min_samples=2)  # noqa: N806
        return labeled_arrays(X, self._numbers(y), [str(name) for name in self.classes_], where="X")

    def _labeled_images(self, paths: list[Path], y: Any, images: ImageSettings) -> LabeledDomain:
        y = column_or_1d(y, warn=True)
        if len(y) != len(paths):
            raise UserError(f"X has {len(paths)} images but y {len(y)} labels: give one label per image.")
        labels = torch.as_tensor(self._numbers(y))
        if len(self.classes_) < 2:
            raise UserError(f"y has only one class ({self.classes_[0]}): a classifier needs at least two.")
        names = tuple(map(str, paths))
        return LabeledDomain(listed_samples(paths, images, "X"), names, labels, tuple(map(str, self.classes_)))

    def _numbers(self, y: Any) -> Any:
        """The number of each label's class; sets `classes_`."""
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return numbers

    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        check_is_fitted(self, "model_")
        images = self.model_.images
        if not isinstance(X, Domain) and images is None:
            X = validate_data(self, X, reset=False, dtype=np.float32, allow_nd=True)  # noqa: N806
        return self.model_.predict(self._domain(X, images))

    def _domain(self, X: Any, images: ImageSettings | None) -> Domain:  # noqa: N803
        """Samples without labels: with image settings the files of a list, else the rows of an array."""
        samples, names = (X.samples, X.names) if isinstance(X, Domain) else (X, ())
        if isinstance(X, Domain) and not isinstance(samples, ArraySamples):
            return X
        if images is not None:
            if not (paths := image_paths(X)):
                raise UserError("The source is a list of image paths: give the target and new samples as lists too.")
            return Domain(listed_samples(paths, images, "the list"), tuple(map(str, paths)))
        if hasattr(X, "columns"):  # scikit-learn compares the columns with those of the source
            validate_data(self, X, reset=False, skip_check_array=True)
        # An array inside a domain is treated like a bare one, so that both give the same result.
        array = samples.array.numpy() if isinstance(samples, ArraySamples) else samples
        return Domain(array_samples(check_array(array, dtype=np.float32, allow_nd=True)), names)

    def _settings(self) -> Settings:
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        changes = {**rounds, **(self.settings or {})}
        own = {name: value for name, value in changes.items() if not name.startswith("images.")}
        if isinstance(weights := own.get("network.weights"), str):
            own["network.weights"] = Path(weights)
        return make_settings(self.method, preset=self.preset, seed=self.seed, changes=own)

    def _images(self, settings: Settings) -> ImageSettings:
        """How image files become samples; checks the weights file before the images are read."""
        check_named_weights(settings.network)
        return expected_images(settings.network, image_choice(self.settings or {}))
