"""Which target samples a person should label: doubtful ones, each of which stands for many others.

The target is cut into as many groups as samples are wanted, by k-means in features that no adaptation has touched,
where doubtful samples weigh more (as in CLUE, Prabhu et al., ICCV 2021); the sample nearest to the center of each group
is suggested. Doubt alone would suggest odd samples that resemble nothing else, and the same kind again and again.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from candapt.evaluation.reference import standardized
from candapt.randomness import generator

STEPS = 50  # maximum number of updates of the centers
SHARPNESS = 2.0  # exponent of the doubt in the weight of a sample; chosen on PACS among 0, 1, 2 and 3


def suggest_samples(units: Tensor, confidence: Tensor, number: int, *, known: Tensor | None = None) -> Tensor:
    """Rows of the samples whose labels would help most, those that stand for most doubt first, shape (number,).

    Args:
        units: unit vectors of the samples' features, shape (n, d).
        confidence: probability that each prediction is right, shape (n,).
        number: samples to suggest, or all that are left if they are fewer.
        known: rows of samples whose labels are known already: they are not suggested.
    """
    weights = (1 - confidence).clamp_min(1e-3).double() ** SHARPNESS
    left = torch.ones(len(units), dtype=torch.bool)
    if known is not None:
        left[known] = False
    rows = left.nonzero().flatten()
    if number >= len(rows):
        return rows[weights[rows].argsort(descending=True, stable=True)]
    centers = weighted_kmeans(units[rows], weights[rows], number)
    similarity = units[rows].double() @ centers.T  # (n, number)
    masses = similarity.argmax(1).bincount(weights[rows], minlength=number)
    chosen = dict.fromkeys(_nearest_each(similarity, masses))
    return rows[torch.tensor(list(chosen))]


def standardized_units(features: Tensor) -> Tensor:
    """Unit vectors of features (n, d) after the mean and scale of their unit vectors are removed."""
    units = normalize(features.float())
    return standardized(features, units.mean(0), units.std(0, correction=0))


def weighted_kmeans(units: Tensor, weights: Tensor, number: int) -> Tensor:
    """Centers of spherical k-means over weighted samples, unit vectors of shape (number, d); always the same."""
    points, centers = units.double(), _spread_start(units.double(), weights, number)
    for _ in range(STEPS):
        labels = (points @ centers.T).argmax(1)
        sums = torch.zeros_like(centers).index_add_(0, labels, points * weights[:, None])
        moved = torch.where(sums.any(1, keepdim=True), normalize(sums), centers)
        if torch.allclose(moved, centers, atol=1e-6):
            break
        centers = moved
    return centers


def _spread_start(points: Tensor, weights: Tensor, number: int) -> Tensor:
    """First centers: samples drawn by weight times squared distance to those drawn before (k-means++)."""
    random, chosen = generator("suggestion"), list[int]()
    distance = torch.ones(len(points), dtype=torch.float64)
    for _ in range(number):
        odds = weights * distance.square()
        row = int(torch.multinomial(odds if odds.any() else weights, 1, generator=random))
        chosen.append(row)
        distance = torch.minimum(distance, (1 - points @ points[row]).clamp_min(0))
    return points[chosen]


def _nearest_each(similarity: Tensor, masses: Tensor) -> list[int]:
    """For each center, from the heaviest on, the row nearest to it that no other center has."""
    taken = torch.zeros(len(similarity), dtype=torch.bool)
    rows = []
    for center in masses.argsort(descending=True, stable=True).tolist():
        row = int(similarity[:, center].masked_fill(taken, -torch.inf).argmax())
        taken[row] = True
        rows.append(row)
    return rows
