"""The processes of one command, which PyTorch's distributed engine connects, and what they exchange.

`torchrun` starts them, or `--devices` and `--nodes` do by the same engine. Every process does the same and meets the
others where something is exchanged; without others nothing is. Only the first one writes files.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from candapt.errors import UserError

STARTED_HERE = "CANDAPT_STARTED"  # set for processes that `candapt` itself started, and for which it speaks

T = TypeVar("T")


def count() -> int:
    """Number of processes that are connected; 1 for a process alone."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def started() -> int:
    """Number of processes that were started for this command, whether they are connected yet or not."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """Number of this process, from 0 on."""
    return dist.get_rank() if count() > 1 else int(os.environ.get("RANK", 0)) if started() > 1 else 0


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks to the user."""
    return rank() == 0


def restarts() -> int:
    """How often `torchrun` has started the processes again after one of them had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def connect(device: torch.device) -> None:
    """Connect the processes that were started for this command, whose tensors are on this kind of device, once."""
    if dist.is_initialized():
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        store, number, total = next(rendezvous("env://"))
        # After a restart the meeting point may still know the addresses of processes that are gone.
        store = PrefixStore(f"candapt/{restarts()}", store)
        dist.init_process_group(backend, store=store, rank=number, world_size=total)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(
            f"The {started()} processes of this command cannot reach each other ({reason}): check that all of them "
            "were started, and the network between the machines."
        ) from None


class Share(NamedTuple):
    """The rows of something that are shared out among processes, in order."""

    sizes: tuple[int, ...]  # rows of each process
    rank: int  # of this process

    @property
    def start(self) -> int:
        """First row of this process."""
        return sum(self.sizes[: self.rank])

    @property
    def rows(self) -> slice:
        """The rows of this process."""
        return slice(self.start, self.start + self.sizes[self.rank])

    @property
    def fits_all(self) -> bool:
        """Whether every process has enough rows for a batch norm of its own."""
        return min(self.sizes) > 1

    @property
    def total(self) -> int:
        """Rows of all processes."""
        return sum(self.sizes)


def share_out(blocks: Sequence[int], processes: int, rank: int) -> Share:
    """The share of one of several processes in rows that come in blocks of these sizes, which stay whole."""
    sizes = [0] * processes
    for number, block in enumerate(blocks):
        sizes[number * processes // len(blocks)] += block
    return Share(tuple(sizes), rank)


def share_of(blocks: Sequence[int]) -> Share:
    """The share of this process in rows that come in blocks of these sizes."""
    return share_out(blocks, count(), rank())


def summed(values: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same in each of them; without a gradient."""
    if count() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total, group=_group_for(total))
    return total


def joined(values: Tensor, share: Share) -> Tensor:
    """The rows of all processes in order, from the rows of each; without a gradient."""
    if len(share.sizes) == 1:
        return values
    padded = values.new_zeros(max(share.sizes), *values.shape[1:])  # what is gathered must be of one length
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in share.sizes]
    dist.all_gather(parts, padded, group=_group_for(values))
    return torch.cat([part[:size] for part, size in zip(parts, share.sizes, strict=True)])


def at_first(values: Tensor, share: Share) -> Tensor:
    """The rows of all processes in order in the first one, and none in the others."""
    padded = values.new_zeros(max(share.sizes), *values.shape[1:])
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in share.sizes] if is_first() else None
    dist.gather(padded, parts, group=_group_for(values))
    return torch.cat([part[:size] for part, size in zip(parts, share.sizes, strict=True)]) if parts else values[:0]


def gathered(values: Tensor, share: Share) -> Tensor:
    """The rows of all processes in order, with a gradient, for losses that every process computes over all of them.

    Gradients of parameters are averaged over the processes afterwards, as `DistributedDataParallel` does.
    """
    rows: Tensor = _Gathered.apply(values, share)  # type: ignore[no-untyped-call]
    return rows


class _Gathered(torch.autograd.Function):
    """All rows forward; backward those of this process.

    All processes compute the same loss, so that each has the gradient of every row already. It counts as often as there
    are processes, since the mean over them follows: parameters before this get the sum of what every process's rows
    contribute, and parameters behind it the mean of equal gradients.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, share: Share) -> Tensor:
        ctx.share = share
        return joined(values, share)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.share.rows] * len(ctx.share.sizes), None


def summed_with_gradient(values: Tensor) -> Tensor:
    """The sum of a tensor over all processes, with a gradient; all of them must go backward through it."""
    total: Tensor = _Summed.apply(values)  # type: ignore[no-untyped-call]
    return total


class _Summed(torch.autograd.Function):
    """Every process's values count in what each of them computes, so that gradients are added up alike."""

    @staticmethod
    def forward(_ctx: Any, values: Tensor) -> Tensor:
        return summed(values)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return summed(gradients[0])


def largest(number: int) -> int:
    """The largest of the numbers that the processes have; also the moment at which they wait for each other."""
    if count() == 1:
        return number
    value = torch.tensor(number)
    dist.all_reduce(value, dist.ReduceOp.MAX, group=_control())
    return int(value)


def from_first(value: T) -> T:
    """What the first process has, in all of them: plain values, as JSON has them."""
    if count() == 1:
        return value
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = torch.tensor(len(text))
    dist.broadcast(size, src=0, group=_control())
    text = text if is_first() else text.new_empty(int(size))
    dist.broadcast(text, src=0, group=_control())
    received: T = json.loads(text.numpy().tobytes())
    return value if is_first() else received


def values_of_first(tensor: Tensor) -> Tensor:
    """The values that a tensor of the same shape and kind has in the first process, in all of them."""
    if count() == 1:
        return tensor
    values = tensor.byte() if tensor.dtype == torch.bool else tensor.clone()
    dist.broadcast(values, src=0, group=_control())
    return values.to(tensor.dtype)


def by_first(work: Callable[[], T]) -> T:
    """What some work of the first process gives, a plain value, in all; where it raises a `UserError`, all do."""
    if count() == 1:
        return work()
    value: T | None = None
    error: UserError | None = None
    if is_first():
        try:
            value = work()
        except UserError as raised:
            error = raised
    reason, given = from_first((None if error is None else str(error), value))
    if reason is not None:
        raise error or UserError(reason)
    return given  # type: ignore[return-value]


def _group_for(values: Tensor) -> "dist.ProcessGroup | None":
    """The connection that carries tensors of this device."""
    return _control() if values.device.type == "cpu" else None


def _control() -> "dist.ProcessGroup | None":
    """The connection for tensors in main memory: the only one, but where GPUs have their own."""
    return None if dist.get_backend() == "gloo" else _gloo(os.environ.get("TORCHELASTIC_RUN_ID", ""))


@functools.cache
def _gloo(_run: str) -> "dist.ProcessGroup":
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group
