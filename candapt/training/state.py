"""Where a training stands."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from candapt.clustering import Clusters

Record = dict[str, float | int]  # what is known after a round; one line of `metrics.jsonl`


@dataclass
class RoundProgress:
    """What has been done of a round that is not over."""

    steps: int = 0
    skipped: int = 0  # steps among them that changed nothing, because a loss or gradient was not finite
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)  # sum of each loss over the steps in which it occurred
    counts: dict[str, int] = field(default_factory=dict)  # number of these steps
    previous: Clusters | None = None  # clusters of the round before

    def add(self, values: Mapping[str, float]) -> None:
        """Count the losses of one step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Mean of each loss."""
        return {name: total / self.counts[name] for name, total in self.sums.items()}


@dataclass(frozen=True, eq=False)
class BestRound:
    """The best round so far by the score that selects."""

    round: int
    merit: float  # how good it is; higher is better
    tensors: dict[str, Tensor]  # the method's state after that round


@dataclass
class TrainingState:
    """Where a training stands. With the weights and the optimizers it is all that a later process needs to resume."""

    round: int = 0
    iteration: int = 0
    clusters: Clusters | None = None  # of this round once it has begun; until then those of the round before
    history: list[Record] = field(default_factory=list)
    score_memory: dict[str, Tensor] = field(default_factory=dict)  # what was known of the target before the training
    best: BestRound | None = None  # none if the last round is kept whatever it scores
    progress: RoundProgress = field(default_factory=RoundProgress)

    def end_round(self, record: Record) -> None:
        """Store the record of the round; the next one has not begun."""
        self.history.append(record)
        self.round += 1
        self.progress = RoundProgress()
