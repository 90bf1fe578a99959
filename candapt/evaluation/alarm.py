"""The alarm: signs, seen without target labels, that adaptation failed or had to fail, as plain sentences.

The facts compare the adapted network with one that was trained on the source alone, and both with a reference: features
that no adaptation has changed. An adapted network makes its own predictions look good, so its own features cannot show
a failure; in the reference, target samples that are predicted as a class must still resemble that class.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.clustering import class_centers
from candapt.evaluation.scores import agreement, nearest_neighbors, neighbor_agreement

# The limits lie about halfway between good runs and spoiled ones on Office-31; benchmarks/alarm.py measures them.
CONSISTENT = 0.65  # share of source samples labeled as their neighbors are, below which labels contradict features
RESEMBLANCE = 0.45  # mean cosine of a class and the target samples predicted as it, below which they are something else
MISSING = 0.15  # share of classes that the target hardly has, from which on whole classes are missing
RARE = 0.25  # a class with less than this part of an equal share is hardly there
SPREAD = 0.4  # effective number of predicted classes over that of the source, below which predictions have collapsed
CLUSTERED = 0.5  # agreement of classifier and clusters, below which the target barely clusters
WORSE = 0.03  # fall of an agreement against the source-only network that makes adaptation look worse
ESTRANGED = 0.15  # fall of the resemblance against the source-only network that makes adaptation look worse
VOTES = 1000  # maximum number of source samples whose neighbors vote

SENTENCES = {
    "inconsistent labels": "The source's labels contradict its own features: only {consistency:.0%} of its samples are "
    "labeled as most of their nearest neighbors are. Look for wrong or swapped labels.",
    "other classes": "The target samples predicted as a class hardly resemble that class in the source (similarity "
    "{resemblance[0]:.2f}): the target may hold other classes, and its predictions mean little.",
    "missing classes": "The target seems to lack about {missing:.0%} of the source's classes, which adaptation does "
    "not expect: predictions of rare classes are not to be trusted.",
    "collapse": "The predictions collapse into few classes: they spread over only {spread[0]:.0%} as many as the "
    "source has.",
    "no clusters": "The target barely clusters: classifier and clusters agree on only {clustered[0]:.0%} of it.",
    "negative transfer": "Adaptation looks worse than not adapting: by the agreement of predictions with neighbors, "
    "clusters and source classes, the network that was trained on the source alone fits the target better.",
}  # by kind of finding, the gravest first; the facts fill them in


@dataclass(frozen=True, eq=False)
class Reference:
    """Features, of some samples of both domains, that no adaptation has changed."""

    source: Tensor  # shape (n, d)
    source_labels: Tensor
    target: Tensor  # shape (m, d)
    target_rows: Tensor  # indices of these samples in the target, shape (m,)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A network's results on the target."""

    probabilities: Tensor  # shape (m, classes)
    cluster_labels: Tensor  # shape (m,)

    @property
    def labels(self) -> Tensor:
        """Predicted classes, shape (m,)."""
        return self.probabilities.argmax(1)


@dataclass(frozen=True)
class Facts:
    """What the alarm judges by; pairs hold the value of the adapted network and that of the source-only one."""

    consistency: float  # share of source samples whose nearest neighbors vote for their label
    missing: float  # share of the classes that the target hardly has
    resemblance: tuple[float, float]  # mean cosine between a class and the target samples predicted as it
    spread: tuple[float, float]  # effective number of predicted classes over that of the source
    clustered: tuple[float, float]  # agreement of classifier and clusters
    neighbors: tuple[float, float]  # share of a target sample's nearest neighbors that are predicted as it is
    same: float  # share of the target that both networks predict alike


@dataclass(frozen=True)
class Finding:
    """One reason not to trust a result."""

    kind: str  # a key of `SENTENCES`
    sentence: str

    def describe(self) -> dict[str, str]:
        """The entry in `summary.json`."""
        return asdict(self)


