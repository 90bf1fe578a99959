"""The contrastive discrepancy of two whole domains, measured on few samples of each class."""

import torch
from torch import Tensor

from candapt.data.domains import Side
from candapt.losses.cdd import contrastive_domain_discrepancy, shared_classes
from candapt.network.network import Outputs
from candapt.randomness import generator
from candapt.training.loop import Record, Training

CLASSES = 40
"""Classes that take part, at most: the discrepancy compares every pair of them."""
SAMPLES = 10
"""Samples of each class and domain that take part, at most."""


def domain_discrepancy(
    source: Outputs, target: Outputs, source_labels: Tensor, target_labels: Tensor, *, seed: int = 0
) -> float | None:
    """The discrepancy of CAN between two domains, over features and probabilities.

    The same seed takes samples in the same order, so that the rounds of a training can be compared.

    Args:
        source: outputs over the source.
        target: outputs over the target.
        source_labels: shape (n,).
        target_labels: shape (m,), true or pseudo; a sample whose label is negative takes no part.
        seed: of the draw.

    Returns:
        None if fewer than two classes are shared.
    """
    classes = shared_classes(source_labels, target_labels[target_labels >= 0])
    if len(classes) < 2:
        return None
    classes = classes[torch.randperm(len(classes), generator=generator(seed, "classes"))[:CLASSES]]
    in_source, in_target = (
        _some_of_each(labels, classes, generator(seed, side))
        for side, labels in (("source", source_labels), ("target", target_labels))
    )
    return float(
        contrastive_domain_discrepancy(
            (source.features[in_source], source.probabilities[in_source]),
            (target.features[in_target], target.probabilities[in_target]),
            source_labels[in_source],
            target_labels[in_target],
        )
    )


def round_discrepancies(training: Training, truth: Tensor | None) -> Record:
    """The discrepancy after a round with its pseudo labels, `cdd`, and with true ones, `oracle_cdd`, as far as known.

    Args:
        training: after the round; what it is scored by is looked at.
        truth: true labels of the target, shape (n,), for an oracle.
    """
    clusters, rows, seed = training.state.clusters, training.scorer.rows, training.settings.seed
    source, target = (training.look(side, rows[side]) for side in Side)
    labels = {"cdd": target.logits.argmax(1) if clusters is None else clusters.labels[rows[Side.TARGET]]}
    if truth is not None:
        labels["oracle_cdd"] = truth[rows[Side.TARGET]]
    of_source = training.task.source.labels[rows[Side.SOURCE]]
    found = {name: domain_discrepancy(source, target, of_source, each, seed=seed) for name, each in labels.items()}
    return {name: value for name, value in found.items() if value is not None}


def _some_of_each(labels: Tensor, classes: Tensor, random: torch.Generator) -> Tensor:
    """Rows of at most `SAMPLES` samples of each class."""
    order = torch.randperm(len(labels), generator=random)
    return torch.cat([order[labels[order] == each][:SAMPLES] for each in classes])
