"""The only training loop: cluster, lay out the batches, step, score, call back. It never asks which method it runs."""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from candapt import processes
from candapt.clustering import label_change
from candapt.data.domains import Side, Task
from candapt.errors import DivergedError
from candapt.evaluation.proportions import Mixture
from candapt.evaluation.scores import Choice, merit, value_of
from candapt.methods.base import Batch, Draw, Losses, Method, Phase, Round
from candapt.methods.known import with_known
from candapt.methods.sources import draws_by_source
from candapt.network.batchnorm import average_statistics, share_batches
from candapt.network.network import Bottleneck, Network
from candapt.network.sharing import share_dropout
from candapt.randomness import derive_seed, seed_draws
from candapt.settings import LAST, Settings
from candapt.training import finiteness
from candapt.training.batches import read_batches
from candapt.training.callbacks import Callback
from candapt.training.finiteness import NonFiniteError, clustering_in, restore_buffers
from candapt.training.mixing import remembered_mixture, revise_mixture
from candapt.training.optimizers import build_optimizers, set_learning_rates, start_momentum
from candapt.training.outputs import DomainOutputs
from candapt.training.scoring import Scorer, cluster_facts, has_settled, hold_out, remembered_view
from candapt.training.state import BestRound, Record, TrainingState

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)