def gather_facts(adapted: Outcome, baseline: Outcome, reference: Reference) -> Facts:
    """What the warnings are based on, from both networks' outcomes on the target samples of the reference."""
    classes = adapted.probabilities.shape[1]
    prior = class_shares(reference.source_labels, classes)
    source, target = standardize(reference.source), standardize(reference.target)
    centers = class_centers(source, reference.source_labels, classes)
    near, both = nearest_neighbors(target), (adapted, baseline)
    return Facts(
        neighbor_vote(source, reference.source_labels),
        missing_classes(target_shares(baseline.probabilities.double(), prior), prior),
        _pair(resemblance(centers, class_centers(target, each.labels, classes)) for each in both),
        _pair(effective_number(class_shares(each.labels, classes)) / effective_number(prior) for each in both),
        _pair(agreement(each.labels, each.cluster_labels) for each in both),
        _pair(neighbor_agreement(each.labels, near) for each in both),
        agreement(adapted.labels, baseline.labels),
    )


def warnings_from(facts: Facts) -> list[Finding]:
    """Warnings that the facts give reason for, the gravest first; none for a run that looks good."""
    signs = {
        "inconsistent labels": facts.consistency < CONSISTENT,
        "other classes": facts.resemblance[0] < RESEMBLANCE,
        "missing classes": facts.missing >= MISSING,
        "collapse": facts.spread[0] < SPREAD,
        "no clusters": facts.clustered[0] < CLUSTERED,
        "negative transfer": looks_worse(facts),
    }
    return [Finding(kind, sentence.format(**vars(facts))) for kind, sentence in SENTENCES.items() if signs[kind]]


def looks_worse(facts: Facts) -> bool:
    """Whether the adapted network fits the target worse than the source-only one."""
    falls = [before - after for after, before in (facts.neighbors, facts.clustered)]
    return max(falls) > WORSE or facts.resemblance[1] - facts.resemblance[0] > ESTRANGED


def standardize(features: Tensor) -> Tensor:
    """Unit vectors after each dimension's mean and scale in the domain are removed, shape (n, d)."""
    units = normalize(features.float())
    return normalize((units - units.mean(0)) / (units.std(0, correction=0) + 1e-6))


def neighbor_vote(features: Tensor, labels: Tensor) -> float:
    """Share of samples whose label is the most frequent one among their nearest neighbors; a tie goes to the lowest."""
    asked = torch.linspace(0, len(features) - 1, min(len(features), VOTES)).long()  # evenly over all classes
    similarity = features[asked] @ features.T
    similarity[torch.arange(len(asked)), asked] = -torch.inf
    near = similarity.topk(min(5, len(features) - 1), dim=1).indices
    votes = torch.stack([around.bincount(minlength=int(labels.max()) + 1) for around in labels[near]])
    return agreement(votes.argmax(1), labels[asked])


def target_shares(p: Tensor, prior: Tensor) -> Tensor:
    """Share of each class in the target, shape (classes,), by expectation maximization (Saerens et al., 2002).

    Needs probabilities, shape (n, classes), by a network that was trained on classes with the shares of the prior.
    """
    likelihood, shares = p / prior.clamp_min(1e-12), prior
    for _ in range(100):
        posterior = likelihood * shares
        shares = (posterior / posterior.sum(1, keepdim=True).clamp_min(1e-12)).mean(0)
    return shares


def missing_classes(shares: Tensor, prior: Tensor) -> float:
    """Share of the source's classes that have less than a `RARE` part of an equal share in the target."""
    present = prior > 0
    return float((shares[present] < RARE / present.sum()).double().mean())


def resemblance(source_centers: Tensor, target_centers: Tensor) -> float:
    """Mean cosine between the centers of the classes that both domains have; both of shape (classes, d)."""
    both = source_centers.any(1) & target_centers.any(1)
    cosines = (normalize(source_centers[both]) * normalize(target_centers[both])).sum(1)
    return float(cosines.mean()) if len(cosines) else 0.0


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """Share of each class among the labels, shape (classes,)."""
    return labels.bincount(minlength=classes).double() / len(labels)


def effective_number(shares: Tensor) -> float:
    """How many equally frequent classes have the entropy of these shares."""
    return float(torch.special.entr(shares).sum().exp())


def _pair(values: Iterator[float]) -> tuple[float, float]:
    adapted, baseline = values
    return adapted, baseline
