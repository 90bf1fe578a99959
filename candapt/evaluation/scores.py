"""Label-free scores, which rate a network without a single target label, and the table `SCORES` of them.

To add one, write a function of `Evidence` and decorate it with `score`: `--select`, `candapt tune`, the records and the
report then have it. Notation: p are target probabilities of shape (n, classes), features have shape (n, d).
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from candapt.clustering import Clusters, label_change
from candapt.errors import UserError, known_name
from candapt.network.network import Outputs
from candapt.randomness import generator
from candapt.settings import LAST

DIMENSIONS = 64  # features are projected to this width before they are clustered or a domain classifier is trained
JUDGED = 1000  # maximum number of samples of each domain that the domain classifier uses; half of them to learn from
NEIGHBORS = 5  # target samples that a prediction is compared with


class DomainTest(NamedTuple):
    """A classifier of source against target features, on samples that it did not learn from."""

    error: float  # share that it assigns to the wrong domain, both domains weighing the same: 0.5 if they look alike
    source_rows: Tensor  # the source samples among them
    weights: Tensor  # density of the target over that of the source at each of these


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the scores of a round are computed from."""

    target: Outputs
    source: Outputs  # of source samples that were held out of training, or else of trained ones
    source_labels: Tensor  # shape (source samples,)
    clusters: Clusters  # of the target features, started from the source's class centers
    seed: int = 0  # seed of what the scores draw
    first_labels: Tensor | None = None  # cluster labels before any training, shape (n,)
    first_neighbors: Tensor | None = None  # nearest target samples before any training, shape (n, k)

    @property
    def predicted(self) -> Tensor:
        """Predicted class of each target sample, shape (n,)."""
        return self.target.logits.argmax(1)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.target.logits.shape[1]

    @cached_property
    def domains(self) -> DomainTest | None:
        """How well source and target can be told apart; None with too few samples."""
        return tell_domains_apart(self.source.features, self.target.features, generator(self.seed, "domains"))


@dataclass(frozen=True)
class Score:
    """A row of `SCORES`."""

    title: str  # its name in reports
    meaning: str  # what it measures, for help and reports
    value: Callable[[Evidence], float | None]  # None if the evidence lacks what it needs
    higher_is_better: bool = True
    is_share: bool = False  # whether it is shown in percent
    incomparable: str = ""  # why it cannot compare trainings with different settings, but only rounds; empty if it can
    needs_held_out: bool = False  # whether comparing settings by it needs source samples that were not trained on


SCORES: dict[str, Score] = {}  # label-free scores by name; a round's record holds each as `score_NAME`
RETIRED = {
    **dict.fromkeys(("entropy", "bnm", "confidence"), "information"),
    **dict.fromkeys(("source_accuracy", "source_confidence", "domain_error"), "protocol"),
    **dict.fromkeys(("neighbors", "distance", "label_change", "kept"), "neighbor_information"),
}  # scores of older versions, and the one to use instead


def score(
    name: str,
    title: str,
    meaning: str,
    *,
    higher_is_better: bool = True,
    is_share: bool = False,
    incomparable: str = "",
    needs_held_out: bool = False,
) -> Callable[[Callable[[Evidence], float | None]], Callable[[Evidence], float | None]]:
    """Add the decorated function to `SCORES`; the arguments are the fields of `Score`."""

    def register(value: Callable[[Evidence], float | None]) -> Callable[[Evidence], float | None]:
        SCORES[name] = Score(title, meaning, value, higher_is_better, is_share, incomparable, needs_held_out)
        return value

    return register


def all_scores(evidence: Evidence) -> dict[str, float]:
    """Every score that the evidence allows, by name."""
    values = {name: each.value(evidence) for name, each in SCORES.items()}
    return {name: value for name, value in values.items() if value is not None and np.isfinite(value)}


@score(
    "neighbor_information",
    "Neighbor information",
    "mutual information of a prediction and those of its nearest neighbors before training, of at most 1",
    is_share=True,
)
def _neighbor_information(evidence: Evidence) -> float | None:
    if evidence.first_neighbors is None:
        return None
    return neighbor_information(evidence.predicted, evidence.first_neighbors, evidence.classes)


