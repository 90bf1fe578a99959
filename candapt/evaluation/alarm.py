"""The alarm: signs, seen without target labels, that adaptation failed or had to fail, as plain sentences.

The facts compare the adapted network with one that was trained on the source alone, and both with a reference: features
that no adaptation has changed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.clustering import class_centers
from candapt.evaluation.proportions import Proportions
from candapt.evaluation.reference import Reference, View
from candapt.evaluation.scores import agreement

# The limits were set on PACS and digits; benchmarks/alarm.py measures them.
CONSISTENT = 0.65  # share of source samples labeled as their neighbors are, below which labels contradict features
UNLIKELY = 0.5  # estimated accuracy below which more predictions are wrong than right; lower if labels contradict
# features, since wrong labels lower the estimate more than the accuracy
RESEMBLANCE = 0.25  # mean cosine of a class and the target samples predicted as it, below which they are something else
MISSING = 0.25  # share of classes that the target hardly has, from which on whole classes are missing
RARE = 0.25  # a class with less than this part of an equal share is hardly there
SPREAD = 0.4  # effective number of predicted classes over that of the source, below which predictions have collapsed
CLUSTERED = 0.5  # agreement of classifier and clusters, below which the target barely clusters
VOTES = 1000  # maximum number of source samples whose neighbors vote

UNKNOWN = 0.1  # share of the target that looks like none of the classes, from which on the user must know

SENTENCES = {
    "unknown objects": "About {unknown:.0%} of the target look like none of the source's classes: any class that "
    "is predicted for them is wrong.",
    "other classes": "The target samples predicted as a class hardly resemble that class in the source (similarity "
    "{resemblance[0]:.2f}): the target may hold other classes, and its predictions mean little.",
    "missing classes": "The target seems to lack about {missing:.0%} of the source's classes: predictions of rare "
    "classes are not to be trusted.",
    "collapse": "The predictions collapse into few classes: they spread over only {spread[0]:.0%} as many as the "
    "source has.",
    "no clusters": "The target barely clusters: classifier and clusters agree on only {clustered[0]:.0%} of it.",
    "low accuracy": "More predictions are likely wrong than right: an estimated {expected[0]:.0%} are right. The "
    "domains may be too different for these features.",
    "negative transfer": "Adaptation looks worse than not adapting: an estimated {expected[0]:.0%} of its predictions "
    "are right, and {expected[1]:.0%} of those of the network that was trained on the source alone.",
}  # warnings by kind, the gravest first; the facts fill them in
NOTES = {
    "inconsistent labels": "Only {consistency:.0%} of the source samples are labeled as most of their nearest "
    "neighbors are: some labels may be wrong or swapped, or these features do not tell the classes apart.",
}  # what a user should know although adaptation may have worked


@dataclass(frozen=True, eq=False)
class Outcome:
    """A network's results on the target."""

    probabilities: Tensor  # shape (m, classes)
    cluster_labels: Tensor  # shape (m,)
    confidence: Tensor  # calibrated, of the samples that count in an accuracy, shape (k,)

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
    expected: tuple[float, float]  # estimated share of right predictions
    same: float  # share of the target that both networks predict alike
    unknown: float = 0.0  # share of the target that looks like none of the classes


@dataclass(frozen=True)
class Finding:
    """One reason not to trust a result."""

    kind: str  # a key of `SENTENCES` or `NOTES`
    sentence: str

    def describe(self) -> dict[str, str]:
        """The entry in `summary.json`."""
        return asdict(self)


def gather_facts(
    adapted: Outcome,
    baseline: Outcome,
    reference: Reference,
    view: View,
    proportions: Proportions | None = None,
    unknown: float = 0.0,
) -> Facts:
    """What the warnings are based on: both networks' outcomes on the target, and what a reference sees of it.

    Without an estimate of the class proportions, a simpler one by the plain source classifier takes its place.
    """
    classes, rows, both = adapted.probabilities.shape[1], reference.target_rows, (adapted, baseline)
    prior = class_shares(reference.source_labels, classes)
    centers = class_centers(reference.source, reference.source_labels, classes)
    shares = target_shares(view.classifier.double(), prior) if proportions is None else proportions.target
    return Facts(
        neighbor_vote(reference.source, reference.source_labels),
        missing_classes(shares, prior),
        _pair(resemblance(centers, class_centers(reference.target, each.labels[rows], classes)) for each in both),
        _pair(effective_number(class_shares(each.labels, classes)) / effective_number(prior) for each in both),
        _pair(agreement(each.labels, each.cluster_labels) for each in both),
        _pair(float(each.confidence.mean()) for each in both),
        agreement(adapted.labels, baseline.labels),
        unknown,
    )


def warnings_from(facts: Facts) -> list[Finding]:
    """Warnings that the facts give reason for, the gravest first; none for a run that looks good."""
    signs = {
        "unknown objects": facts.unknown >= UNKNOWN,
        "other classes": facts.resemblance[0] < RESEMBLANCE,
        "missing classes": facts.missing >= MISSING,
        "collapse": facts.spread[0] < SPREAD,
        "no clusters": facts.clustered[0] < CLUSTERED,
        "low accuracy": facts.expected[0] < UNLIKELY * min(1.0, facts.consistency / CONSISTENT),
        "negative transfer": facts.expected[0] < facts.expected[1],
    }
    return _findings(SENTENCES, signs, facts)


def notes_from(facts: Facts) -> list[Finding]:
    """What else a user should know; it speaks against the data rather than against the result."""
    return _findings(NOTES, {"inconsistent labels": facts.consistency < CONSISTENT}, facts)


def _findings(sentences: Mapping[str, str], signs: Mapping[str, bool], facts: Facts) -> list[Finding]:
    return [Finding(kind, sentence.format(**vars(facts))) for kind, sentence in sentences.items() if signs[kind]]


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
