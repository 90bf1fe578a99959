"""How good a network looks without a single target label: pure functions, and the table `SCORES` of them.

Notation: p are target probabilities of shape (n, classes), features have shape (n, d).
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from candapt.clustering import Clusters, label_change
from candapt.network.network import Outputs
from candapt.randomness import generator

DIMENSIONS = 64
"""Width to which features are projected before they are clustered or a domain classifier is trained on them."""
JUDGED = 1000
"""Samples of each domain that the domain classifier looks at, at most; half of them to learn from."""
NEIGHBORS = 5
"""Target samples that a prediction is compared with."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the scores look at after a round."""

    target: Outputs
    source: Outputs
    """Of source samples that were held out of training, or else of trained ones."""
    source_labels: Tensor
    """Shape (source samples,)."""
    clusters: Clusters
    """Of the target features, started from the source's class centers."""
    domains: "DomainTest | None"
    """How well source and target can be told apart; None where there are too few samples to tell."""
    last_labels: Tensor | None = None
    """Cluster labels after the round before, shape (n,)."""
    first_labels: Tensor | None = None
    """Cluster labels before any training, shape (n,)."""
    first_neighbors: Tensor | None = None
    """Nearest target samples before any training, shape (n, k)."""
    kept_share: float | None = None
    """Share of the target that the method kept in this round, if it filters."""

    @property
    def predicted(self) -> Tensor:
        """Predicted class of each target sample, shape (n,)."""
        return self.target.logits.argmax(1)


class DomainTest(NamedTuple):
    """A classifier of source against target features, on samples that it did not learn from."""

    error: float
    """Share of them that it takes for the other domain, both domains weighing the same: 0.5 if they look alike."""
    source_rows: Tensor
    """Source samples that it did not learn from."""
    weights: Tensor
    """Density of the target over that of the source at each of these."""


def entropy(p: Tensor) -> float:
    """Mean entropy of the predictions, in nats: small if they are sure."""
    return float(torch.special.entr(p).sum(1).mean())


def information_maximization(p: Tensor) -> float:
    """Entropy of the mean prediction minus the mean entropy: large if predictions are sure and of many classes."""
    return float(torch.special.entr(p.mean(0)).sum()) - entropy(p)


def nuclear_norm(p: Tensor) -> float:
    """BNM, the nuclear norm of p divided by n: large if predictions are sure and of many classes."""
    # The singular values are the roots of the eigenvalues of a (classes, classes) matrix, which is small.
    squared = torch.linalg.eigvalsh(p.double().T @ p.double())
    return float(squared.clamp_min(0).sqrt().sum()) / len(p)


def soft_neighborhood_density(p: Tensor, *, temperature: float = 0.05, block: int = 500) -> float:
    """SND: mean entropy of each prediction's similarities to all others: large if predictions come in dense groups.

    Args:
        p: probabilities, shape (n, classes).
        temperature: what similarities are divided by.
        block: rows looked at together; bounds memory and does not change the result.
    """
    units, total = normalize(p), 0.0
    for start in range(0, len(units), block):
        similarity = units[start : start + block] @ units.T / temperature
        similarity.diagonal(start).fill_(-torch.inf)
        total += float(torch.special.entr(similarity.softmax(1)).sum())
    return total / len(units)


def class_ami(features: Tensor, predicted: Tensor, classes: int) -> float:
    """Adjusted mutual information of predictions and k-means clusters of the features, as many as there are classes."""
    draw = generator("class ami")  # the same start in every round, so that rounds differ by their features alone
    reduced = principal_directions(normalize(features.float()), DIMENSIONS, draw).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than clusters
        found = KMeans(min(classes, len(reduced)), n_init=3, random_state=0).fit_predict(reduced)
    return float(adjusted_mutual_info_score(predicted.numpy(), found))


def agreement(first: Tensor, second: Tensor) -> float:
    """Share of samples that have the same label in both, shape (n,) each."""
    return 1 - label_change(first, second)


