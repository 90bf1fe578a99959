"""What features that no adaptation has touched say of the target: neighbors, clusters and a plain source classifier.

An adapted network makes its own predictions look good, so its own features cannot tell right from wrong ones.
Pretrained features can; if the network starts at random, those of a network trained on the source alone take their
place.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from candapt.clustering import class_centers, cosine_distances, spherical_kmeans
from candapt.data.domains import KnownLabels
from candapt.randomness import generator

NEIGHBORS = 10  # samples of each domain that a sample is compared with
BANK = 4000  # maximum number of samples of each domain among which neighbors are looked for
KNOWN_WEIGHT = 3  # source samples that a target sample whose label is known counts as
RIDGE = 0.05  # penalty on the squared weights of the source classifier
FIRST_STEPS, LATER_STEPS = 60, 15  # of the source classifier's optimizer, from zero and from an earlier fit
CHUNK = 1000  # samples compared with a bank at a time
MANY = 20_000  # target samples from which on a part stands for all, but where each sample is looked at by itself
PART = 2**14  # samples of a large target that are looked at together


SUPPORT = {"neighbors": 2.0, "classifier": 1.0, "source_neighbors": 1.0, "clusters": 0.5}  # weights in `support`


class Indexed(Protocol):
    """Features (n, d), in memory or read when some rows are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class View:
    """What a reference says of some target samples, whatever they are predicted as."""

    target_neighbors: Tensor  # nearest other target samples, places in the bank or in the target, shape (n, k)
    source_neighbors: Tensor  # labels of the nearest source samples, shape (n, k)
    classifier: Tensor  # probabilities by the plain source classifier, shape (n, classes)
    clusters: Tensor  # nearest center of a clustering of the target, shape (n,)


@dataclass(frozen=True, eq=False)
class Reference:
    """Both domains as seen by features that no adaptation has touched, each standardized by itself."""

    shift: Tensor  # mean of the target's unit vectors, shape (d,)
    scale: Tensor  # their standard deviation, shape (d,)
    weights: Tensor  # of the plain source classifier, shape (d, classes)
    bias: Tensor  # shape (classes,)
    centers: Tensor  # of the target's clusters, which start from the source's classes, shape (classes, d)
    source: Tensor  # a bank of source samples, shape (s, d)
    source_labels: Tensor  # shape (s,)
    target: Tensor  # a bank of target samples, shape (t, d)
    target_rows: Tensor  # their places in the target, shape (t,)

    @classmethod
    def of_target(
        cls,
        source: Tensor,
        labels: Tensor,
        target: Indexed,
        classes: int,
        *,
        origins: Tensor | None = None,
        known: KnownLabels | None = None,
    ) -> "Reference":
        """The same as `of`; of a large target some samples, and those with known labels, stand for all."""
        rows = some_rows(len(target), MANY)
        if known is not None and len(rows) < len(target):
            rows = torch.unique(torch.cat([rows, known.rows]))
            known = replace(known, rows=torch.searchsorted(rows, known.rows))
        reference = cls.of(source, labels, target[rows], classes, origins=origins, known=known)
        return replace(reference, target_rows=rows[reference.target_rows])

    @classmethod
    def of(
        cls,
        source: Tensor,
        labels: Tensor,
        target: Tensor,
        classes: int,
        *,
        origins: Tensor | None = None,
        known: KnownLabels | None = None,
    ) -> "Reference":
        """A reference from features of both domains, shapes (n, d) and (m, d), and the source's labels.

        With several sources `origins` has the number of each sample's, shape (n,): each is standardized by itself.
        Target samples whose labels are known take part like `KNOWN_WEIGHT` source samples each.
        """
        rows = some_rows(len(target), BANK)
        chosen = some_rows(len(source), max(BANK, NEIGHBORS * classes))
        shift, scale = moments(target)
        own, other = standardized_by_source(source, origins)[chosen], standardized(target, shift, scale)
        labels = labels[chosen]
        if known is not None:
            own = torch.cat([own, other[known.rows].repeat(KNOWN_WEIGHT, 1)])
            labels = torch.cat([labels, known.labels.repeat(KNOWN_WEIGHT)])
        weights, bias = fit_classifier(own, labels, classes)
        centers = spherical_kmeans(other, class_centers(own, labels, classes)).centers
        return cls(shift, scale, weights, bias, centers, own, labels, other[rows], rows)

    def reduced(self, samples: int) -> "Reference":
        """The same with at most this many samples in both banks together, small enough to store with a model."""
        source, target = some_rows(len(self.source), samples // 2), some_rows(len(self.target), samples // 2)
        return replace(
            self,
            source=self.source[source],
            source_labels=self.source_labels[source],
            target=self.target[target],
            target_rows=self.target_rows[target],
        )

    def view(self, features: Tensor, rows: Tensor | None = None) -> View:
        """What it says of target samples, from their features; `rows` are their places in the target, if they have any.

        A sample is no neighbor of itself.
        """
        units = standardized(features, self.shift, self.scale)
        near = nearest(units, self.target, NEIGHBORS, _same(rows, self.target_rows))
        sources = self.source_labels[nearest(units, self.source, NEIGHBORS)]
        return View(near, sources, self.classify(units), cosine_distances(units, self.centers).argmin(1))

    def view_of_target(self, features: Indexed) -> View:
        """What it says of the whole target, from its features (m, d); neighbors are places in the target."""
        view = self.view_of_rows(features)
        return replace(view, target_neighbors=self.target_rows[view.target_neighbors])

    def view_of_rows(self, features: Indexed) -> View:
        """What it says of the whole target, a part at a time if it is large; neighbors are places in the bank."""
        size = len(features) if len(features) <= MANY else PART
        parts = [self.view(features[rows], rows) for rows in torch.split(torch.arange(len(features)), size)]
        return View(*(torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])))

    def classify(self, units: Tensor) -> Tensor:
        """Probabilities by the plain source classifier, shape (n, classes), for standardized features."""
        probabilities: Tensor = (units @ self.weights * units.shape[1] ** 0.5 + self.bias).softmax(1)
        return probabilities


