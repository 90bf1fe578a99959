"""Evaluation passes: outputs of a method over whole domains, and the batch norm statistics that they need."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from candapt import processes
from candapt.data.domains import ArraySamples, Domain, Samples, Side, by_norm, norm_of, part_of
from candapt.methods.base import Method
from candapt.network.batchnorm import estimate_statistics, select_side
from candapt.network.network import Bottleneck, Outputs
from candapt.processes import Share, joined, share_of
from candapt.randomness import derive_seed

if TYPE_CHECKING:
    from candapt.training.loop import Training


class DomainOutputs:
    """Outputs over both domains by a network in training, each computed at most once between two steps."""

    def __init__(self, training: "Training") -> None:
        self.training, self.method, self.task = training, training.method, training.task
        self.batch_size = training.settings.training.evaluation_batch
        self._outputs: dict[Side, Outputs] = {}
        self._features: dict[Side, Domain] = {}
        self._statistics_are_fresh = False

    def of(self, side: Side) -> Outputs:
        """Outputs over a whole domain."""
        if side not in self._outputs:
            self.refresh()
            with self.training.number_format(), self._head_input(side) as domain:
                self._outputs[side] = outputs_of(self.method, domain, side, batch_size=self.batch_size, together=True)
        return self._outputs[side]

    def of_rows(self, side: Side, rows: Tensor, *, whole: bool) -> Outputs:
        """Outputs of some samples, shape (len(rows), …); with `whole` taken from those of all samples."""
        domain = self.task.domain(side)
        self.refresh()
        if whole or side in self._features or domain.size <= 2 * len(rows):
            return Outputs(*(values[rows] for values in self.of(side)))
        return self.of_samples(side, part_of(domain, rows))

    def of_samples(self, side: Side, domain: Domain) -> Outputs:
        """Outputs of other samples that come from that side."""
        self.refresh()
        with self.training.number_format():
            return outputs_of(self.method, domain, side, batch_size=self.batch_size)

    def of_training_views(self, side: Side, seed: int) -> Outputs:
        """Outputs over a whole domain in training views, drawn by the seed; samples without any have one view."""
        self.refresh()
        with self.training.number_format():
            domain = self.task.domain(side)
            return outputs_of(self.method, domain, side, batch_size=self.batch_size, seed=seed, together=True)

    @torch.no_grad()
    def features(self, side: Side) -> Domain:
        """Evaluation views of a whole domain after the layers below the bottleneck, in order and single precision."""
        if side not in self._features:
            domain, layers = self.task.domain(side), self.method.network.backbone.get_submodule("layers").eval()
            parts = []
            for rows, part, norm in by_norm(domain, side):
                select_side(layers, self.method.normalizes_as(norm))
                share = batches_of(part, self.batch_size, together=True)
                with self.training.number_format():
                    own = [layers(batch).float().cpu() for batch in read_in_order(self.method, part, share)]
                parts.append((rows, share.join(own)))
            self._features[side] = replace(domain, samples=ArraySamples(in_order(parts)))
        return self._features[side]

    def refresh(self) -> None:
        """Take batch norm statistics of the whole domains if they are used and outdated."""
        self.training.settle_statistics()
        if not self.uses_whole_domains or self._statistics_are_fresh:
            return
        for side in Side:  # both, since a method may evaluate one domain with the statistics of the other
            weights = self.training.mixture.weights(side, self.task)
            with self.training.number_format(), self._head_input(side) as domain:
                if normalizes_apart(self.method):  # then one pass gives the outputs too
                    outputs = outputs_of_whole(self.method, domain, side, batch_size=self.batch_size, weights=weights)
                    self._outputs[side] = outputs
                else:
                    size = self.batch_size
                    refresh_statistics(self.method, domain, side, batch_size=size, weights=weights, together=True)
        self._statistics_are_fresh = True

    @torch.no_grad()
    def untouched(self, side: Side) -> "Tensor | ReadRows | None":
        """Features below the bottleneck, or of the whole network, shape (n, d), which must not have been trained yet.

        They are in memory, or read when some rows are asked for.

        None if the network starts at random: they would mean nothing.
        """
        network = self.method.network
        if network.starts_at_random:
            return None
        if isinstance(network.backbone, Bottleneck):
            return ReadRows(self.task.domain(side).samples)
        if any(isinstance(layer, Bottleneck) for layer in network.backbone.children()):
            return ReadRows(self.features(side).samples)
        return self.of(side).features

    def forget(self, *, layers: bool = True) -> None:
        """Drop outdated outputs; with `layers=False` those of the layers below the bottleneck stay."""
        self._outputs.clear()
        self._statistics_are_fresh = False
        if layers:
            self._features.clear()

    @property
    def uses_whole_domains(self) -> bool:
        """Whether batch norm evaluates with statistics of the whole domain; a new one has no others at first."""
        statistics, network = self.training.settings.training.statistics, self.method.network
        at_first = self.training.state.iteration == 0 and not network.layers_are_fixed
        return statistics == "domain" or (bool(network.new_layers) and (statistics == "auto" or at_first))

    @contextmanager
    def _head_input(self, side: Side) -> Iterator[Domain]:
        """What the network takes within this context: a domain, or features of layers with fixed statistics.

        Statistics and outputs need the same features of such layers, so that samples pass through them only once.
        """
        network = self.method.network
        domain = self.features(side) if network.layers_are_fixed else self.task.domain(side)
        with network.over_features() if network.layers_are_fixed else nullcontext():
            yield domain


@dataclass(frozen=True)
class ReadRows:
    """Evaluation views as an array (n, …) in single precision, whose rows are read when they are asked for."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.samples.read(rows).float()


