"""Checkpoints: the state of a training as plain tensors and JSON; loading one never runs code.

Format: a safetensors file with the tensors `method.*`, `optimizer.*`, `clusters.*`, `previous.*`, `scored.*` and
`kept.*` (the best round so far), and in its metadata the counters and the history as JSON and a SHA-256 of everything.
"""

import json
import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.optim import Optimizer

from candapt import processes
from candapt.clustering import Clusters
from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.storage.files import digest, read_tensors, tensors_below, write_tensors
from candapt.storage.interruption import Interruption
from candapt.training.callbacks import Callback
from candapt.training.state import BestRound, Record, RoundProgress

if TYPE_CHECKING:
    from candapt.training.loop import Training

log = logging.getLogger(__name__)

RETAINED = 2  # number of good checkpoints that stay on disk, the latest ones
MINUTES = 10.0  # default time between two checkpoints within a round
_CLUSTER_FIELDS = ("labels", "distances", "centers", "kept")


class DamagedError(ValueError):
    """A checkpoint that does not hold what was written; the message is the reason."""


class Checkpoints(Callback):
    """Writes the checkpoints of one run, removes old ones, and restores a training from the latest good one."""

    every_round = True  # write one after each round too, however short it was

    def __init__(self, folder: Path, *, minutes: float = MINUTES, interruption: Interruption | None = None) -> None:
        """Manage a folder; `minutes` pass between two checkpoints within a round (0: one after every step)."""
        self.folder, self.minutes = folder, minutes
        self.interruption = interruption or Interruption()
        self.good: list[Path] = []
        self.seconds_before = 0.0  # time that earlier processes spent on what was restored
        self._started = self._written = time.monotonic()

    def restore(self, training: "Training") -> None:
        """Restore a training from the latest good checkpoint; a `UserError` if there are some but none is good."""
        paths = checkpoints(self.folder)
        while paths:
            try:
                self.seconds_before = restore_checkpoint(training, paths[-1])
            except DamagedError as error:
                log.warning("The checkpoint %s is damaged (%s); using the one before.", paths.pop(), error)
                continue
            self.good, done = paths, (training.state.round, training.state.progress.steps)
            log.info("Resuming from %s: %d rounds and %d steps done.", paths[-1].name, *done)
            return
        if checkpoints(self.folder):
            raise UserError(
                f"No checkpoint in {str(self.folder)!r} is whole: remove them to start the run from the beginning."
            )

    def on_step(self, training: "Training", done: int, planned: int) -> None:
        """Write a checkpoint if one is due or the user wants to stop, and then stop."""
        # Processes stop and save together: the largest number wins, in which the signal counts more than the time.
        agreed = processes.largest(2 * (self.interruption.requested or 0) + self.due)
        self.interruption.requested = agreed // 2 or None
        if agreed:
            self.save(training)
        self.interruption.stop_if_requested()
        self.interruption.patient = done < planned  # what follows the last step of a round is quickly repeated

    def on_round(self, training: "Training", record: Record) -> None:
        """Write a checkpoint; the callbacks before this one have stored the round already."""
        if self.every_round or processes.largest(self.due):
            self.save(training)

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last one."""
        return time.monotonic() - self._written >= 60 * self.minutes

    def save(self, training: "Training") -> None:
        """Write a checkpoint, then remove all but the latest good ones; of several processes the first one does."""
        training.settle_statistics()
        if processes.is_first():
            self._write(training)
        self._written = time.monotonic()

    def _write(self, training: "Training") -> None:
        path = save_checkpoint(training, self.folder, seconds=self.seconds_before + time.monotonic() - self._started)
        self.good = [*(other for other in self.good if other != path), path][-RETAINED:]
        for other in set(checkpoints(self.folder)) - set(self.good):
            other.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the latest last."""
    names = [(re.fullmatch(r"round-(\d+)(?:-step-(\d+))?\.safetensors", path.name), path) for path in folder.glob("*")]
    places = [((int(name[1]), int(name[2] or 0)), path) for name, path in names if name]
    return [path for _, path in sorted(places)]