@score("agreement", "Agreement", "share of the target on which classifier and clusters agree", is_share=True)
def _agreement(evidence: Evidence) -> float:
    return agreement(evidence.predicted, evidence.clusters.labels)


@score(
    "first_agreement",
    "First agreement",
    "share of the target on which the classifier agrees with the clusters before training",
    is_share=True,
    incomparable="a training that changes little does best",
)
def _first_agreement(evidence: Evidence) -> float | None:
    return None if evidence.first_labels is None else agreement(evidence.predicted, evidence.first_labels)


@score("class_ami", "ClassAMI", "adjusted mutual information of the predictions and a clustering of the features")
def _class_ami(evidence: Evidence) -> float:
    return class_ami(evidence.target.features, evidence.predicted, evidence.classes)


@score(
    "protocol",
    "Protocol",
    "the paper's protocol: source error, plus how well the domains can be told apart",
    higher_is_better=False,
    needs_held_out=True,
)
def _protocol(evidence: Evidence) -> float | None:
    if evidence.domains is None:
        return None
    return protocol(agreement(evidence.source.logits.argmax(1), evidence.source_labels), evidence.domains.error)


@score("information", "Information", "information maximization: confident predictions of many classes")
def _information(evidence: Evidence) -> float:
    return information_maximization(evidence.target.probabilities)


@score("snd", "SND", "soft neighborhood density of the predictions")
def _snd(evidence: Evidence) -> float:
    return soft_neighborhood_density(evidence.target.probabilities)


@score(
    "dev",
    "DEV",
    "deep embedded validation: the target's risk from weighted source losses",
    higher_is_better=False,
    needs_held_out=True,
)
def _dev(evidence: Evidence) -> float | None:
    if evidence.domains is None:
        return None
    losses = cross_entropy(evidence.source.logits, evidence.source_labels, reduction="none")
    return deep_embedded_validation(losses[evidence.domains.source_rows].double(), evidence.domains.weights.double())


def information_maximization(p: Tensor) -> float:
    """Entropy of the mean prediction minus the mean entropy: high for confident predictions of many classes."""
    return float(torch.special.entr(p.mean(0)).sum()) - float(torch.special.entr(p).sum(1).mean())


def soft_neighborhood_density(p: Tensor, *, block: int = 500) -> float:
    """SND: mean entropy of each prediction's similarities to all others: high if predictions form dense groups."""
    units, total = normalize(p), 0.0
    for start in range(0, len(units), block):  # blocks bound the memory and do not change the result
        similarity = units[start : start + block] @ units.T / 0.05  # the temperature of Saito et al., 2021
        similarity.diagonal(start).fill_(-torch.inf)
        total += float(torch.special.entr(similarity.softmax(1)).sum())
    return total / len(units)


def class_ami(features: Tensor, predicted: Tensor, classes: int) -> float:
    """Adjusted mutual information of predictions and k-means clusters of the features, as many as there are classes."""
    from sklearn import cluster, exceptions, metrics

    draw = generator("class ami")  # the same start in every round, so that rounds differ by their features alone
    reduced = principal_directions(normalize(features.float()), DIMENSIONS, draw).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)  # fewer distinct samples than clusters
        labels = cluster.KMeans(min(classes, len(reduced)), n_init=3, random_state=0).fit_predict(reduced)
    return float(metrics.adjusted_mutual_info_score(predicted.numpy(), labels))


def agreement(first: Tensor, second: Tensor) -> float:
    """Share of samples that have the same label in both, shape (n,) each."""
    return 1 - label_change(first, second)


def neighbor_agreement(predicted: Tensor, neighbors: Tensor) -> float:
    """Share of each sample's neighbors, shape (n, k), that are predicted as it is, on average."""
    return float((predicted[neighbors] == predicted[:, None]).double().mean())


def neighbor_information(predicted: Tensor, neighbors: Tensor, classes: int) -> float:
    """Mutual information of predictions and those of neighbors, over log(classes); merged classes do not raise it."""
    own, near = predicted[:, None].expand_as(neighbors).flatten(), predicted[neighbors].flatten()
    mutual = _entropy_of(own) + _entropy_of(near) - _entropy_of(own * classes + near)
    return mutual / math.log(max(classes, 2))


