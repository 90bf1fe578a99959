"""Which views of images a frozen backbone sees best, as the labeled source tells: no label of the target is needed.

Larger views with mirror images take several times as long. They are taken only if a linear classifier over the source,
tested on images that it was not fitted to, is better with them by more than chance.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.data.domains import Domain, LabeledDomain
from candapt.data.images import ImageSamples
from candapt.evaluation.reference import fit_classifier, standardized
from candapt.network.activations import ActivationCache, Progress
from candapt.network.build import build_parts
from candapt.randomness import generator
from candapt.settings import ImageSettings, NetworkSettings, resize_for

FOLDS = 5  # parts of the sample; each is tested by a classifier fitted to the others
LIMIT = 400  # images of the source to compare views on, unless its classes are more than a fifth of that
FEWEST = 50  # images below which nothing is compared
SURE = 2.0  # standard errors by which the larger views must be better
LARGER = 9 / 7  # from 224 to 288 pixels
STEP = 32  # sizes are multiples of the factor by which backbones shrink their maps


@dataclass(frozen=True)
class Candidate:
    """Views to compare: how an image becomes the backbone's input, and whether its mirror image does too."""

    images: ImageSettings
    mirror: bool

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        return f"{self.images.size}×{self.images.size}{' with mirror images' if self.mirror else ''}"


@dataclass(frozen=True)
class ViewChoice:
    """The views that were chosen, and why."""

    chosen: Candidate
    sentence: str
    figures: dict[str, Any]  # for the run's summary


def candidates(images: ImageSettings, *, mirror: bool, any_size: bool) -> tuple[Candidate, Candidate]:
    """The views to start from, and those that may be better: mirrored, and larger if the backbone takes any size."""
    size = round(images.size * LARGER / STEP) * STEP if any_size else images.size
    larger = replace(images, size=size, resize=resize_for(size))
    return Candidate(images, mirror), Candidate(larger, True)


def choose_views(
    source: LabeledDomain,
    pair: Sequence[Candidate],
    network: NetworkSettings,
    cache: ActivationCache,
    device: torch.device,
    progress: Progress | None = None,
) -> ViewChoice:
    """The better one of two candidates for image files, the first if the second is not better by more than chance."""
    first, second = pair
    rows = sample_rows(source.labels)
    if len(rows) < FEWEST:
        sentence = f"Views: {first.name}; the source has too few images to compare them with {second.name}."
        return ViewChoice(first, sentence, {"compared": 0})
    before, after = (_features(source, rows, each, network, cache, device, progress) for each in pair)
    made = compare(before, after, source.labels[rows])
    chosen = second if made.gain > SURE * made.error else first
    figures = {"compared": len(rows), "candidates": [each.name for each in pair], **asdict(made)}
    return ViewChoice(chosen, _sentence(pair, chosen, made, len(rows)), figures)


def _sentence(pair: Sequence[Candidate], chosen: Candidate, made: "Comparison", count: int) -> str:
    """The choice and its reason, for the log."""
    first, second = pair
    better = f"Views: {second.name}, which are better than {first.name} on the source"
    no_better = f"Views: {first.name}; on the source {second.name} are not better by more than chance"
    return (
        f"{better if chosen is second else no_better}: a linear classifier gives the right class of held-out images "
        f"{made.gain:+.3f} ± {made.error:.3f} in log-likelihood, and {made.right[1]:.1%} rather than "
        f"{made.right[0]:.1%} of {count} are right."
    )


@dataclass(frozen=True)
class Comparison:
    """How much better a linear classifier does on held-out samples with the second of two kinds of features."""

    right: tuple[float, float]  # share of right predictions with each
    gain: float  # mean change of the log-likelihood of the right class
    error: float  # its standard error, by the differences of single samples


def compare(first: Tensor, second: Tensor, labels: Tensor) -> Comparison:
    """Compare two kinds of features of the same samples, shapes (n, d) and (n, e), by their labels, shape (n,)."""
    labels = torch.unique(labels, return_inverse=True)[1]
    before, after = held_out(first, labels), held_out(second, labels)
    gains = (after - before).gather(1, labels[:, None])
    right = tuple(float((scores.argmax(1) == labels).float().mean()) for scores in (before, after))
    return Comparison((right[0], right[1]), float(gains.mean()), float(gains.std() / len(gains) ** 0.5))


def sample_rows(labels: Tensor) -> Tensor:
    """Images to compare views on, in order: the same number of each class, of those that fill every fold.

    A source that is hardly larger is taken whole, so that the cache holds its features already.
    """
    counts = labels.bincount()
    classes = (counts >= FOLDS).nonzero().flatten()
    whole = torch.isin(labels, classes).nonzero().flatten()
    if len(labels) <= LIMIT * 5 // 4 and len(whole) == len(labels):
        return whole
    each, draw = max(FOLDS, LIMIT // max(1, len(classes))), generator("views of the source")
    drawn = []
    for number in classes.tolist():
        own = (labels == number).nonzero().flatten()
        drawn.append(own[torch.randperm(len(own), generator=draw)[:each]])
    return torch.cat(drawn).sort().values if drawn else whole


def held_out(features: Tensor, labels: Tensor) -> Tensor:
    """Logarithms of class probabilities, (n, classes), each row by a classifier that was fitted without its fold."""
    units, classes = normalize(features.float()), int(labels.max()) + 1
    units = standardized(features, units.mean(0), units.std(0, correction=0))
    # In the span of the samples all products are the same, in fewer dimensions.
    left, values, _ = torch.linalg.svd(units, full_matrices=False)
    width, span = units.shape[1] ** 0.5, min(units.shape) ** 0.5
    units = left * values * (width / span)  # the classifier multiplies by the root of the dimensions
    fold = _place_in_class(labels) % FOLDS
    scores = torch.empty(len(labels), classes)
    for number in range(FOLDS):
        tested = fold == number
        weights, bias = fit_classifier(units[~tested], labels[~tested], classes)
        scores[tested] = (units[tested] @ weights * span + bias).log_softmax(1)
    return scores


def _place_in_class(labels: Tensor) -> Tensor:
    """For each sample, how many of its class come before it."""
    same = labels[:, None] == labels
    return same.tril(-1).sum(1)


def _features(
    source: LabeledDomain,
    rows: Tensor,
    candidate: Candidate,
    network: NetworkSettings,
    cache: ActivationCache,
    device: torch.device,
    progress: Progress | None,
) -> Tensor:
    """Features of some images of the source in these views, by way of the cache."""
    assert isinstance(source.samples, ImageSamples)
    samples = source.samples.viewed(candidate.images, rows)
    with torch.random.fork_rng():
        settings = replace(network, mirror=candidate.mirror, views=0)
        parts = build_parts(settings, samples.shape, len(source.classes))
    assert parts.frozen is not None
    parts.frozen.to(device)
    (stored,) = cache.through(parts, Domain(samples), progress=progress)
    return stored.samples.read(torch.arange(len(samples)))
