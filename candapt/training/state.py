"""Where a training stands."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from candapt.clustering import Clusters

Record = dict[str, float | int]
"""What is known after a round; one line of `metrics.jsonl`."""


@dataclass
class PartOfRound:
    """What is done of a round that is not over."""

    steps: int = 0
    skipped: int = 0
    """Steps among them that changed nothing, because the numbers went wrong."""
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    """Sum of each loss over the steps in which it occurred."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of these steps."""
    previous: Clusters | None = None
    """Clusters of the round before."""

    def add(self, values: Mapping[str, float]) -> None:
        """Count the losses of one step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Mean of each loss."""
        return {name: total / self.counts[name] for name, total in self.sums.items()}


@dataclass(frozen=True, eq=False)
class Kept:
    """The best round so far, by the score that selects."""

    round: int
    merit: float
    """How good it is, the more the better."""
    tensors: dict[str, Tensor]
    """The method's state after that round."""


@dataclass
class State:
    """Where a training stands. With the weights and the optimizers it is all that a later process needs to go on."""

    round: int = 0
    iteration: int = 0
    clusters: Clusters | None = None
    """Of this round once it has begun, before that of the one before."""
    history: list[Record] = field(default_factory=list)
    scored: dict[str, Tensor] = field(default_factory=dict)
    """What later scores compare with: labels of rounds before."""
    kept: Kept | None = None
    """None where the last round is taken whatever it scores."""
    part: PartOfRound = field(default_factory=PartOfRound)

    def end_round(self, record: Record) -> None:
        """Note what is known of the round; the next one has not begun."""
        self.history.append(record)
        self.round += 1
        self.part = PartOfRound()
