"""Objects of none of the source's classes: a probability for every target sample, without labels.

What tells them apart is what no adaptation has touched: the energy of a plain source classifier, which is low where no
class fits, and the similarity to the nearest source samples, both averaged over neighborhoods of the target. Whether
there are any at all is judged by the source: its own classes, left out in turn, show how far unknown objects lie from
known ones.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from candapt.evaluation.reference import CHUNK, NEIGHBORS, fit_classifier, nearest
from candapt.randomness import generator

FOLDS = 4  # groups of classes that are left out of the source in turn
RIDGE = 0.02  # penalty of the classifier
PASSES = 2  # how often a value is averaged with that of the neighbors
WIDER = 1.1  # how much wider than the source's known objects the target must spread for a part of it to be unknown
REACH = 0.75  # and how far, as a part of the way from the best known objects to classes that were left out
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
    found: bool  # whether the target spreads as if it had unknown objects

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

    energy: Tensor
    similarity: Tensor

    def __getitem__(self, rows: Tensor) -> "Likeness":
        return Likeness(self.energy[rows], self.similarity[rows])


def find_unknown(source: Tensor, labels: Tensor, target: Tensor, classes: int) -> Unknown:
    """Probability of being unknown for each target sample, from standardized untouched features (n, d) and (m, d)."""
    seen = likeness(source, labels, target, classes)
    posterior = low_part(seen.energy)
    found = False
    if classes > FOLDS:
        known, left_out = leave_classes_out(source, labels, classes)
        found = spreads(seen.energy, known.energy, left_out.energy)
    # The energy says how many are unknown; similarity to the source helps to tell which.
    order = (_standard(seen.energy) + _standard(seen.similarity)).argsort()
    probability = torch.empty_like(posterior)
    probability[order] = posterior.sort(descending=True).values
    return Unknown(probability if found else UNSEEN * probability, found)


def likeness(source: Tensor, labels: Tensor, target: Tensor, classes: int) -> Likeness:
    """How much standardized samples (m, d) look like the classes of others (n, d), as their neighborhoods see it."""
    weights, bias = fit_classifier(source, labels, classes, ridge=RIDGE)
    energy = (target @ weights * target.shape[1] ** 0.5 + bias).logsumexp(1)
    similar = torch.cat(
        [
            (chunk @ source.T).topk(min(NEIGHBORS, len(source)), dim=1).values.mean(1)
            for chunk in torch.split(target, CHUNK)
        ]
    )
    near = nearest(target, target, NEIGHBORS, torch.arange(len(target)))
    for _ in range(PASSES):
        energy, similar = ((each + each[near].mean(1)) / 2 for each in (energy, similar))
    return Likeness(energy, similar)


def leave_classes_out(units: Tensor, labels: Tensor, classes: int) -> tuple[Likeness, Likeness]:
    """How held-out source samples look to classifiers: those of trained classes, and those of classes left out."""
    random = generator("unknown")
    order, groups = torch.randperm(len(units), generator=random), torch.randperm(classes, generator=random) % FOLDS
    trained, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    known, left_out = [], []
    for fold in range(FOLDS):
        kept = groups != fold
        names = kept.long().cumsum(0) - 1  # the number of each class among those that are trained
        rows = trained[kept[labels[trained]]]
        seen = likeness(units[rows], names[labels[rows]], units[held_out], int(kept.sum()))
        inside = kept[labels[held_out]]
        known.append(seen[inside])
        left_out.append(seen[~inside])
    return _together(known), _together(left_out)


def spreads(target: Tensor, known: Tensor, left_out: Tensor) -> bool:
    """Whether values of the target, shape (m,), lie apart as those of known and left-out classes together do.

    A shift between domains moves all values, so only differences within the target are compared.
    """
    if min(len(known), len(left_out)) < 2:
        return False
    high, low = target.quantile(0.9), target.quantile(0.1)
    reach = (high - low) / (known.quantile(0.9) - left_out.mean()).clamp_min(1e-6)
    return bool(target.std() >= WIDER * known.std() and reach >= REACH)


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


def _together(parts: list[Likeness]) -> Likeness:
    return Likeness(torch.cat([part.energy for part in parts]), torch.cat([part.similarity for part in parts]))


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
