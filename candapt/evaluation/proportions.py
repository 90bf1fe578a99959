"""The target's class proportions, estimated without labels, and how much each class and sample counts because of them.

A source classifier expects the source's proportions, and so do statistics that are taken over a whole domain. The
estimate starts from the source's proportions and repeats: weight the source's samples so that they have the estimated
proportions, standardize them under these weights, fit a classifier, and take the mean of what it says of the target.
The repetitions count only where whole classes are missing. Elsewhere each of them moves the estimate further the way
the shift between the domains has pushed it, and rare classes are lost on the way: then the first estimate stands.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from candapt.clustering import class_centers, spherical_kmeans
from candapt.data.domains import KnownLabels, Side, Task
from candapt.evaluation.reference import NEIGHBORS, PART, fit_classifier, moments, nearest, standardized
from candapt.randomness import generator

STEPS = 3  # how often the classifier is fitted where classes are missing
NARROW = 3  # neighbors that vote where none are: among ten, those of other classes outvote a class of few samples
RIDGE = 0.02  # penalty of that classifier; a stronger one makes it too unsure to tell rare from absent classes
SAMPLES = 2000  # maximum number of samples of each domain that the estimate uses
RESAMPLES = 200  # draws of the target for the intervals
ABSENT = 0.25  # a class with less than this part of an equal share is hardly there
HALFWAY = 0.5  # how far from the source's to the estimated proportions weights go if no class is missing; on PACS, all
# the way gave up as much in rare classes as it gained in frequent ones
FLOOR = 0.05  # least weight of a class: the network must not forget one that may come back
MISSING = 0.25  # share of the classes that look absent in the first estimate, from which on they are taken to be
CLEARLY_MISSING = 0.4  # the same for the last one, in which rare classes look absent too: on PACS up to 2 of 7
DIFFERENT = 0.19  # total variation between the domains' proportions, from which on they are taken to be others; on PACS
# classes of equal sizes gave up to 0.15, and mostly 0.2 or more where they were thinned out to 10:1
AGREED = 0.7  # least share of the target on which votes and clusters agree: below it, on PACS, every estimate was wrong


@dataclass(frozen=True, eq=False)
class Proportions:
    """Share of each class in both domains, tensors of shape (classes,)."""

    source: Tensor
    target: Tensor  # estimated
    low: Tensor  # nine of ten draws of such a target give at least this estimate
    high: Tensor  # and at most this one
    agreement: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    """Share of the target on which the votes agree with clusters of the same features, a scalar."""
    lacks: Tensor = field(default_factory=lambda: torch.tensor(False))
    """Whether so many classes look absent that they are not merely rare, a scalar, bool."""

    @property
    def lacks_classes(self) -> bool:
        """Whether whole classes are missing."""
        return bool(self.lacks)

    @property
    def absent(self) -> Tensor:
        """Classes of the source that the target hardly has, shape (classes,), bool; none if they may be rare."""
        return hardly_there(self.target, self.source) & self.lacks_classes

    @property
    def differ(self) -> bool:
        """Whether they are clearly others; a shift between the domains makes small differences out of nothing.

        Where votes and clusters disagree, the shift is so large that the estimate means nothing.
        """
        if float(self.agreement) < AGREED:
            return False
        return self.lacks_classes or float((self.target - self.source).abs().sum() / 2) >= DIFFERENT

    def describe(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """The entry in `summary.json`."""
        columns = (self.source.tolist(), self.target.tolist(), self.low.tolist(), self.high.tolist())
        names = ("source", "target", "low", "high")
        each = {name: dict(zip(names, row, strict=True)) for name, *row in zip(classes, *columns, strict=True)}
        return {"differ": self.differ, "agreement": float(self.agreement), "classes": each}


@dataclass(frozen=True, eq=False)
class Mixture:
    """How much each source class and each target sample counts; None where all count the same."""

    classes: Tensor | None = None  # weight of a source sample of each class, shape (classes,)
    absent: Tensor | None = None  # classes that take no part, shape (classes,), bool
    known: Tensor | None = None  # probability that a target sample is of one of the classes, shape (m,)

    def weights(self, side: Side, task: Task) -> Tensor | None:
        """Weight of each sample of a side, shape (n,), none of them zero."""
        if side is Side.SOURCE:
            return None if self.classes is None else self.classes[task.source.labels]
        return None if self.known is None else self.known.clamp_min(FLOOR)

    def with_classes(self, labels: KnownLabels | None) -> "Mixture":
        """The mixture in which no class is absent of which a target sample is given."""
        if labels is None or self.absent is None:
            return self
        return replace(self, absent=self.absent.index_fill(0, labels.labels, False))

    @property
    def is_even(self) -> bool:
        """Whether everything counts the same."""
        return not self.tensors()

    @property
    def present(self) -> Tensor | None:
        """Classes that take part, shape (classes,), bool; None if all do."""
        return None if self.absent is None else ~self.absent

    def tensors(self) -> dict[str, Tensor]:
        """Those of its parts that there are, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


