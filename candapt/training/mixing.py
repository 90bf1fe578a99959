"""How much each source class and each target sample counts in a training, and how that follows the network."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from candapt.data.domains import Side
from candapt.evaluation.proportions import (
    EVEN,
    SAMPLES,
    Mixture,
    Proportions,
    among_neighbors,
    estimate_proportions,
    mean_vote,
    mixture_for,
)
from candapt.evaluation.reference import (
    BANK,
    MANY,
    NEIGHBORS,
    PART,
    Indexed,
    moments,
    nearest,
    some_rows,
    standardized,
    standardized_by_source,
)
from candapt.evaluation.unknown import Unknown, find_unknown
from candapt.methods.base import Round

if TYPE_CHECKING:
    from candapt.training.loop import Training

UNKNOWN = "unknown"  # the name of the samples' probability of being unknown in the memory of a training
MIXTURE, PROPORTIONS = "mixture_", "proportions_"  # what their names have before them in the memory of a training


def remembered_mixture(memory: Mapping[str, Tensor]) -> Mixture:
    """What counts how much in the present round."""
    parts = _below(MIXTURE, memory)
    return Mixture(**parts) if parts else EVEN


def remembered_proportions(memory: Mapping[str, Tensor]) -> Proportions | None:
    """The class proportions as they were estimated before the training, if they were."""
    parts = _below(PROPORTIONS, memory)
    return Proportions(**parts) if parts else None


def first_mixture(training: "Training") -> dict[str, Tensor]:
    """What a training remembers of unknown objects and class proportions, by untouched features, if there are any.

    If neither can be seen, everything counts the same, as it does without looking for them.
    """
    if not training.method.weighs_classes:
        return {}
    source, target = (training.outputs.untouched(side) for side in Side)
    if source is None or target is None:
        return {}
    labels, classes = training.task.source.labels, training.task.num_classes
    rows, settings = some_rows(len(source), max(SAMPLES, 10 * classes)), training.settings.training
    origins = None if training.task.source.origins is None else training.task.source.origins[rows]
    source, labels, known, memory = source[rows], labels[rows], None, dict[str, Tensor]()
    own = standardized_by_source(source, origins)
    source = source if origins is None else own  # several sources must be alike before they are weighted together
    if settings.unknown != "off":
        unknown = unknown_among(own, labels, target, classes)
        given = training.task.target_labels >= 0
        unknown = replace(unknown, probability=unknown.probability.masked_fill(given, 0.0))
        known, memory = unknown.known, {UNKNOWN: unknown.probability}
    mixture = Mixture(known=known)
    if settings.proportions != "off":
        some = some_rows(len(target), SAMPLES)
        among = None if known is None else known[some]
        estimate = estimate_proportions(source, labels, target[some], classes, among)
        memory |= _named(PROPORTIONS, vars(estimate))
        if estimate.differ:
            mixture = mixture_for(estimate.target, estimate.source, known, lacks_classes=estimate.lacks_classes)
    return memory | _named(MIXTURE, mixture.with_classes(training.task.known).tensors())


def unknown_among(source: Tensor, labels: Tensor, target: Indexed, classes: int) -> Unknown:
    """What is unknown in a target; in a large one, in which not all pairs can be compared, by the nearest of some."""
    rows = some_rows(len(target), MANY)
    some = target[rows]
    shift, scale = moments(some)
    units = standardized(some, shift, scale)
    unknown = find_unknown(source, labels, units, classes)
    if len(rows) == len(target):
        return unknown
    bank = some_rows(len(rows), BANK)
    parts = [
        unknown.probability[bank[nearest(standardized(target[part], shift, scale), units[bank], NEIGHBORS)]].mean(1)
        for part in torch.split(torch.arange(len(target)), PART)
    ]
    return replace(unknown, probability=torch.cat(parts).index_copy(0, rows, unknown.probability))


def revise_mixture(training: "Training", round: Round) -> Mixture:
    """The mixture by what the network says of the target now, so that a class that seemed absent can come back.

    Before it has learned anything the first estimate stands, and so it does where no class is missing: a network that
    sees less of rare classes predicts them less, and would bring their weights down further.
    """
    memory = training.state.score_memory
    before, estimate, view = remembered_mixture(memory), remembered_proportions(memory), round.view
    if (
        before.classes is None
        or estimate is None
        or not estimate.lacks_classes
        or view is None
        or round.index == 0
        or training.method.warms_up(round)
    ):
        return before
    votes = among_neighbors(training.outputs.of(Side.TARGET).probabilities, view.target_neighbors)
    done = round.index / round.rounds  # the network knows more and more
    share = (1 - done) * estimate.target + done * mean_vote(votes, before.known)
    mixture = mixture_for(share, estimate.source, before.known).with_classes(training.task.known)
    memory |= _named(MIXTURE, mixture.tensors())
    return mixture


def _named(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in values.items()}


def _below(prefix: str, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in memory.items() if name.startswith(prefix)}
