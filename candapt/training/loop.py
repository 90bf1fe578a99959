"""The only training loop: round → batches → phases → step. It never asks which method it runs."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from candapt.clustering import label_change
from candapt.data.domains import Domain, Side, Task, part_of
from candapt.errors import DivergedError, UserError
from candapt.evaluation.predict import outputs_of, refresh_statistics, through_layers
from candapt.evaluation.selection import LAST, Choice, merit, value_of
from candapt.interruption import ignore_signals
from candapt.methods.base import Batch, BatchPart, Draw, Losses, Method, Phase, Round
from candapt.network.network import Outputs
from candapt.randomness import derive_seed, seed_draws
from candapt.settings import Settings
from candapt.training.numbers import NonFiniteError, check_gradients, check_losses, describe_samples, undo_buffers
from candapt.training.optimizers import build_optimizers, start_momentum
from candapt.training.schedules import learning_rate_factor
from candapt.training.scoring import Scorer, hold_out
from candapt.training.state import Kept, Record, State
from candapt.training.stopping import cluster_facts, settled

__all__ = ["Record", "State", "Training"]

log = logging.getLogger(__name__)


class Training:
    """One method on one task. Random draws depend on the seed, the round and the step only."""

    def __init__(self, fabric: Fabric, method: Method, task: Task, settings: Settings) -> None:
        self.fabric = fabric
        self.method = method
        self.task, held_out = hold_out(task, settings.training.held_out, settings.seed)
        self.settings = settings
        self.state = State()
        self.optimizers = build_optimizers(method, settings.training)
        wrapped, *optimizers = _as_list(fabric.setup(method, *self.optimizers.values()))
        self.step_module: nn.Module = wrapped
        self.optimizers = dict(zip(self.optimizers, optimizers, strict=True))
        start_momentum(self.optimizers.values())
        self._embedded: dict[Side, Outputs] = {}
        self._features: dict[Side, Domain] = {}
        self._statistics_are_fresh = False
        self.is_over = False
        self.scorer = Scorer(self, held_out)

    def run(self, on_step: Callable[[int, int], None], on_round: Callable[["Training", Record], None]) -> None:
        """Train until the last round, or until labels and centers have settled.

        Args:
            on_step: called after each step with the number of steps done and planned in this round.
            on_round: called after each round with what was logged.
        """
        with torch.random.fork_rng():
            while self.state.round < self.settings.rounds and not self.settled:
                record = self.one_round(on_step)
                self.keep_if_best(record)
                self.state.end_round(record)
                on_round(self, record)
        self.is_over = True
        if self.settings.training.precision != "32-true":
            self.forget()  # what is used from here on is single precision, as whoever uses the model will compute

    def keep_if_best(self, record: Record) -> None:
        """Copy the method's state after a round that no earlier one beats."""
        value, kept = merit(record, self.settings.select), self.state.kept
        if self.settings.select == LAST or value is None or (kept is not None and value < kept.merit):
            return
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.method.state_dict().items()}
        self.state.kept = Kept(self.state.round, value, tensors)

    def return_to_best(self) -> Choice:
        """Put the method where it was after the round that the score selects; tell what the last one would be."""
        select, last, kept = self.settings.select, self.state.history[-1], self.state.kept
        chosen, differing = last, 0.0
        if kept is not None and kept.round != last["round"]:
            chosen, before = self.state.history[kept.round], self.embed(Side.TARGET).logits.argmax(1)
            self.method.load_state_dict(kept.tensors)
            self.forget()
            differing = label_change(before, self.embed(Side.TARGET).logits.argmax(1))
        value, last_value = (value_of(record, select) for record in (chosen, last))
        return Choice(select, int(chosen["round"]), value, int(last["round"]), last_value, differing)

    @property
    def settled(self) -> bool:
        """Whether another round would change nothing."""
        return self.method.settles and settled(self.state.history, self.settings.training.settled)

    def one_round(self, on_step: Callable[[int, int], None]) -> Record:
        """Label the target, lay out the batches and take the steps; of a round that was begun, those that are left."""
        state, part = self.state, self.state.part
        started = time.perf_counter() - part.seconds
        round = self.describe_round()
        if part.steps == 0:
            self.refresh()
            part.previous, state.clusters = state.clusters, self.method.cluster(round)
            if not state.scored:
                self.scorer.remember_start()
        draws = self.method.draws(round, state.clusters)
        for step, batch in enumerate(self.read(draws, round.seed, part.steps), part.steps):
            seed_draws(derive_seed(round.seed, "step", step), self.fabric.device)
            progress = (state.round + step / len(draws)) / self.settings.rounds
            try:
                part.add(self.one_batch(batch, progress))
            except NonFiniteError as error:
                self.skip_or_stop(error, step, draws[step])
            state.iteration += 1
            part.steps, part.seconds = step + 1, time.perf_counter() - started
            on_step(part.steps, len(draws))
        if part.skipped == len(draws):
            raise DivergedError(
                f"Every step of round {state.round + 1} was skipped, since no loss or gradient was finite."
            )
        facts = cluster_facts(state.clusters, part.previous)
        return {
            "round": state.round,
            "iteration": state.iteration,
            **part.means(),
            **facts,
            "warmup": int(self.method.warms_up(round)),
            **self.scorer.scores(facts.get("kept_share")),
            **({"skipped_steps": part.skipped} if part.skipped else {}),
            "seconds": time.perf_counter() - started,
        }

    def describe_round(self) -> Round:
        """What the method may look at in this round."""
        training, index = self.settings.training, self.state.round
        seed = derive_seed(self.settings.seed, "round", index, self.fabric.global_rank)
        return Round(
            index,
            self.settings.rounds,
            self.task,
            seed,
            training.batch_size,
            training.steps,
            self.embed,
            self.state.part.previous if self.state.part.steps else self.state.clusters,
        )

    def embed(self, side: Side) -> Outputs:
        """Outputs over a whole domain by the network as it is now, computed once between two steps."""
        if side not in self._embedded:
            self.refresh()
            with self.number_format(), self.seen_by_head(side) as domain:
                self._embedded[side] = outputs_of(self.method, domain, side, batch_size=self.evaluation_batch)
        return self._embedded[side]

    def features(self, side: Side) -> Domain:
        """A whole domain as the layers below the bottleneck give it now, computed once between two steps."""
        if side not in self._features:
            domain = self.task.domain(side)
            with self.number_format():
                self._features[side] = through_layers(self.method, domain, side, batch_size=self.evaluation_batch)
        return self._features[side]

    @contextmanager
    def seen_by_head(self, side: Side) -> Iterator[Domain]:
        """What the network takes within this context: a whole domain, or features of layers with fixed statistics.

        Of such layers statistics and outputs need the same, so that samples go through them once and not twice.
        """
        if not self.method.network.is_adapted:
            yield self.task.domain(side)
            return
        domain = self.features(side)
        with self.method.network.over_features():
            yield domain

    def forget(self, *, layers: bool = True) -> None:
        """Drop outputs that the network no longer gives; those of its layers stay if only the head is another."""
        self._embedded.clear()
        self._statistics_are_fresh = False
        if layers:
            self._features.clear()

    def look(self, side: Side, rows: Tensor) -> Outputs:
        """Outputs of some samples, shape (len(rows), …); from those of all samples where these are used anyway."""
        domain = self.task.domain(side)
        self.refresh()
        if self.state.clusters is not None or side in self._features or domain.size <= 2 * len(rows):
            return Outputs(*(whole[rows] for whole in self.embed(side)))
        return self.outputs(side, part_of(domain, rows))

    def outputs(self, side: Side, domain: Domain) -> Outputs:
        """Outputs of samples of that side by the network as it is; until the end in the training's number format."""
        self.refresh()
        with self.number_format():
            return outputs_of(self.method, domain, side, batch_size=self.evaluation_batch)

    def refresh(self) -> None:
        """Take batch norm statistics of the whole domains if they are to be used and have changed."""
        if self.whole_domain_statistics and not self._statistics_are_fresh:
            for side in Side:  # both, since a method may look at one domain with the statistics of the other
                with self.number_format(), self.seen_by_head(side) as domain:
                    refresh_statistics(self.method, domain, side, batch_size=self.evaluation_batch)
            self._statistics_are_fresh = True

    @property
    def evaluation_batch(self) -> int:
        """Samples that are looked at together."""
        return self.settings.training.evaluation_batch

    def number_format(self) -> AbstractContextManager[None]:
        """What looks are computed in: the training's number format, and single precision after its end."""
        return nullcontext() if self.is_over else self.fabric.autocast()

    @property
    def whole_domain_statistics(self) -> bool:
        """Whether batch norm evaluates with statistics of the whole domain; at first a new one has no others."""
        statistics, network = self.settings.training.statistics, self.method.network
        at_first = self.state.iteration == 0 and not network.is_adapted
        return statistics == "domain" or (bool(network.new_layers) and (statistics == "auto" or at_first))

    def read(self, draws: Sequence[Draw], seed: int, first: int = 0) -> Iterator[Batch]:
        """Read the samples of each step from the first on, ahead and in other processes if so set."""
        steps, workers = _Steps(self.task, draws, seed), self.settings.training.workers
        order = range(first, len(draws))
        loader = DataLoader(
            steps,
            batch_size=None,
            sampler=order,
            num_workers=workers,
            collate_fn=_unchanged,
            worker_init_fn=ignore_signals,
        )
        batches = self.fabric.setup_dataloaders(loader, use_distributed_sampler=False)
        for batch in cast(Iterable[Batch | UserError], batches):
            if isinstance(batch, UserError):
                raise batch
            yield batch

    def one_batch(self, batch: Batch, progress: float) -> dict[str, float]:
        """All phases on one batch; returns the losses and the learning rate."""
        self.forget()
        factor = learning_rate_factor(
            self.settings.training.schedule,
            progress=progress,
            iteration=self.state.iteration,
            slope=self.settings.training.slope,
            power=self.settings.training.power,
        )
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        self.step_module.train()
        # What rises in the course of a training has risen where the head has learned before.
        progress = 1.0 if self.method.network.is_adapted else progress
        values: dict[str, float] = {}
        for phase in self.method.phases:
            for _ in range(phase.repeats):
                values.update(self.one_phase(batch, phase, progress))
        return {**values, "learning_rate": self.settings.training.learning_rate * factor}

    def one_phase(self, batch: Batch, phase: Phase, progress: float) -> dict[str, float]:
        """One optimizer step on the parts that the phase updates."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        skips = self.settings.training.on_nonfinite == "skip"
        with undo_buffers(self.method) if skips else nullcontext():
            losses: Losses = self.step_module(batch, phase, progress)
            check_losses(losses)
            self.fabric.backward(torch.stack(list(losses.values())).sum())
            if not self.scales_gradients:
                check_gradients(self.method, phase)
        for part in phase.updates:
            self.optimizers[part].step()
        self.method.after_step()
        return {name: float(loss.detach()) for name, loss in losses.items()}

    @property
    def scales_gradients(self) -> bool:
        """Whether gradients are scaled to fit half precision: then the scaler itself leaves out those that do not."""
        return getattr(self.fabric.strategy.precision, "scaler", None) is not None

    def skip_or_stop(self, error: NonFiniteError, step: int, draw: Draw) -> None:
        """Say where the numbers went wrong, and go on only if so set."""
        place = f"In round {self.state.round + 1}, step {step + 1} {error}; the batch holds "
        place += describe_samples(self.task, draw)
        if self.settings.training.on_nonfinite == "stop":
            raise DivergedError(
                f"{place}: lower --training.learning_rate, look for extreme values there, or give --on-nonfinite skip."
            ) from None
        self.state.part.skipped += 1
        log.warning("%s: this step is skipped.", place)


class _Steps(Dataset[Batch | UserError]):
    """The steps of a round as a data set, so that workers can read whole batches ahead.

    What the user can put right is handed over and not raised: the loader would bury it in another process's traceback.
    """

    def __init__(self, task: Task, draws: Sequence[Draw], seed: int) -> None:
        self.task, self.draws, self.seed = task, draws, seed

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, step: int) -> Batch | UserError:
        try:
            return {
                name: BatchPart(self.read(part.side, part.indices, step, name), part.labels)
                for name, part in self.draws[step].items()
            }
        except UserError as error:  # such as a file that vanished; raised in a worker it would come with a traceback
            return UserError(str(error))

    def read(self, side: Side, indices: Tensor, step: int, name: str) -> Tensor:
        """Training views that depend on the step and the part's name alone."""
        return self.task.domain(side).samples.read(indices, seed=derive_seed(self.seed, "views", step, name))


def _unchanged(batch: Any) -> Any:
    return batch


def _as_list(setup: Any) -> list[Any]:
    return list(setup) if isinstance(setup, tuple) else [setup]