def _entropy_of(labels: Tensor) -> float:
    """Entropy of the shares of the labels, in nats."""
    counts = np.unique(labels.numpy(), return_counts=True)[1]
    return float(torch.special.entr(torch.as_tensor(counts / counts.sum())).sum())


def deep_embedded_validation(losses: Tensor, weights: Tensor) -> float:
    """DEV: the target risk by source losses, weighted by density ratios, with a control variate (You et al., 2019)."""
    weighted = weights * losses
    covariance = torch.cov(torch.stack([weighted, weights]))
    eta = -covariance[0, 1] / covariance[1, 1] if covariance[1, 1] > 0 else torch.tensor(0.0)
    return float(weighted.mean() + eta * weights.mean() - eta)


def protocol(source_accuracy: float, domain_error: float) -> float:
    """The paper's protocol (as in DAN): source error, plus how well the domains can be told apart (0: not at all)."""
    return (1 - source_accuracy) + max(0.0, 1 - 2 * domain_error)


def tell_domains_apart(source: Tensor, target: Tensor, draw: torch.Generator) -> DomainTest | None:
    """Test of a classifier that learned to tell features of the source, (n, d), from those of the target, (m, d)."""
    if min(len(source), len(target)) < 4:  # the half that is not learned from would mean nothing
        return None
    from sklearn.linear_model import LogisticRegression

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
    """Centered features (n, d) along about their first `width` principal directions, by random projection."""
    centered = features - features.mean(0)
    if features.shape[1] <= width:
        return centered
    start = torch.randn(features.shape[1], width, generator=draw)
    directions: Tensor = torch.linalg.qr(centered.T @ (centered @ start))[0]
    return centered @ directions


def nearest_neighbors(features: Tensor, count: int = NEIGHBORS) -> Tensor:
    """The other samples with the most similar direction, nearest first, shape (n, count) or fewer columns."""
    units = normalize(features.float())
    similarity = units @ units.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(count, len(units) - 1), dim=1).indices


def import_libraries() -> None:
    """Import what the scores need, so that no round is charged for the seconds that it takes."""
    from sklearn import cluster, linear_model, metrics  # noqa: F401


@dataclass(frozen=True)
class Choice:
    """The round that was kept, and the last one."""

    select: str  # the score that chose, or `LAST`
    round: int
    value: float | None  # its score; None if nothing was scored
    last_round: int
    last_value: float | None
    differing: float  # share of the target for which the last round predicts another class

    def describe(self) -> dict[str, Any]:
        """The entry in `summary.json`."""
        return {
            "score": self.select,
            "round": self.round,
            "value": self.value,
            "last": {"round": self.last_round, "value": self.last_value, "differing_predictions": self.differing},
        }


def check_selection(select: str) -> None:
    """Raise a `UserError` for an unknown score; the sentence names the successor of one that was removed."""
    if select != LAST:
        check_score_name(select, "select", [LAST, *SCORES])


def check_score_name(name: str, option: str, names: Sequence[str]) -> None:
    """Raise a `UserError` for a name that is not among those that the option takes."""
    if name in RETIRED and name not in names:
        raise UserError(f"{option} is {name!r}, a score that was removed: use {RETIRED[name]} instead.")
    known_name(name, names, f"score for {option} named")


def merit(record: Mapping[str, float | int], select: str) -> float | None:
    """How good a round is, higher is better; None for one of the warm-up or without the score. `LAST` prefers later."""
    if record.get("warmup"):
        return None
    if select == LAST:
        return float(record["round"])
    value = value_of(record, select)
    return value if value is None or SCORES[select].higher_is_better else -value


def value_of(record: Mapping[str, float | int], select: str) -> float | None:
    """A round's score as it was recorded."""
    return record.get(f"score_{select}")


def choose_round(history: Sequence[Mapping[str, float | int]], select: str) -> int:
    """Index of the best round in the history; the later one of equals, and the last one if none can be chosen."""
    merits = [(value, place) for place, record in enumerate(history) if (value := merit(record, select)) is not None]
    return max(merits)[1] if merits else len(history) - 1


def describe_rule(select: str) -> str:
    """The rule in a few words."""
    return "last round" if select == LAST else f"best {select.replace('_', ' ')}"