@torch.no_grad()
def outputs_of(
    method: Method, domain: Domain, side: Side, *, batch_size: int, seed: int | None = None, together: bool = False
) -> Outputs:
    """Features and logits of every sample, in order, in single precision on the CPU.

    Samples are evaluation views or, with a seed, training views drawn by it. If several processes ask for them
    `together`, each computes some of the batches.
    """
    method.eval()
    fields: tuple[list[tuple[Tensor, Tensor]], ...] = ([], [])
    for rows, part, norm in by_norm(domain, side):
        share = batches_of(part, batch_size, together=together)
        outputs = [method.predict(batch, norm) for batch in read_in_order(method, part, share, seed)]
        columns = zip(*outputs, strict=True) if outputs else ([], [])
        widths = method.network.num_features, method.network.num_classes
        for field, values, width in zip(fields, columns, widths, strict=True):
            field.append((rows, share.join([value.float().cpu() for value in values], width)))
    return Outputs(*map(in_order, fields))


def normalizes_apart(method: Method) -> bool:
    """Whether the network is a bottleneck over given features that normalizes each domain by itself."""
    norms = [norm_of(side, number) for side in Side for number in range(2)]
    apart = all(method.normalizes_as(norm) == norm for norm in norms)
    return apart and isinstance(method.network.backbone, Bottleneck)


@torch.no_grad()
def outputs_of_whole(
    method: Method, domain: Domain, side: Side, *, batch_size: int, weights: Tensor | None = None
) -> Outputs:
    """The same as `refresh_statistics` and then `outputs_of`, in one pass, for methods that normalize domains apart."""
    method.eval()
    network, parts, logits = method.network, [], []
    device = next(method.parameters()).device
    for rows, part, norm in by_norm(domain, side):
        share = batches_of(part, batch_size, together=True)
        read = partial(read_in_order, method, part, share)
        own = None if weights is None else weights[rows][share.share.rows]
        features = share.join([cast(Bottleneck, network.backbone).whole(read, norm, own)], network.num_features)
        parts.append((rows, features))
    features = in_order(parts)
    share = batches_of(domain, batch_size, together=True)
    logits = [network.head(features[rows].to(device)).float().cpu() for rows in share.own]
    return Outputs(features, share.join(logits, network.num_classes))


