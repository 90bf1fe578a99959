"""The device of a training, and reading the samples of each step onto it."""

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from candapt import processes
from candapt.data.domains import Side, Task, norm_of, read_rows
from candapt.errors import UserError
from candapt.methods.base import Batch, BatchPart, Draw, Part
from candapt.processes import Share, share_out
from candapt.randomness import derive_seed
from candapt.settings import TrainingSettings
from candapt.storage.interruption import ignore_signals

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def read_batches(
    fabric: "Fabric",
    task: Task,
    draws: Sequence[Draw],
    seed: int,
    first: int = 0,
    workers: int = 0,
    *,
    together: bool = True,
    normalized_apart: bool = False,
) -> Iterator[Batch]:
    """The batches of a round from the first step on, on the device; with workers, other processes read them ahead.

    Views depend on the seed of the round, the step and the part's name alone. Of several processes each reads its share
    of every part; unless they compute losses `together`, it gets a batch of its own. A part too small for shares that
    are `normalized_apart`, each by itself, is read whole by all.
    """
    steps, order = _Steps(task, draws, seed, together, normalized_apart), range(first, len(draws))
    loader = DataLoader(
        steps, None, sampler=order, num_workers=workers, collate_fn=_unchanged, worker_init_fn=ignore_signals
    )
    for batch in cast(Iterable[Batch | UserError], fabric.setup_dataloaders(loader, use_distributed_sampler=False)):
        if isinstance(batch, UserError):
            raise batch
        yield batch


class _Steps(Dataset[Batch | UserError]):
    """The steps of a round as a dataset, so that workers can read whole batches ahead.

    A `UserError`, such as a file that vanished, is returned rather than raised: raised in a worker it would arrive
    inside a traceback.
    """

    def __init__(
        self, task: Task, draws: Sequence[Draw], seed: int, together: bool = True, normalized_apart: bool = False
    ) -> None:
        self.task, self.draws, self.seed, self.together = task, draws, seed, together
        self.any_share_fits = together and not normalized_apart
        self.place = processes.count(), processes.rank()  # processes that read ahead are connected to none

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, step: int) -> Batch | UserError:
        try:
            return {name: self._read(part, step, name) for name, part in self.draws[step].items()}
        except UserError as error:
            return UserError(str(error))

    def _read(self, part: Part, step: int, name: str) -> BatchPart:
        seed, norm = derive_seed(self.seed, "views", step, name), self._norm(part)
        samples, share = self.task.domain(part.side).samples, share_of_part(part, *self.place)
        if share is None or not (self.any_share_fits or share.fits_all):
            return BatchPart(samples.read(part.indices, seed=seed), part.labels, norm)
        own = read_rows(samples, part.indices, share.rows, seed)
        return (
            BatchPart(own, part.labels, norm, share) if self.together else BatchPart(own, part.labels[share.rows], norm)
        )

    def _norm(self, part: Part) -> int:
        """The batch norm of a part, all of which comes from one domain."""
        origins = self.task.source.origins
        several = part.side == Side.SOURCE and origins is not None
        return norm_of(part.side, int(origins[part.indices[0]]) if several and origins is not None else 0)


def share_of_part(part: Part, count: int, rank: int) -> Share | None:
    """What a process reads of a part: as many classes as the others, where samples lie class by class; None: all."""
    if count == 1:
        return None
    labels = part.labels
    begins = torch.ones(len(labels), dtype=torch.bool)
    begins[1:] = (labels[1:] != labels[:-1]) | (labels[1:] < 0)  # samples without a label are shared out one by one
    starts = [*begins.nonzero().flatten().tolist(), len(labels)]
    return share_out([stop - start for start, stop in pairwise(starts)], count, rank)


def _unchanged(batch: Any) -> Any:
    return batch


def make_fabric(training: TrainingSettings) -> "Fabric":
    """A Fabric for these settings; a `UserError` if this machine lacks the device or the number format.

    A precision that is still `auto`, since nothing is trained yet, is single precision: see `decide_precision`. In a
    process that was started with others, this connects it with them, once.
    """
    from lightning_fabric import Fabric  # takes a second to import, and `--help` needs none
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)  # it announces every process
    precision = "32-true" if training.precision == "auto" else training.precision
    others = _others()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fp16 is not supported on CPU")  # an error below
            fabric = Fabric(accelerator=training.accelerator, precision=precision, **(others or {"devices": 1}))
    except MisconfigurationException as error:
        if not others:
            raise
        raise UserError(
            f"{others['devices']} processes were started on this machine, which has fewer GPUs: start at most one for "
            "each of them."
        ) from error
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"training.accelerator is {training.accelerator!r}, which this machine does not have: use auto or cpu."
        ) from error
    if others:
        processes.connect(fabric.device)
        fabric.launch()
    if precision == "16-mixed" and fabric.device.type == "cpu":
        raise UserError("training.precision is '16-mixed', which needs a GPU: use bf16-mixed or 32-true.")
    return fabric


def _others() -> dict[str, Any]:
    """How Fabric connects the processes that `torchrun` has started; nothing for a process alone."""
    total, here = processes.started(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if total == 1:
        return {}
    from lightning_fabric.strategies.ddp import DDPStrategy

    # Its successor `forward_sync_buffers` is too new to rely on.
    warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated")
    # Phases of a method use different layers. Buffers are batch norm statistics, exchanged where they are used.
    strategy = DDPStrategy(find_unused_parameters=True, broadcast_buffers=False)
    return {"devices": here, "num_nodes": total // here, "strategy": strategy}
