"""Objects of none of the source's classes: a probability for every target sample, without labels.

What tells them apart is what no adaptation has touched: the energy of a plain source classifier, which is low where no
class fits, averaged over neighborhoods of the target. A shift between the domains lowers energies too, but then whole
classes are found among the low ones alone, while unknown objects come on top of all the classes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from candapt.evaluation.reference import NEIGHBORS, fit_classifier, nearest

RIDGE = 0.02  # penalty of the classifier
PASSES = 3  # how often an energy is averaged with those of the neighbors
SURE = 0.7  # energies above this quantile say nothing more: some classes are just easier than others
EVIDENCE = 1.05  # least `evidence` that the low energies are unknown objects; of PACS, docs/targets.md
SOFT = 0.2  # distance from the limit at which a probability is about 0.7, relative to that of the two parts
UNSEEN = 0.05  # factor on the probabilities if nothing shows that there are unknown objects
LIKELY = 0.5  # probability from which on a sample is called unknown
SAMPLES = 2000  # maximum number of source samples that are used
LINKS = 5  # neighbors by which unknown samples that resemble each other are grouped


@dataclass(frozen=True, eq=False)
class Unknown:
    """Which target samples look like none of the classes."""

    probability: Tensor  # of each sample, shape (m,)
    found: bool  # whether there is clear evidence of unknown objects

    @property
    def known(self) -> Tensor | None:
        """Probability of being of one of the classes, shape (m,); None if there is no sign of unknown objects."""
        return 1 - self.probability if self.found else None

    @property
    def share(self) -> float:
        """Share of the target that is called unknown."""
        return float((self.probability > LIKELY).double().mean())


def find_unknown(source: Tensor, labels: Tensor, target: Tensor, classes: int) -> Unknown:
    """Probability of being unknown for each target sample, from standardized untouched features (n, d) and (m, d)."""
    weights, bias = fit_classifier(source, labels, classes, ridge=RIDGE)
    logits = target @ weights * target.shape[1] ** 0.5 + bias
    near = nearest(target, target, NEIGHBORS, torch.arange(len(target)))
    energy = among_neighbors(logits.logsumexp(1) - math.log(classes), near)
    sure = energy.clamp_max(energy.quantile(SURE))
    limit = split_point(sure)
    low = energy < limit
    if not low.any() or low.all():
        return Unknown(torch.zeros_like(energy), found=False)
    probabilities = logits.softmax(1)
    votes = (probabilities + probabilities[near].sum(1)).argmax(1)
    found = evidence(sure, low, votes, near, classes) >= EVIDENCE
    way = (sure[~low].mean() - sure[low].mean()).clamp_min(1e-9)
    probability = ((limit - energy) / (SOFT * way)).sigmoid()
    return Unknown(probability if found else UNSEEN * probability, found)


def right_beside_unknown(confidence: Tensor, unknown: Tensor | None, *, named: bool) -> Tensor:
    """Probability that each prediction is right, shape (n,), if some samples may be none of the classes.

    A class is wrong for those. Where samples that are likely unknown are `named` so, that name is right for them.
    """
    if unknown is None:
        return confidence
    right = (1 - unknown) * confidence
    return torch.where(unknown > LIKELY, unknown, right) if named else right


def among_neighbors(values: Tensor, near: Tensor) -> Tensor:
    """Values of samples, shape (n,), averaged with those of their neighbors (n, k), more than once."""
    for _ in range(PASSES):
        values = (values + values[near].mean(1)) / 2
    return values


def split_point(values: Tensor) -> float:
    """Between which two parts values, shape (n,), differ most: the limit of least variance within them (Otsu, 1979)."""
    ordered = values.double().sort().values
    if len(ordered) < 2:
        return float(ordered[0])
    count, below = torch.arange(1, len(ordered)).double(), ordered.cumsum(0)[:-1]
    left = len(ordered) - count
    between = count * left * (below / count - (ordered.sum() - below) / left).square()
    place = int(between.argmax())
    return float((ordered[place] + ordered[place + 1]) / 2)


def evidence(energy: Tensor, low: Tensor, votes: Tensor, near: Tensor, classes: int) -> float:
    """How much speaks for the samples with `low` energies, shape (n,), being unknown objects.

    Three signs are added up: the rest still has all classes in like numbers; the low energies are near to where no
    class fits, compared with the rest; and neighbors get the same votes (n,) there as much as in the rest, unlike at
    the borders between classes.
    """
    shares = votes[~low].bincount(minlength=classes).double() / (~low).sum()
    spread = float(torch.special.entr(shares).sum().exp()) / classes
    near_none = float(energy[low].mean() / energy[~low].mean().clamp_min(1e-9))
    alike = (votes[near] == votes[:, None]).double().mean(1)
    return spread - near_none + float(alike[low].mean() / alike[~low].mean().clamp_min(1e-9))


def alike(units: Tensor, unknown: Tensor, *, least: int = 3) -> list[list[int]]:
    """Groups of unknown samples that resemble each other, rows of the standardized features, the largest group first.

    Samples are linked if each is among the nearest unknown neighbors of the other; groups with fewer than `least`
    samples are left out.
    """
    rows = (unknown > LIKELY).nonzero().flatten()
    if len(rows) < least:
        return []
    near = nearest(units[rows], units[rows], LINKS, torch.arange(len(rows)))
    links = {(one, other) for one, others in enumerate(near.tolist()) for other in others}
    groups = list(range(len(rows)))

    def root(place: int) -> int:
        while groups[place] != place:
            groups[place] = groups[groups[place]]
            place = groups[place]
        return place

    for one, other in links:
        if (other, one) in links:
            groups[root(one)] = root(other)
    members: dict[int, list[int]] = {}
    for place, row in enumerate(rows.tolist()):
        members.setdefault(root(place), []).append(row)
    return sorted((each for each in members.values() if len(each) >= least), key=len, reverse=True)