def in_order(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Values of all samples from those of some rows each: the rows of a part, shape (m,), and its values (m, …)."""
    if len(parts) == 1:
        return parts[0][1]
    values = torch.cat([own for _, own in parts])
    return torch.empty_like(values).index_copy_(0, torch.cat([rows for rows, _ in parts]), values)


def refresh_statistics(
    method: Method,
    domain: Domain,
    side: Side,
    *,
    batch_size: int,
    weights: Tensor | None = None,
    together: bool = False,
) -> None:
    """Set the batch norm statistics of one side to those of the whole domain; each source has its own.

    Weights (n,) say what counts how much. If several processes work `together`, each computes some of the batches.
    """
    apart = len({method.normalizes_as(norm_of(side, n)) for n in range(2)}) > 1
    device, whole = next(method.parameters()).device, (torch.arange(domain.size), domain, norm_of(side))
    for places, part, norm in by_norm(domain, side) if apart else [whole]:
        batches = _batch_count(part, batch_size)
        # Files are often sorted by class: every k-th sample makes batches that look like the whole domain.
        rows = torch.arange(part.size) if weights is None else resampled(weights[places])
        own = range(processes.rank(), batches, processes.count()) if together else range(batches)
        read = (part.samples.read(rows[first::batches]).to(device) for first in own)
        estimate_statistics(method.network.backbone, norm, read, together=together)


def resampled(weights: Tensor) -> Tensor:
    """As many rows as there are weights, shape (n,), in order: each as often as its weight says, within one."""
    ends = weights.double().cumsum(0)
    places = (torch.arange(len(weights)) + 0.5) / len(weights) * ends[-1]
    return torch.searchsorted(ends, places).clamp_max(len(weights) - 1)


@dataclass(frozen=True)
class Batches:
    """The batches of an evaluation pass over a domain, in order, and which of them this process computes.

    Batches stay whole whatever the number of processes, so that their results have the same bits.
    """

    all: Sequence[Tensor]  # rows of each batch
    share: Share  # of this process, in rows

    @property
    def own(self) -> Sequence[Tensor]:
        """Rows of the batches that this process computes."""
        rows = self.share.rows
        return [batch for batch in self.all if rows.start <= int(batch[0]) < rows.stop]

    @property
    def first(self) -> int:
        """Number of the first of them."""
        return sum(int(batch[0]) < self.share.start for batch in self.all)

    def join(self, own: Sequence[Tensor], *width: int) -> Tensor:
        """The values of all batches in order, from those of this process, whose rows have this width.

        Without a width the first process, which has a batch if any has, tells the others: they may have none.
        """
        if len(self.share.sizes) > 1 and not width:
            width = tuple(processes.from_first(list(own[0].shape[1:]) if own else []))
        rows = own[0] if len(own) == 1 else torch.cat(list(own)) if own else torch.empty(0, *width)
        return joined(rows, self.share)


def batches_of(domain: Domain, batch_size: int, *, together: bool = False) -> Batches:
    """The batches of a pass over a domain; if several processes work `together`, each has some of them."""
    rows = torch.arange(domain.size).tensor_split(_batch_count(domain, batch_size))
    sizes = [len(batch) for batch in rows]
    return Batches(rows, share_of(sizes) if together else Share((sum(sizes),), 0))


def read_in_order(
    module: nn.Module, domain: Domain, batches: Batches | int, seed: int | None = None
) -> Iterator[Tensor]:
    """Evaluation views batch by batch, on the module's device; with a seed, training views drawn by it.

    In place of the batches their size may be given.
    """
    device = next(module.parameters()).device
    batches = batches_of(domain, batches) if isinstance(batches, int) else batches
    for number, indices in enumerate(batches.own, batches.first):
        drawn = None if seed is None else derive_seed(seed, "clustering views", number)
        yield domain.samples.read(indices, seed=drawn).to(device)


def _batch_count(domain: Domain, batch_size: int) -> int:
    """Number of batches of nearly equal size; batch norm cannot process a last batch of one."""
    return max(1, min(-(-domain.size // batch_size), domain.size // 2))
