"""The alarm: signs, seen without target labels, that adaptation failed or had to fail, in plain words.

The facts compare the adapted network with one that was trained on the source alone, and both with a reference: features
that no adaptation has touched. An adapted network makes its own predictions look good, so that its own features cannot
tell; in the reference, a group of target samples that is named after a class must still resemble that class.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.clustering import class_centers
from candapt.evaluation.scores import agreement, nearest_neighbors, neighbor_agreement

# The limits lie about halfway between good and made bad runs on Office-31; benchmarks/alarm.py measures them.
CONSISTENT = 0.65
"""Share of source samples whose nearest neighbors vote for their label, below which labels contradict the features."""
RESEMBLANCE = 0.45
"""Mean cosine between a class and the target samples predicted as it, below which they are something else."""
MISSING = 0.15
"""Share of classes that the target hardly has, from which on whole classes are missing."""
RARE = 0.25
"""A class with less than this part of an equal share is hardly there."""
SPREAD = 0.4
"""Effective number of predicted classes over that of the source, below which predictions have collapsed."""
CLUSTERED = 0.5
"""Agreement of classifier and clusters, below which the target barely clusters."""
WORSE = 0.03
"""Fall of an agreement against the source-only network that makes adaptation look worse."""
ESTRANGED = 0.15
"""Fall of the resemblance against the source-only network that makes adaptation look worse."""
QUESTIONED = 1000
"""Source samples whose neighbors are asked, at most."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Features of a sample of both domains that no adaptation has touched, and what they are known to be."""

    source: Tensor
    """Shape (n, d)."""
    source_labels: Tensor
    target: Tensor
    """Shape (m, d)."""
    target_rows: Tensor
    """Which samples of the target these are, shape (m,)."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a network says of the target."""

    probabilities: Tensor
    """Shape (m, classes)."""
    cluster_labels: Tensor
    """Shape (m,)."""

    @property
    def labels(self) -> Tensor:
        """Predicted classes, shape (m,)."""
        return self.probabilities.argmax(1)


@dataclass(frozen=True)
class Facts:
    """What the alarm judges by; pairs are of the adapted network and of the source-only one."""

    consistency: float
    """Share of source samples whose nearest neighbors vote for their label."""
    missing: float
    """Share of the classes that the target hardly has."""
    resemblance: tuple[float, float]
    """Mean cosine, in the reference, between a class and the target samples predicted as it."""
    spread: tuple[float, float]
    """Effective number of predicted classes over that of the source."""
    clustered: tuple[float, float]
    """Agreement of classifier and clusters."""
    neighbors: tuple[float, float]
    """Share of each target sample's nearest neighbors in the reference that are predicted as it is."""
    same: float
    """Share of the target that both networks predict alike."""


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong."""

    kind: str
    sentence: str

    def describe(self) -> dict[str, str]:
        """As it stands in `summary.json`."""
        return asdict(self)


def gather_facts(adapted: Outcome, baseline: Outcome, reference: Reference) -> Facts:
    """Look at both networks' outcomes on the target samples of the reference."""
    classes = adapted.probabilities.shape[1]
    prior = reference.source_labels.bincount(minlength=classes).double()
    prior = prior / prior.sum()
    source, target = standardize(reference.source), standardize(reference.target)
    centers = class_centers(source, reference.source_labels, classes)
    near = nearest_neighbors(target)
    both = (adapted, baseline)
    return Facts(
        neighbor_vote(source, reference.source_labels),
        missing_classes(target_shares(baseline.probabilities.double(), prior), prior),
        _pair(resemblance(centers, class_centers(target, each.labels, classes)) for each in both),
        _pair(effective_number(shares(each.labels, classes)) / effective_number(prior) for each in both),
        _pair(agreement(each.labels, each.cluster_labels) for each in both),
        _pair(neighbor_agreement(each.labels, near) for each in both),
        agreement(adapted.labels, baseline.labels),
    )


def warnings_from(facts: Facts) -> list[Finding]:
    """What the facts give reason to warn of, the gravest first; nothing for a run that looks good."""
    return list(_warnings(facts))