def save_checkpoint(training: "Training", folder: Path, *, seconds: float = 0.0) -> Path:
    """Write the state of the training, unless its weights are no longer finite."""
    state, progress = training.state, training.state.progress
    counters: dict[str, Any] = {
        "round": state.round,
        "iteration": state.iteration,
        "history": state.history,
        "part": {name: value for name, value in vars(progress).items() if name != "previous"},
        "clustering_steps": {},
        "scaler": training.fabric.strategy.precision.state_dict(),
        "seconds": seconds,
    }
    tensors = {f"method.{name}": value for name, value in training.method.state_dict().items()}
    for part, optimizer in training.optimizers.items():
        for index, buffers in optimizer.state_dict()["state"].items():  # by the number of their parameter
            tensors |= {
                f"optimizer.{part}.{index}.{name}": value for name, value in buffers.items() if value is not None
            }
    tensors |= {f"scored.{name}": value for name, value in state.score_memory.items()}
    if state.best is not None:
        tensors |= {f"kept.{name}": value for name, value in state.best.tensors.items()}
        counters["kept"] = {"round": state.best.round, "merit": state.best.merit}
    for name, clusters in (("clusters", state.clusters), ("previous", progress.previous)):
        if clusters is not None:
            tensors |= {f"{name}.{field}": getattr(clusters, field) for field in _CLUSTER_FIELDS}
            counters["clustering_steps"][name] = clusters.steps
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise UserError(f"{name} is no longer finite after iteration {state.iteration}: lower the learning rate.")
    step = f"-step-{progress.steps:06d}" if progress.steps else ""
    path = folder / f"round-{state.round:04d}{step}.safetensors"
    text = json.dumps(counters)
    write_tensors(path, tensors, {"state": text, "sha256": digest(tensors, text)})
    return path