def neighbor_agreement(predicted: Tensor, neighbors: Tensor) -> float:
    """Share of each sample's neighbors, shape (n, k), that are predicted as it is, on average."""
    return float((predicted[neighbors] == predicted[:, None]).double().mean())


def neighbor_information(predicted: Tensor, neighbors: Tensor, classes: int) -> float:
    """Mutual information of the predictions of a sample and of a neighbor, over its maximum log(classes).

    Unlike their agreement it rewards neither few classes nor classes that are merged.
    """
    own, near = predicted[:, None].expand_as(neighbors).flatten(), predicted[neighbors].flatten()
    mutual = _entropy_of(own) + _entropy_of(near) - _entropy_of(own * classes + near)
    return mutual / math.log(max(classes, 2))


def _entropy_of(labels: Tensor) -> float:
    """Entropy of the shares of the labels, in nats."""
    counts = np.unique(labels.numpy(), return_counts=True)[1]
    return float(torch.special.entr(torch.as_tensor(counts / counts.sum())).sum())


def confidence(logits: Tensor) -> float:
    """Mean probability of the predicted class."""
    return float(logits.softmax(1).amax(1).mean())


def deep_embedded_validation(losses: Tensor, weights: Tensor) -> float:
    """DEV: the risk on the target, estimated from weighted source losses with a control variate (You et al., 2019).

    Args:
        losses: loss of each source sample, shape (n,).
        weights: density of the target over that of the source at each, shape (n,).
    """
    weighted = weights * losses
    covariance = torch.cov(torch.stack([weighted, weights]))
    eta = -covariance[0, 1] / covariance[1, 1] if covariance[1, 1] > 0 else torch.tensor(0.0)
    return float(weighted.mean() + eta * weights.mean() - eta)


def protocol(source_accuracy: float, domain_error: float) -> float:
    """The paper's protocol (as in DAN): source error, plus how far the domains can be told apart (0: not at all)."""
    return (1 - source_accuracy) + max(0.0, 1 - 2 * domain_error)


def tell_domains_apart(source: Tensor, target: Tensor, draw: torch.Generator) -> DomainTest | None:
    """Train a classifier of source against target on half of the features and try it on the other half.

    Args:
        source: features, shape (n, d).
        target: features, shape (m, d).
        draw: chooses samples and projection.

    Returns:
        None with fewer than four samples of a domain, which no half could tell anything of.
    """
    if min(len(source), len(target)) < 4:
        return None
    rows = [torch.randperm(len(features), generator=draw)[:JUDGED] for features in (source, target)]
    joined = torch.cat([normalize(f[r].float()) for f, r in zip((source, target), rows, strict=True)])
    reduced = principal_directions(joined, DIMENSIONS, draw).numpy()
    is_target = np.repeat([False, True], [len(r) for r in rows])
    learned = np.concatenate([np.arange(len(r)) % 2 == 0 for r in rows])
    scale = reduced[learned].std(0).max() + 1e-12
    model = LogisticRegression(solver="newton-cholesky", class_weight="balanced", max_iter=50)
    model.fit(reduced[learned] / scale, is_target[learned])
    odds = model.decision_function(reduced[~learned] / scale)
    wrong, tried = (odds > 0) != is_target[~learned], is_target[~learned]
    weights = torch.as_tensor(np.exp(np.clip(odds[~tried], -20, 20)))
    return DomainTest(float((wrong[tried].mean() + wrong[~tried].mean()) / 2), rows[0][1::2], weights)


def principal_directions(features: Tensor, width: int, draw: torch.Generator) -> Tensor:
    """Centered features (n, d) along about their first `width` principal directions, found by random projection."""
    centered = features - features.mean(0)
    if features.shape[1] <= width:
        return centered
    start = torch.randn(features.shape[1], width, generator=draw)
    directions, _ = torch.linalg.qr(centered.T @ (centered @ start))
    reduced: Tensor = centered @ directions
    return reduced