def _warnings(facts: Facts) -> Iterator[Finding]:
    if facts.consistency < CONSISTENT:
        yield Finding(
            "inconsistent labels",
            f"The source's labels contradict its own features: only {facts.consistency:.0%} of its samples are "
            "labelled as most of their nearest neighbors are. Look for wrong or swapped labels.",
        )
    if facts.resemblance[0] < RESEMBLANCE:
        yield Finding(
            "other classes",
            "The target samples predicted as a class hardly resemble that class in the source (similarity "
            f"{facts.resemblance[0]:.2f}): the target may hold other classes, and its predictions mean little.",
        )
    if facts.missing >= MISSING:
        yield Finding(
            "missing classes",
            f"The target seems to lack about {facts.missing:.0%} of the source's classes, which adaptation does not "
            "expect: predictions of rare classes are not to be trusted.",
        )
    if facts.spread[0] < SPREAD:
        yield Finding(
            "collapse",
            f"The predictions collapse into few classes: they spread over only {facts.spread[0]:.0%} as many as the "
            "source has.",
        )
    if facts.clustered[0] < CLUSTERED:
        yield Finding(
            "no clusters",
            f"The target barely clusters: classifier and clusters agree on only {facts.clustered[0]:.0%} of it.",
        )
    if looks_worse(facts):
        yield Finding(
            "negative transfer",
            "Adaptation looks worse than not adapting: by the agreement of predictions with neighbors, clusters and "
            "source classes, the network that was trained on the source alone fits the target better.",
        )


def looks_worse(facts: Facts) -> bool:
    """Whether the adapted network fits the target worse than the source-only one."""
    falls = [before - after for after, before in (facts.neighbors, facts.clustered)]
    estranged = facts.resemblance[1] - facts.resemblance[0]
    return max(falls) > WORSE or estranged > ESTRANGED


def standardize(features: Tensor) -> Tensor:
    """Unit vectors after each dimension's mean and scale in the domain are removed, shape (n, d)."""
    units = normalize(features.float())
    return normalize((units - units.mean(0)) / (units.std(0, correction=0) + 1e-6))


def neighbor_vote(features: Tensor, labels: Tensor) -> float:
    """Share of samples whose label is the most frequent one among their nearest others; the first of equals counts."""
    asked = torch.linspace(0, len(features) - 1, min(len(features), QUESTIONED)).long()  # evenly over all classes
    similarity = features[asked] @ features.T
    similarity[torch.arange(len(asked)), asked] = -torch.inf
    near = similarity.topk(min(5, len(features) - 1), dim=1).indices
    votes = torch.stack([around.bincount(minlength=int(labels.max()) + 1) for around in labels[near]])
    return agreement(votes.argmax(1), labels[asked])


def target_shares(p: Tensor, prior: Tensor, *, steps: int = 100) -> Tensor:
    """How often each class occurs in the target, by expectation maximization (Saerens et al., 2002), shape (classes,).

    Args:
        p: probabilities by a network that was trained with the prior, shape (n, classes).
        prior: share of each class in training, shape (classes,).
        steps: how often the estimate is refined.
    """
    likelihood, found = p / prior.clamp_min(1e-12), prior
    for _ in range(steps):
        posterior = likelihood * found
        found = (posterior / posterior.sum(1, keepdim=True).clamp_min(1e-12)).mean(0)
    return found


def missing_classes(found: Tensor, prior: Tensor) -> float:
    """Share of the source's classes that have less than a `RARE` part of an equal share in the target."""
    present = prior > 0
    return float((found[present] < RARE / present.sum()).double().mean())


def resemblance(source_centers: Tensor, target_centers: Tensor) -> float:
    """Mean cosine between the centers of the classes that both domains have; both of shape (classes, d)."""
    both = source_centers.any(1) & target_centers.any(1)
    cosines = (normalize(source_centers[both]) * normalize(target_centers[both])).sum(1)
    return float(cosines.mean()) if len(cosines) else 0.0


def shares(labels: Tensor, classes: int) -> Tensor:
    """Share of each class among the labels, shape (classes,)."""
    return labels.bincount(minlength=classes).double() / len(labels)


def effective_number(found: Tensor) -> float:
    """How many equally frequent classes have the entropy of these shares."""
    return float(torch.special.entr(found).sum().exp())


def _pair(values: Iterator[float]) -> tuple[float, float]:
    adapted, baseline = values
    return adapted, baseline
