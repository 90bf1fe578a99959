"""Batches from several sources: every step takes its source samples from one of them, in turn.

Each source has a batch norm of its own, and a batch that mixed sources would give each of them too few samples to
normalize with.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from candapt.clustering import Clusters
from candapt.data.domains import Side, part_of
from candapt.methods.base import Draw, Method, Part, Round
from candapt.randomness import derive_seed


def draws_by_source(method: Method, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
    """The samples of each step of a round; each of several sources has as many steps as if it were the only one."""
    source = round.task.source
    if source.origins is None:
        return method.draws(round, clusters)
    turns: list[list[Draw]] = []
    for number in range(source.count):
        rows = (source.origins == number).nonzero().flatten()
        alone = replace(round.task, source=replace(part_of(source, rows), origins=None))
        seed = round.seed if number == 0 else derive_seed(round.seed, "source", number)
        drawn = method.draws(replace(round, task=alone, seed=seed), clusters)
        turns.append([{name: _in_whole(part, rows) for name, part in draw.items()} for draw in drawn])
    longest = max(map(len, turns))
    return [turn[step] for step in range(longest) for turn in turns if step < len(turn)]


def _in_whole(part: Part, rows: Tensor) -> Part:
    """A part whose rows of one source become rows of all."""
    return replace(part, indices=rows[part.indices]) if part.side == Side.SOURCE else part