class Training:
    """One method on one task. Random draws depend on the seed, the round and the step only."""

    def __init__(self, fabric: "Fabric", method: Method, task: Task, settings: Settings) -> None:
        self.fabric, self.method, self.settings = fabric, method, settings
        self.task, held_out = hold_out(task, settings.training.held_out, settings.seed)
        method.known_weight = settings.training.known_weight
        self.state = TrainingState()
        self.statistics_differ = False  # whether the processes have batch norm statistics of their own
        self.prepare_method()
        optimizers = build_optimizers(method, settings.training)
        setup = fabric.setup(method, *optimizers.values())  # no tuple for a method without optimizers
        wrapped, *prepared = setup if isinstance(setup, tuple) else (setup,)
        self.step_module: Any = wrapped  # a module of Fabric
        self.optimizers = dict(zip(optimizers, prepared, strict=True))
        start_momentum(self.optimizers.values())
        self.is_over = False
        self.least_progress = 0.0  # weights that rise in the course of a training start from this share of it
        self.outputs = DomainOutputs(self)
        self.scorer = Scorer(self, held_out)

    def prepare_method(self) -> None:
        """Let the method's layers compute as the settings say, for a batch that processes may share."""
        settings, several = self.settings.training, processes.count() > 1
        share_batches(self.method, several and settings.sync_batchnorm)
        if several and settings.global_losses:
            share_dropout(self.method)
        for network in (module for module in self.method.modules() if isinstance(module, Network)):
            if settings.compile and not isinstance(network.backbone, Bottleneck):
                network.backbone.compile()

    def run(self, callbacks: Sequence[Callback] = ()) -> None:
        """Train until the last round, or until labels and centers have settled."""
        with torch.random.fork_rng():
            while self.state.round < self.settings.rounds and not self.settled:
                record = processes.from_first(self.one_round(callbacks))  # what it decides, it decides for all
                self.keep_if_best(record)
                self.state.end_round(record)
                for callback in callbacks:
                    callback.on_round(self, record)
        self.is_over = True
        if self.settings.training.precision in ("bf16-mixed", "16-mixed"):
            self.outputs.forget()  # from here on outputs are in single precision, as those of the saved model will be

    @property
    def settled(self) -> bool:
        """Whether another round would change nothing."""
        return self.method.settles and has_settled(self.state.history, self.settings.training.settled)

    def one_round(self, callbacks: Sequence[Callback] = ()) -> Record:
        """Cluster, lay out the batches, take the steps, score; of a round that was resumed, the steps that are left."""
        state, progress = self.state, self.state.progress
        started = time.perf_counter() - progress.seconds
        round = self.describe_round()
        if progress.steps == 0:
            self.cluster(round)
            round = replace(round, mixture=self.mixture)
        draws = with_known(draws_by_source(self.method, round, state.clusters), round)
        settings = self.settings.training
        how = {"together": settings.global_losses, "normalized_apart": not settings.sync_batchnorm}
        batches = read_batches(self.fabric, self.task, draws, round.seed, progress.steps, settings.workers, **how)
        while group := list(islice(batches, settings.accumulate)):
            self.one_batch(group, draws, progress.steps, round.seed)
            progress.seconds = time.perf_counter() - started
            for callback in callbacks:
                callback.on_step(self, progress.steps, len(draws))
        if progress.skipped == math.ceil(len(draws) / settings.accumulate):
            raise DivergedError(f"Every step of round {state.round + 1} was skipped: no loss or gradient was finite.")
        return {
            "round": state.round,
            "iteration": state.iteration,
            **progress.means(),
            **cluster_facts(state.clusters, progress.previous),
            "warmup": int(self.method.warms_up(round)),
            **self.scorer.scores(),
            **({"skipped_steps": progress.skipped} if progress.skipped else {}),
            "seconds": time.perf_counter() - started,
        }

    def cluster(self, round: Round) -> None:
        """Label the target for this round."""
        state = self.state
        self.outputs.refresh()
        if not state.score_memory:
            self.scorer.remember_view()
            if not self.mixture.is_even:  # then other samples count in batch norm statistics than before
                self.outputs.forget(layers=False)
                self.outputs.refresh()
            self.scorer.remember_start()
            round = replace(round, view=remembered_view(state.score_memory), mixture=self.mixture)
        round = replace(round, mixture=revise_mixture(self, round))
        if self.settings.training.clustering_views == "training":
            round = replace(round, embed=lambda side: self.outputs.of_training_views(side, round.seed))
        with clustering_in(state.round):
            clusters = self.method.cluster(round)
        if clusters is not None and self.task.known is not None:
            clusters = clusters.anchored(self.task.target_labels)
        if clusters is not None:  # processors may round differently, but all must lay out the same batches
            labels, kept = processes.values_of_first(clusters.labels), processes.values_of_first(clusters.kept)
            clusters = replace(clusters, labels=labels, kept=kept)
        state.progress.previous, state.clusters = state.clusters, clusters

    def one_batch(self, batches: Sequence[Batch], draws: Sequence[Draw], step: int, seed: int) -> None:
        """All phases on one batch, or on several whose gradients are averaged, with the learning rate of the step."""
        state, settings = self.state, self.settings.training
        own = () if settings.global_losses or processes.count() == 1 else (processes.rank(),)
        seed_draws(derive_seed(seed, "step", step, *own), self.fabric.device)
        share = (state.round + step / len(draws)) / self.settings.rounds
        self.outputs.forget()
        factor = set_learning_rates(self.optimizers.values(), settings, progress=share, iteration=state.iteration)
        self.step_module.train()
        values: dict[str, float] = {}
        try:
            for phase in self.method.phases:
                for _ in range(phase.repeats):
                    values.update(self.step(batches, phase, max(share, self.least_progress)))
            state.progress.add({**values, "learning_rate": settings.learning_rate * factor})
        except NonFiniteError as error:
            self.skip_or_stop(error, step, draws[step])
        state.iteration += 1
        state.progress.steps = step + len(batches)
        self.statistics_differ = processes.count() > 1 and not settings.sync_batchnorm

    def step(self, batches: Sequence[Batch], phase: Phase, progress: float) -> dict[str, float]:
        """One optimizer step on the parts that the phase updates; returns the losses."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        skips, each = self.settings.training.on_nonfinite == "skip", list[Losses]()
        with restore_buffers(self.method) if skips else nullcontext():
            for number, batch in enumerate(batches, 1):
                waits = number < len(batches) and processes.count() > 1  # gradients are exchanged after the last batch
                with self.fabric.no_backward_sync(self.step_module) if waits else nullcontext():
                    losses: Losses = self.step_module(batch, phase, progress)
                    self.fabric.backward(torch.stack(list(losses.values())).sum() / len(batches))
                each.append(losses)
            for losses in each:
                finiteness.check_losses(losses)
            # A gradient scaler, as half precision needs, itself skips steps whose gradients are not finite.
            if getattr(self.fabric.strategy.precision, "scaler", None) is None:
                finiteness.check_gradients(self.method, phase)
        for part in phase.updates:
            self.optimizers[part].step()
        self.method.after_step()
        names = {name: None for losses in each for name in losses}  # a batch without shared classes has fewer
        return {name: fmean(float(losses[name].detach()) for losses in each if name in losses) for name in names}

    def settle_statistics(self) -> None:
        """Give all processes the same batch norm statistics, where each has its own; all of them must call this."""
        if self.statistics_differ:
            average_statistics(self.method)
            self.statistics_differ = False

    def skip_or_stop(self, error: NonFiniteError, step: int, draw: Draw) -> None:
        """Stop with the place where numbers stopped being finite, or log it and continue, as the settings say."""
        samples = finiteness.describe_samples(self.task, draw)
        place = f"In round {self.state.round + 1}, step {step + 1} {error}; the batch holds {samples}"
        if self.settings.training.on_nonfinite == "stop":
            raise DivergedError(
                f"{place}: lower --training.learning_rate, check these samples for extreme values, or give "
                "--on-nonfinite skip."
            ) from None
        self.state.progress.skipped += 1
        log.warning("%s: this step is skipped.", place)

    def describe_round(self) -> Round:
        """What the method may use in this round."""
        settings, state = self.settings, self.state
        seed = derive_seed(settings.seed, "round", state.round, 0)  # the same in every process
        sizes = settings.training.batch_size, settings.training.steps
        previous = state.progress.previous if state.progress.steps else state.clusters
        view = remembered_view(state.score_memory)
        embed, mixture = self.outputs.of, self.mixture
        return Round(state.round, settings.rounds, self.task, seed, *sizes, embed, previous, view, mixture)

    @property
    def mixture(self) -> Mixture:
        """How much each source class and each target sample counts in this round."""
        return remembered_mixture(self.state.score_memory)

    def keep_if_best(self, record: Record) -> None:
        """Copy the method's state after a round that no earlier one beats."""
        value, best = merit(record, self.settings.select), self.state.best
        if self.settings.select == LAST or value is None or (best is not None and value < best.merit):
            return
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.method.state_dict().items()}
        self.state.best = BestRound(self.state.round, value, tensors)

    def return_to_best(self) -> Choice:
        """Load the method's state of the round that the score selects; describe it beside the last round."""
        select, last, best = self.settings.select, self.state.history[-1], self.state.best
        chosen, differing = last, 0.0
        if best is not None and best.round != last["round"]:
            chosen, before = self.state.history[best.round], self.outputs.of(Side.TARGET).logits.argmax(1)
            self.method.load_state_dict(best.tensors)
            self.outputs.forget()
            differing = label_change(before, self.outputs.of(Side.TARGET).logits.argmax(1))
        value, last_value = (value_of(record, select) for record in (chosen, last))
        return Choice(select, int(chosen["round"]), value, int(last["round"]), last_value, differing)

    def number_format(self) -> AbstractContextManager[None]:
        """A context for evaluation passes: the training's number format, and single precision after its end."""
        return nullcontext() if self.is_over else self.fabric.autocast()
