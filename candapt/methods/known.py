"""Known labels of target samples, as a part of the batches that every method can learn from."""

from collections.abc import Sequence

import torch

from candapt.data.domains import Side
from candapt.data.sampling import random_batches
from candapt.methods.base import KNOWN, Draw, Part, Round
from candapt.randomness import generator


def with_known(draws: Sequence[Draw], round: Round) -> Sequence[Draw]:
    """The draws of a round, each with a part of target samples of which up to half have a known label.

    The others, whose label is -1, are drawn from the whole target: batch norm would not learn the target's statistics
    from a few known samples alone, which may be of one class.
    """
    known, size = round.task.known, min(round.batch_size, round.task.target.size)
    if known is None or not draws:
        return draws
    labels, random = round.task.target_labels, generator(round.seed, "batches", KNOWN)
    chosen = known.rows[random_batches(len(known.rows), max(1, size // 2), len(draws), random)]
    others = random_batches(round.task.target.size, size, len(draws), random)
    parts = []
    for own, rest in zip(chosen, others, strict=True):
        rows = torch.cat([own, rest[labels[rest] < 0]])[:size]
        parts.append(Part(Side.TARGET, rows, labels[rows]))
    return [{**draw, KNOWN: part} for draw, part in zip(draws, parts, strict=True)]