def nearest_neighbors(features: Tensor, count: int = NEIGHBORS) -> Tensor:
    """The other samples with the most similar direction, nearest first, shape (n, count) or fewer columns."""
    units = normalize(features.float())
    similarity = units @ units.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(count, len(units) - 1), dim=1).indices


@dataclass(frozen=True)
class Score:
    """A row of the table."""

    meaning: str
    """What it is, for help and reports."""
    higher_is_better: bool
    value: Callable[[Evidence], float | None]
    """None where a method or a round has no such thing."""


def _source_accuracy(seen: Evidence) -> float:
    return agreement(seen.source.logits.argmax(1), seen.source_labels)


def _dev(seen: Evidence) -> float | None:
    if seen.domains is None:
        return None
    losses = cross_entropy(seen.source.logits, seen.source_labels, reduction="none")
    return deep_embedded_validation(losses[seen.domains.source_rows].double(), seen.domains.weights.double())


def _information(seen: Evidence) -> float | None:
    if seen.first_neighbors is None:
        return None
    return neighbor_information(seen.predicted, seen.first_neighbors, seen.target.logits.shape[1])


SCORES: dict[str, Score] = {
    "entropy": Score("mean entropy of the target's predictions", False, lambda e: entropy(e.target.probabilities)),
    "information": Score(
        "information maximization: sure predictions of many classes",
        True,
        lambda e: information_maximization(e.target.probabilities),
    ),
    "bnm": Score("nuclear norm of the predictions", True, lambda e: nuclear_norm(e.target.probabilities)),
    "snd": Score("soft neighborhood density", True, lambda e: soft_neighborhood_density(e.target.probabilities)),
    "class_ami": Score(
        "predictions against a clustering of the features, adjusted mutual information",
        True,
        lambda e: class_ami(e.target.features, e.predicted, e.target.logits.shape[1]),
    ),
    "dev": Score("deep embedded validation: the target's risk by weighted source losses", False, _dev),
    "source_accuracy": Score("accuracy on the source", True, _source_accuracy),
    "domain_error": Score(
        "error of a classifier of source against target features", True, lambda e: e.domains and e.domains.error
    ),
    "protocol": Score(
        "the paper's protocol: source error, and how far the domains can be told apart",
        False,
        lambda e: e.domains and protocol(_source_accuracy(e), e.domains.error),
    ),
    "agreement": Score(
        "share of the target on which classifier and clusters agree",
        True,
        lambda e: agreement(e.predicted, e.clusters.labels),
    ),
    "distance": Score("mean distance to the cluster's center", False, lambda e: float(e.clusters.distances.mean())),
    "label_change": Score(
        "share of cluster labels that changed in the round",
        False,
        lambda e: None if e.last_labels is None else label_change(e.last_labels, e.clusters.labels),
    ),
    "kept": Score("share of the target that the round kept", True, lambda e: e.kept_share),
    "confidence": Score("mean probability of the predicted class", True, lambda e: confidence(e.target.logits)),
    "source_confidence": Score("the same on the source", True, lambda e: confidence(e.source.logits)),
    "first_agreement": Score(
        "share of the target on which the classifier agrees with clusters from before training",
        True,
        lambda e: None if e.first_labels is None else agreement(e.predicted, e.first_labels),
    ),
    "neighbors": Score(
        "share of each sample's nearest neighbors before training that are predicted as it is",
        True,
        lambda e: None if e.first_neighbors is None else neighbor_agreement(e.predicted, e.first_neighbors),
    ),
    "neighbor_information": Score("what a prediction tells of its neighbors', of at most 1", True, _information),
}
"""Label-free scores by name; each stands in a round's record as `score_NAME`."""


def all_scores(evidence: Evidence) -> dict[str, float]:
    """Every score that there is evidence for, by name."""
    values = {name: score.value(evidence) for name, score in SCORES.items()}
    return {name: value for name, value in values.items() if value is not None and np.isfinite(value)}
