"""Objects of none of the source's classes: a probability for every target sample, without labels.

What tells them apart is what no adaptation has touched: the energy of a plain source classifier, which is low where no
class fits, and the similarity to the nearest source samples, both averaged over neighborhoods of the target. Whether
there are any at all is judged by the source: its halves show what energy known objects have for a classifier that has
not seen them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from candapt.evaluation.reference import CHUNK, NEIGHBORS, fit_classifier, nearest
from candapt.randomness import generator

RIDGE = 0.02  # penalty of the classifier
PASSES = 2  # how often a value is averaged with that of the neighbors
FAR = 0.5  # least way of unknown objects from known ones to where no class fits
GAP = 0.35  # least part of that way between the unknown and the rest of the target
FLAT = 2.4  # largest kurtosis of energies with two peaks; that of a normal distribution is 3
UNSEEN = 0.05  # factor on the probabilities if nothing shows that there are unknown objects
LIKELY = 0.5  # probability from which on a sample is called unknown
SAMPLES = 2000  # maximum number of source samples that are used
ROUNDS = 100  # of expectation maximization
STARTS = ((0.1, 0.6), (0.25, 0.75), (0.4, 0.85))  # quantiles at which the two parts of the target may start
LINKS = 5  # neighbors by which unknown samples that resemble each other are grouped
NARROWEST = 0.15  # least width of a part, relative to that of both


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


@dataclass(frozen=True, eq=False)
class Likeness:
    """How much samples look like the classes, each of shape (n,)."""

    energy: Tensor  # logarithm of the summed exponentials of a classifier's logits
    similarity: Tensor  # mean cosine of the nearest samples of the classes


def find_unknown(source: Tensor, labels: Tensor, target: Tensor, classes: int) -> Unknown:
    """Probability of being unknown for each target sample, from standardized untouched features (n, d) and (m, d)."""
    known, seen = look(source, labels, target, classes)
    posterior = low_part(seen.energy)
    found = is_apart(seen.energy, known.energy, posterior, classes)
    # The energy says how many are unknown; similarity to the source helps to tell which.
    order = (_standard(seen.energy) + _standard(seen.similarity)).argsort()
    probability = torch.empty_like(posterior)
    probability[order] = posterior.sort(descending=True).values
    return Unknown(probability if found else UNSEEN * probability, found)


def look(source: Tensor, labels: Tensor, target: Tensor, classes: int) -> tuple[Likeness, Likeness]:
    """How source and target look to classifiers of a half of the source each, which have not seen what they judge."""
    order = torch.randperm(len(source), generator=generator("unknown"))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    own, other = torch.empty(2, len(source)), torch.zeros(2, len(target))
    for trained, held_out in (halves, halves[::-1]):
        judged = torch.cat([source[held_out], target])
        values = likeness(source[trained], labels[trained], judged, classes)
        own[:, held_out] = values[:, : len(held_out)]
        other += values[:, len(held_out) :] / 2
    return Likeness(*among_neighbors(own, source)), Likeness(*among_neighbors(other, target))


def likeness(source: Tensor, labels: Tensor, target: Tensor, classes: int) -> Tensor:
    """Energy and similarity, shape (2, m), of standardized samples (m, d) by a classifier of others (n, d)."""
    weights, bias = fit_classifier(source, labels, classes, ridge=RIDGE)
    logits = target @ weights * target.shape[1] ** 0.5 + bias
    similar = torch.cat(
        [
            (chunk @ source.T).topk(min(NEIGHBORS, len(source)), dim=1).values.mean(1)
            for chunk in torch.split(target, CHUNK)
        ]
    )
    return torch.stack([logits.logsumexp(1), similar])


def among_neighbors(values: Tensor, units: Tensor) -> Tensor:
    """Values of samples, shape (k, n), averaged with those of their neighbors, more than once."""
    near = nearest(units, units, NEIGHBORS, torch.arange(len(units)))
    for _ in range(PASSES):
        values = (values + values[:, near].mean(2)) / 2
    return values


def is_apart(target: Tensor, known: Tensor, posterior: Tensor, classes: int) -> bool:
    """Whether the low part of the target's energies, shape (m,), must be unknown objects.

    It has to lie far on the way from the source's known objects to where no class fits any better than another, and
    clearly below the rest of the target: a shift between domains alone lowers all energies. And both must be peaks.
    """
    low = posterior > LIKELY
    if not low.any() or low.all():
        return False
    way = (known.mean() - math.log(classes)).clamp_min(1e-9)
    below, above = (float((known.mean() - target[part].mean()) / way) for part in (low, ~low))
    return below >= FAR and below - above >= GAP and float(_standard(target).pow(4).mean()) <= FLAT


def low_part(values: Tensor) -> Tensor:
    """Probability that each value, shape (n,), belongs to the lower one of two normal distributions.

    It never rises with the value.
    """
    values = _standard(values.double())
    means, widths, shares = max((_two_parts(values, *start) for start in STARTS), key=lambda fit: fit[0])[1]
    joint = _log_densities(values, means, widths, shares)
    low = int(means.argmin())
    posterior, order = joint.softmax(1)[:, low], values.argsort()
    # A wide upper part would claim the very lowest values too.
    posterior[order] = posterior[order].flip(0).cummax(0).values.flip(0)
    return posterior.float()


def _two_parts(values: Tensor, low: float, high: float) -> tuple[float, tuple[Tensor, Tensor, Tensor]]:
    """Log likelihood, and means, widths and shares of two normal distributions that start at two quantiles."""
    means = torch.stack([values.quantile(low), values.quantile(high)])
    widths, shares = torch.tensor([0.4, 0.8]).double(), torch.tensor([0.4, 0.6]).double()
    for _ in range(ROUNDS):
        part = _log_densities(values, means, widths, shares).softmax(1)
        counts = part.sum(0).clamp_min(1e-9)
        shares, means = counts / len(values), (part * values[:, None]).sum(0) / counts
        widths = ((part * (values[:, None] - means).square()).sum(0) / counts).sqrt().clamp_min(NARROWEST)
    likelihood = float(_log_densities(values, means, widths, shares).logsumexp(1).mean())
    return likelihood, (means, widths, shares)


def _log_densities(values: Tensor, means: Tensor, widths: Tensor, shares: Tensor) -> Tensor:
    """Logarithm of each part's density, up to a constant, shape (n, 2)."""
    return shares.clamp_min(1e-9).log() - widths.log() - 0.5 * ((values[:, None] - means) / widths).square()


def _standard(values: Tensor) -> Tensor:
    """Values with mean zero and variance one."""
    return (values - values.mean()) / values.std(correction=0).clamp_min(1e-9)


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
