"""What a method is: which samples each step uses, and which losses it minimizes on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from candapt import processes
from candapt.clustering import CHUNK_SIZE, Clusters, class_centers, spherical_kmeans
from candapt.data.domains import LabeledDomain, Side, Task
from candapt.data.sampling import random_batches
from candapt.evaluation.proportions import EVEN, Mixture
from candapt.evaluation.reference import View
from candapt.network.network import Network, Outputs, Piece
from candapt.processes import Share
from candapt.randomness import generator

KNOWN = "known"  # the part of a batch that holds target samples with known labels, and its loss
SHARED_CHUNKS = 4  # chunks of samples for each process from which on sharing them out saves more than it costs
ANCHOR_PULL = 1.0  # weight of known target samples in a class's first center, beside all of its source samples


@dataclass(frozen=True)
class Part:
    """Samples of one domain in a step: plain indices, not yet read."""

    side: Side
    indices: Tensor  # rows of the domain, shape (n,)
    labels: Tensor  # labels, or pseudo labels on the target, shape (n,); -1 where there is none


class BatchPart(NamedTuple):
    """A part after reading. A tuple, since Fabric moves tuples to the device."""

    x: Tensor
    labels: Tensor
    norm: int  # index of the batch norm of the domain that it comes from
    share: Share | None = None
    """Which part of the samples `x` holds, where processes share a batch; labels are those of all samples."""


Draw = Mapping[str, Part]  # the parts of one step by name, for instance `source` and `target`
Batch = Mapping[str, BatchPart]  # the same parts after reading
Losses = dict[str, Tensor]  # named losses; their sum is minimized


class Phase(NamedTuple):
    """One kind of optimizer step inside a batch. A tuple, since Fabric takes no frozen dataclass in mixed precision."""

    name: str = "train"
    updates: tuple[str, ...] = ("network",)  # the parts of the method, names of its submodules, that this phase updates
    repeats: int = 1


@dataclass(frozen=True)
class Round:
    """What a method may use when it lays out a round."""

    index: int
    rounds: int  # rounds at most, in all
    task: Task
    seed: int  # seed of this round in this process
    batch_size: int
    steps: int | None  # steps of the round; None lets the method choose
    embed: Callable[[Side], Outputs]  # features and logits of a whole domain by the network as it is now
    previous: Clusters | None  # clusters of the round before
    view: View | None = None  # what features that no adaptation has touched say of the target; None if there are none
    mixture: Mixture = EVEN  # how much each source class and each target sample counts

    def random_draws(self, steps: int, *sides: Side) -> list[dict[str, Part]]:
        """Class-agnostic batches of the given sides: `source` with its labels, `target` without any."""
        draws: list[dict[str, Part]] = [{} for _ in range(steps)]
        for side in sides:
            domain = self.task.domain(side)
            labels = domain.labels if isinstance(domain, LabeledDomain) else torch.full((domain.size,), -1)
            random, weights = generator(self.seed, "batches", side.name), self.mixture.weights(side, self.task)
            chosen = random_batches(domain.size, self.batch_size, steps, random, weights)
            for draw, indices in zip(draws, chosen, strict=True):
                draw[side.name.lower()] = Part(side, indices, labels[indices])
        return draws

    def class_centers(self, *, unit: bool = True) -> Tensor:
        """Centers of the source's classes, shape (classes, d), drawn to known target samples of a class if any are."""
        labels, classes = self.task.source.labels, self.task.num_classes
        centers = class_centers(self.embed(Side.SOURCE).features, labels, classes, unit=unit)
        if self.task.known is None:
            return centers
        known = self.task.known
        anchors = class_centers(self.embed(Side.TARGET).features[known.rows], known.labels, classes)
        return normalize(centers) + ANCHOR_PULL * normalize(anchors)

    def kmeans(self, features: Tensor, centers: Tensor, **options: Any) -> Clusters:
        """Clusters of target samples (n, d) with the known ones as anchors, as `spherical_kmeans` gives them.

        Of many samples each process clusters a share, and all of them exchange sums only.
        """
        anchors, present = self.anchors, self.mixture.present
        chunks = [min(CHUNK_SIZE, len(features) - start) for start in range(0, len(features), CHUNK_SIZE)]
        if processes.count() == 1 or len(chunks) < SHARED_CHUNKS * processes.count():
            return spherical_kmeans(features, centers, anchors=anchors, present=present, **options)
        share = processes.share_of(chunks)  # whole chunks: their sums are then the same as in one process
        own = None if anchors is None else anchors[share.rows]
        options |= {"anchors": own, "present": present, "reduce": processes.summed}
        part = spherical_kmeans(features[share.rows], centers, **options)
        labels, distances, kept = (processes.joined(each, share) for each in (part.labels, part.distances, part.kept))
        return replace(part, labels=labels, distances=distances, kept=kept)

    @property
    def anchors(self) -> Tensor | None:
        """The known label of each target sample, shape (n,), -1 where there is none; None without any."""
        return None if self.task.known is None else self.task.target_labels

    @property
    def epoch(self) -> int:
        """Batches that it takes to see the larger domain once."""
        return max(1, max(self.task.source.size, self.task.target.size) // self.batch_size)


class Method(nn.Module):
    """A network with a way to train it. Subclasses are a page long; the training loop is written once.

    A subclass brings everything of its own: its settings with their limits and search ranges, its title and its paper.
    `METHODS` holds it by name; help, benchmark, tuning, report and documentation read it from there.
    """

    Settings: ClassVar[type[Any]]  # frozen dataclass of the method's own settings
    recipe: ClassVar[Mapping[str, Any]] = {}  # the method's own defaults, by flag name, where a preset has no other
    title: ClassVar[str]  # its name in sentences, for instance CAN
    reference: ClassVar[str] = ""  # the paper that it comes from
    phases: tuple[Phase, ...] = (Phase(),)  # the optimizer steps made on each batch, in order
    settles: bool = True  # whether training may stop early, once labels and centers no longer change
    known_weight: float = 1.0  # of the cross-entropy on known target labels
    weighs_classes: bool = True  # whether source classes count as often as the target seems to have them
    head_is_adapted: bool = False  # whether its head was adapted before the layers below: then nothing needs to warm up

    def __init__(self, network: Network, settings: Any) -> None:
        super().__init__()
        self.network = network
        self.settings = settings
        self.register_forward_hook(_with_known_loss)  # a hook, so that it joins the losses of every method

    @property
    def learner(self) -> Network:
        """The network that learns; where a teacher predicts, that is another one."""
        return self.network

    @property
    def uses_view(self) -> bool:
        """Whether a round needs a view by features that no adaptation has touched."""
        return False

    def warms_up(self, round: Round) -> bool:
        """Whether this round only prepares what follows, by training on the source alone."""
        return False

    def cluster(self, round: Round) -> Clusters | None:
        """Pseudo labels for this round, or None for methods that train without."""
        return None

    def final_clusters(self, round: Round) -> Clusters:
        """Clusters of the target after training, as evidence beside the predictions."""
        return round.kmeans(round.embed(Side.TARGET).features, round.class_centers())

    def draws(self, round: Round, clusters: Clusters | None) -> Sequence[Draw]:
        """The samples of each step of the round; a pure function of its arguments, so that resuming repeats it."""
        return round.random_draws(round.steps or round.epoch, Side.SOURCE, Side.TARGET)

    def forward(self, batch: Batch, phase: Phase, progress: float) -> Losses:
        """Losses of one batch in one phase; `progress` is the share of the training done, from 0 to 1."""
        raise NotImplementedError

    def both(self, batch: Batch) -> tuple[Outputs, Outputs]:
        """Outputs of the parts `source` and `target`, each normalized as its own domain."""
        source, target = self.outputs(batch, "source", "target")
        return source, target

    def outputs(self, batch: Batch, *names: str) -> list[Outputs]:
        """Outputs of some parts, each normalized on its own."""
        return self.network.each([self.piece(batch[name]) for name in names])

    def head_outputs(self, batch: Batch, *names: str) -> list[list[Outputs]]:
        """Outputs of every head for some parts, each normalized on its own: one list of heads per part."""
        return self.network.each_head([self.piece(batch[name]) for name in names])

    def features(self, batch: Batch, *names: str) -> list[Tensor]:
        """Features of some parts, each of shape (n, num_features), for methods that call the head themselves."""
        return self.network.features([self.piece(batch[name]) for name in names])

    def piece(self, part: BatchPart) -> Piece:
        """What the network takes of a part."""
        return part.x, self.normalizes_as(part.norm), part.share

    def after_step(self) -> None:
        """Called after each optimizer step, for instance to update a moving average."""

    def predict(self, x: Tensor, norm: int) -> Outputs:
        """Features and logits of a batch of the domain with this batch norm, for evaluation."""
        outputs: Outputs = self.network(x, self.normalizes_as(norm))
        return outputs

    def normalizes_as(self, norm: int) -> int:
        """Index of the batch norms that normalize samples of the domain with this index; its own by default."""
        return norm


def mean_cross_entropy(heads: Sequence[Outputs], labels: Tensor) -> Tensor:
    """Cross-entropy of each head's logits, averaged over the heads: each learns by itself."""
    return torch.stack([cross_entropy(each.logits, labels) for each in heads]).mean()


def _with_known_loss(method: nn.Module, arguments: tuple[Any, ...], losses: Losses) -> Losses:
    """The losses of a method and, where it classifies the source, the cross-entropy on known target labels."""
    assert isinstance(method, Method)
    part = arguments[0].get(KNOWN)
    if part is None or "classification" not in losses:
        return losses
    heads = method.learner.each_head([method.piece(part)])[0]
    known = torch.stack([cross_entropy(each.logits, part.labels, ignore_index=-1) for each in heads]).mean()
    return {**losses, KNOWN: method.known_weight * known}