EVEN = Mixture()


def estimate_proportions(
    source: Tensor, labels: Tensor, target: Tensor, classes: int, known: Tensor | None = None
) -> Proportions:
    """Class proportions of a target, from features (n, d) and (m, d) that no adaptation has touched.

    Target samples count as far as they are `known`, shape (m,), to be of one of the classes; by default all the same.
    """
    own = labels.bincount(minlength=classes).double() / len(labels)
    units = standardized(target, *moments(target, known))
    near = nearest(units, units, NEIGHBORS, torch.arange(len(units)))
    share, fit, fits = own, None, []
    for _ in range(STEPS):
        weights = class_weights(share, own, floor=0.0)[labels]
        weighted = standardized(source, *moments(source, weights))
        fit = fit_classifier(weighted, labels, classes, counts=weights, start=fit, ridge=RIDGE)
        said = classify(units, fit)
        votes, narrow = among_neighbors(said, near), among_neighbors(said, near[:, :NARROW])
        share = mean_vote(votes, known)
        fits.append((votes, narrow, weighted))
    shown = [float(hardly_there(mean_vote(each[1], known), own)[own > 0].double().mean()) for each in fits]
    lacks = shown[0] >= MISSING or shown[-1] >= CLEARLY_MISSING
    votes, weighted = (fits[-1][0], fits[-1][2]) if lacks else (fits[0][1], fits[0][2])
    share = mean_vote(votes, known)
    some = None if known is None else (known > 0.5)
    low, high = interval(votes if some is None or not some.any() else votes[some])
    there = ~hardly_there(share, own) if lacks else None
    clusters = spherical_kmeans(units, class_centers(weighted, labels, classes), present=there)
    agreement = (votes.argmax(1) == clusters.labels).double().mean()
    return Proportions(own, share, low, high, agreement, torch.tensor(lacks))


def classify(units: Tensor, fit: tuple[Tensor, Tensor]) -> Tensor:
    """Probabilities (n, classes) of standardized features by a classifier of `fit_classifier`."""
    probabilities: Tensor = (units @ fit[0] * units.shape[1] ** 0.5 + fit[1]).softmax(1)
    return probabilities


def among_neighbors(probabilities: Tensor, near: Tensor) -> Tensor:
    """Probabilities (n, classes) of each sample and its neighbors together, cubed so that a majority decides."""
    votes = torch.empty(probabilities.shape, dtype=torch.float64)
    for rows in torch.split(torch.arange(len(votes)), PART):
        together = (probabilities[rows] + probabilities[near[rows]].sum(1)).double().pow(3)
        votes[rows] = together / together.sum(1, keepdim=True)
    return votes


def mean_vote(votes: Tensor, known: Tensor | None = None) -> Tensor:
    """Share of each class, shape (classes,), by votes (n, classes) that count as far as the samples are known."""
    return votes.mean(0) if known is None else known.double() @ votes / known.double().sum()


def interval(votes: Tensor) -> tuple[Tensor, Tensor]:
    """Between which shares of each class nine of ten draws of as many samples lie; both of shape (classes,)."""
    rows = torch.randint(len(votes), (RESAMPLES, len(votes)), generator=generator("proportions"))
    shares = torch.stack([votes[each].mean(0) for each in rows])
    low, high = shares.quantile(torch.tensor([0.05, 0.95], dtype=shares.dtype), dim=0)
    return low, high


def class_weights(target: Tensor, source: Tensor, *, floor: float = FLOOR) -> Tensor:
    """Weight of a source sample of each class, shape (classes,), under which the source has the target's shares."""
    return (target / source.clamp_min(1e-12)).clamp_min(floor).float()


def hardly_there(target: Tensor, source: Tensor) -> Tensor:
    """Classes that the source has and the target hardly, shape (classes,), bool."""
    present = source > 0
    return present & (target < ABSENT / present.sum())


def mixture_for(target: Tensor, source: Tensor, known: Tensor | None = None, *, lacks_classes: bool = True) -> Mixture:
    """What counts how much in a target with these shares of classes.

    Unless it lacks classes, all take part, and the shares are met only `HALFWAY`: rare classes must still be learned.
    """
    if lacks_classes:
        return Mixture(class_weights(target, source), hardly_there(target, source), known)
    return Mixture(class_weights(torch.lerp(source, target, HALFWAY), source), None, known)