def restore_checkpoint(training: "Training", path: Path) -> float:
    """Restore a training of the same task, method and settings; returns the seconds spent before the checkpoint.

    Raises a `DamagedError` if the file does not hold what was written, a `UserError` if it is of another training.
    """
    tensors, counters = read_checkpoint(path)
    try:
        _load(training, tensors, counters)
        return float(counters["seconds"])
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"The checkpoint {str(path)!r} does not fit this task and these settings ({reason}).") from None


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and counters of a checkpoint, after its checksum has been verified."""
    try:
        mapped, metadata = read_tensors(path)
        tensors = {name: value.clone() for name, value in mapped.items()}  # independent of the file
        text, expected = metadata["state"], metadata["sha256"]
        counters: dict[str, Any] = json.loads(text)
    except (OSError, SafetensorError, LookupError, ValueError, RuntimeError) as error:
        raise DamagedError(" ".join(str(error).split())[:100]) from None
    if digest(tensors, text) != expected:
        raise DamagedError("its checksum does not match")
    return tensors, counters


def _load(training: "Training", tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
    """Check that everything fits, then load it."""
    own = training.method.state_dict()
    _check_alike(own, tensors_below("method.", tensors))
    buffers = {
        name: _optimizer_state(optimizer, tensors_below(f"optimizer.{name}.", tensors))
        for name, optimizer in training.optimizers.items()
    }
    task, features = training.task, training.method.network.num_features
    groups = {name: _clusters(name, tensors, counters) for name in ("clusters", "previous")}
    for clusters in groups.values():
        if clusters is not None and (
            any(getattr(clusters, field).shape != (task.target.size,) for field in ("labels", "distances", "kept"))
            or clusters.centers.shape != (task.num_classes, features)
            or not 0 <= int(clusters.labels.min()) <= int(clusters.labels.max()) < task.num_classes
        ):
            raise ValueError("its clusters are of other data")
    memory = tensors_below("scored.", tensors)
    _check_neighbors(memory.get("first_neighbors"), len(training.scorer.rows[Side.TARGET]))
    _check_counters(counters)
    if "kept" in counters:
        _check_alike(own, tensors_below("kept.", tensors))

    training.method.load_state_dict(tensors_below("method.", tensors))
    for name, optimizer in training.optimizers.items():
        optimizer.load_state_dict({**optimizer.state_dict(), "state": buffers[name]})
    training.fabric.strategy.precision.load_state_dict(counters["scaler"])
    state = training.state
    state.round, state.iteration, state.history = counters["round"], counters["iteration"], counters["history"]
    state.score_memory = memory
    kept = counters.get("kept")
    state.best = BestRound(**kept, tensors=tensors_below("kept.", tensors)) if kept else None
    state.clusters = groups["clusters"]
    state.progress = RoundProgress(**counters["part"], previous=groups["previous"])


def _check_counters(counters: dict[str, Any]) -> None:
    """Raise a `ValueError` for counters of other types, which would fail too late; anyone can compute a checksum."""
    part, history = counters["part"], counters["history"]
    counts = [counters["round"], counters["iteration"], part["steps"], part["skipped"], *part["counts"].values()]
    if not all(type(count) is int and count >= 0 for count in (*counts, *counters["clustering_steps"].values())):
        raise ValueError("it counts in other than whole numbers")
    values = [*part["sums"].values(), part["seconds"], *(value for record in history for value in record.values())]
    if not all(isinstance(value, int | float | None) for value in values):
        raise ValueError("its history holds other than numbers")
    if len(history) != counters["round"] or part["sums"].keys() != part["counts"].keys():
        raise ValueError("its history is not that of its rounds")
    kept = counters.get("kept", {"round": -1, "merit": 0.0})
    if type(kept["round"]) is not int or kept["round"] >= len(history) or not isinstance(kept["merit"], int | float):
        raise ValueError("the round it keeps is none of its rounds")


def _check_alike(own: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Raise a `ValueError` for tensors of other names, shapes or types; loading would silently convert types."""
    for name in sorted(own.keys() | saved.keys()):
        there, here = (_describe(group.get(name)) for group in (saved, own))
        if there != here:
            raise ValueError(f"method.{name} is {there} there and {here} here")


def _check_neighbors(rows: Tensor | None, size: int) -> None:
    """Raise a `ValueError` for neighbors of another number of samples."""
    if rows is None:
        return
    fits = rows.dtype == torch.int64 and rows.ndim == 2 and len(rows) == size and rows.numel() > 0
    if not fits or not 0 <= int(rows.min()) <= int(rows.max()) < size:
        raise ValueError("its neighbors are of other data")


def _optimizer_state(optimizer: Optimizer, buffers: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """`3.momentum_buffer` → {3: {momentum_buffer: …}}, the form that optimizers load.

    Raises a `ValueError` for buffers of other shapes than the parameters, which the optimizer would accept.
    """
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = ("momentum_buffer",) if "momentum" in optimizer.defaults else ("exp_avg", "exp_avg_sq", "step")
    for key, value in buffers.items():
        index, name = key.split(".", 1)
        expected = _describe(torch.tensor(0.0) if name == "step" else parameters[int(index)])
        if name not in kept or expected != _describe(value):
            raise ValueError(f"the optimizer's {key} is {_describe(value)}")
        state.setdefault(int(index), {})[name] = value
    return state


def _describe(tensor: Tensor | None) -> str:
    """Type and shape of a tensor as text."""
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _clusters(name: str, tensors: dict[str, Tensor], counters: dict[str, Any]) -> Clusters | None:
    """The clusters saved under a name, if there were any."""
    fields = tensors_below(f"{name}.", tensors)
    return Clusters(**fields, steps=counters["clustering_steps"][name]) if fields else None
