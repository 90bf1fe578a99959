"""The device of a training, and reading the samples of each step onto it."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import DataLoader, Dataset

from candapt.data.domains import Side, Task, norm_of
from candapt.errors import UserError
from candapt.methods.base import Batch, BatchPart, Draw, Part
from candapt.randomness import derive_seed
from candapt.settings import TrainingSettings
from candapt.storage.interruption import ignore_signals

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def read_batches(
    fabric: "Fabric", task: Task, draws: Sequence[Draw], seed: int, first: int = 0, workers: int = 0
) -> Iterator[Batch]:
    """The batches of a round from the first step on, on the device; with workers, other processes read them ahead.

    Views depend on the seed of the round, the step and the part's name alone.
    """
    steps, order = _Steps(task, draws, seed), range(first, len(draws))
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

    def __init__(self, task: Task, draws: Sequence[Draw], seed: int) -> None:
        self.task, self.draws, self.seed = task, draws, seed

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, step: int) -> Batch | UserError:
        try:
            return {name: self._read(part, step, name) for name, part in self.draws[step].items()}
        except UserError as error:
            return UserError(str(error))

    def _read(self, part: Part, step: int, name: str) -> BatchPart:
        seed = derive_seed(self.seed, "views", step, name)
        return BatchPart(
            self.task.domain(part.side).samples.read(part.indices, seed=seed), part.labels, self._norm(part)
        )

    def _norm(self, part: Part) -> int:
        """The batch norm of a part, all of which comes from one domain."""
        origins = self.task.source.origins
        several = part.side == Side.SOURCE and origins is not None
        return norm_of(part.side, int(origins[part.indices[0]]) if several and origins is not None else 0)


def _unchanged(batch: Any) -> Any:
    return batch


def make_fabric(training: TrainingSettings) -> "Fabric":
    """A Fabric for these settings; a `UserError` if this machine lacks the device or the number format.

    A precision that is still `auto`, since nothing is trained yet, is single precision: see `decide_precision`.
    """
    from lightning_fabric import Fabric  # takes a second to import, and `--help` needs none

    precision = "32-true" if training.precision == "auto" else training.precision
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fp16 is not supported on CPU")  # an error below
            fabric = Fabric(accelerator=training.accelerator, devices=1, precision=precision)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"training.accelerator is {training.accelerator!r}, which this machine does not have: use auto or cpu."
        ) from error
    if precision == "16-mixed" and fabric.device.type == "cpu":
        raise UserError("training.precision is '16-mixed', which needs a GPU: use bf16-mixed or 32-true.")
    return fabric
