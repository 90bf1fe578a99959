"""Outputs of a method over a whole domain."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from candapt.data.domains import ArraySamples, Domain, Side
from candapt.methods.base import Method
from candapt.network.batchnorm import estimate_statistics, select_side
from candapt.network.network import Outputs


@torch.no_grad()
def outputs_of(method: Method, domain: Domain, side: Side, *, batch_size: int) -> Outputs:
    """Features and logits of every sample, in order, in single precision on the CPU; evaluation views and mode."""
    method.eval()
    parts = [method.predict(batch, side) for batch in read_in_order(method, domain, batch_size)]
    return Outputs(*(torch.cat([part[field].float().cpu() for part in parts]) for field in range(2)))


@torch.no_grad()
def through_layers(method: Method, domain: Domain, side: Side, *, batch_size: int) -> Domain:
    """What the layers below the bottleneck make of the evaluation views, in order and in single precision."""
    layers = method.network.backbone.get_submodule("layers").eval()
    select_side(layers, method.normalizes_as(side))
    batches = read_in_order(method, domain, batch_size)
    return Domain(ArraySamples(torch.cat([layers(batch).float().cpu() for batch in batches])), domain.names)


def refresh_statistics(method: Method, domain: Domain, side: Side, *, batch_size: int) -> None:
    """Take the batch norm statistics of one side from the whole domain."""
    device = next(method.parameters()).device
    batches = _batch_count(domain, batch_size)
    # Files are often sorted by class: every k-th sample makes batches that look like the whole domain.
    strides = (torch.arange(first, domain.size, batches) for first in range(batches))
    estimate_statistics(method.network.backbone, side, (domain.samples.read(indices).to(device) for indices in strides))


def read_in_order(module: nn.Module, domain: Domain, batch_size: int) -> Iterator[Tensor]:
    """Evaluation views batch by batch, on the device of the module that will take them."""
    device = next(module.parameters()).device
    for indices in torch.arange(domain.size).tensor_split(_batch_count(domain, batch_size)):
        yield domain.samples.read(indices).to(device)


def _batch_count(domain: Domain, batch_size: int) -> int:
    """Batches of nearly equal size, since batch norm cannot take a rest of one."""
    return max(1, min(-(-domain.size // batch_size), domain.size // 2))