def support(view: View, labels: Tensor) -> Tensor:
    """How far untouched features agree with a label for each sample of the whole target, shape (n,).

    `view` is a `view_of_target`. Neighbors count twice: on PACS no other evidence orders samples as well.
    """
    own = labels[:, None]
    evidence = {
        "neighbors": (labels[view.target_neighbors] == own).float().mean(1),
        "classifier": view.classifier.gather(1, own).squeeze(1),
        "source_neighbors": (view.source_neighbors == own).float().mean(1),
        "clusters": (view.clusters == labels).float(),
    }
    return torch.stack([weight * evidence[name] for name, weight in SUPPORT.items()]).sum(0)


def standardized(features: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Unit vectors after a mean and a scale of unit vectors are removed, shape (n, d)."""
    return normalize((normalize(features.float()) - shift) / (scale + 1e-6))


def standardized_by_source(features: Tensor, origins: Tensor | None = None) -> Tensor:
    """The standardized features of one source, or of several, each by itself; shape (n, d)."""
    if origins is None:
        return standardized(features, *moments(features))
    units = torch.empty_like(features, dtype=torch.float32)
    for number in torch.unique(origins).tolist():
        own = features[origins == number]
        units[origins == number] = standardized(own, *moments(own))
    return units


def moments(features: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the unit vectors, both of shape (d,); `counts` (n,) says how much each counts."""
    units = normalize(features.float())
    if counts is None:
        return units.mean(0), units.std(0, correction=0)
    share = (counts / counts.sum()).to(units)
    mean = share @ units
    return mean, (share @ (units - mean).square()).sqrt()


def fit_classifier(
    units: Tensor,
    labels: Tensor,
    classes: int,
    *,
    counts: Tensor | None = None,
    start: tuple[Tensor, Tensor] | None = None,
    ridge: float = RIDGE,
) -> tuple[Tensor, Tensor]:
    """Weights (d, classes) and bias (classes,) of a logistic regression on standardized features, which has no seed.

    `counts`, shape (n,), says how much each sample counts. A fit that starts from another one takes fewer steps.
    """
    inputs = units * units.shape[1] ** 0.5  # each dimension then has a variance of about one
    first = start or (torch.zeros(units.shape[1], classes), torch.zeros(classes))
    # One row for each class: with few classes, products with the samples then take a fifth of the time.
    rows, bias = (each.T.contiguous().clone().requires_grad_() for each in (first[0], first[1][None]))
    steps = FIRST_STEPS if start is None else LATER_STEPS
    optimizer = torch.optim.LBFGS([rows, bias], max_iter=steps, line_search_fn="strong_wolfe")
    share = None if counts is None else (counts / counts.sum()).to(units)

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = (rows @ inputs.T + bias).T
        each = cross_entropy(logits, labels, reduction="mean" if share is None else "none")
        value = (each if share is None else share @ each) + ridge / 2 * rows.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return rows.detach().T.contiguous(), bias.detach().flatten()


def nearest(units: Tensor, bank: Tensor, count: int, same: Tensor | None = None) -> Tensor:
    """The most similar samples of a bank for each row, indices of shape (n, count) or fewer columns.

    `same` has for each row its own place in the bank, which is passed over; -1 if it has none.
    """
    count = max(1, min(count, len(bank) - int(same is not None)))
    found = []
    for start in range(0, len(units), CHUNK):
        similarity = units[start : start + CHUNK] @ bank.T
        if same is not None:
            own = same[start : start + CHUNK]
            inside = (own >= 0).nonzero().flatten()
            similarity[inside, own[inside]] = -torch.inf
        found.append(similarity.topk(count, dim=1).indices)
    return torch.cat(found)


def _same(rows: Tensor | None, bank_rows: Tensor) -> Tensor | None:
    """For each row its place in the bank, -1 where it has none."""
    if rows is None:
        return None
    places = torch.full((int(max(rows.max(), bank_rows.max())) + 1,), -1)
    places[bank_rows] = torch.arange(len(bank_rows))
    return places[rows]


def some_rows(count: int, limit: int) -> Tensor:
    """At most `limit` of `count` rows, at random but always the same and in order."""
    return torch.randperm(count, generator=generator("bank"))[:limit].sort().values
