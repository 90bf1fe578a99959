"""Checkpoints: where a training stands, as plain tensors and JSON; no code is ever loaded from one."""

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

from candapt.clustering import Clusters
from candapt.errors import UserError
from candapt.files import digest, read_tensors, tensors_below, write_tensors
from candapt.interruption import Interruption
from candapt.training.state import Kept, PartOfRound

if TYPE_CHECKING:
    from candapt.training.loop import Training

log = logging.getLogger(__name__)

KEPT = 2
"""Newest good checkpoints that stay on disk."""
MINUTES = 10.0
"""How often a checkpoint is written within a round, unless the user says otherwise."""
_CLUSTER_FIELDS = ("labels", "distances", "centers", "kept")


class DamagedError(ValueError):
    """A checkpoint whose content is not what was written; the message is the reason."""


class Checkpoints:
    """The checkpoints of one run: when they are written, which ones stay, and the way back into a training."""

    def __init__(
        self,
        folder: Path,
        *,
        minutes: float = MINUTES,
        every_round: bool = True,
        interruption: Interruption | None = None,
    ) -> None:
        """Look after a folder.

        Args:
            folder: where checkpoints are.
            minutes: time between two of them within a round; with 0 there is one after every step.
            every_round: write one after each round too, however short it was.
            interruption: how the user's wish to stop comes in, which is then followed after a checkpoint.
        """
        self.folder = folder
        self.minutes, self.every_round = minutes, every_round
        self.interruption = interruption or Interruption()
        self.good: list[Path] = []
        self.seconds_before = 0.0
        """Time that earlier processes have spent on what was restored."""
        self._started = self._written = time.monotonic()

    def restore(self, training: "Training") -> None:
        """Put a training of the same task, method and settings where the newest good checkpoint was written.

        Without any checkpoint it starts at the beginning. If there are some but none is whole, the user decides.
        """
        paths = checkpoints(self.folder)
        while paths:
            try:
                self.seconds_before = restore_checkpoint(training, paths[-1])
            except DamagedError as error:
                log.warning("The checkpoint %s is damaged (%s); taking the one before.", paths.pop(), error)
                continue
            self.good, state = paths, training.state
            log.info("Going on from %s: %d rounds and %d steps done.", paths[-1].name, state.round, state.part.steps)
            return
        if checkpoints(self.folder):
            raise UserError(
                f"No checkpoint in {str(self.folder)!r} is whole: remove them to start the run from the beginning."
            )

    def after_step(self, training: "Training", *, last: bool) -> None:
        """Write a checkpoint if it is time for one, or if the user wants to stop, which then happens."""
        if self.interruption.wanted is not None or self.due:
            self.save(training)
        self.interruption.leave_if_wanted()
        self.interruption.patient = not last  # what comes after the last step of a round is made again quickly

    def after_round(self, training: "Training") -> None:
        """Write a checkpoint, unless only time counts."""
        if self.every_round or self.due:
            self.save(training)

    @property
    def due(self) -> bool:
        """Whether it is time for one."""
        return time.monotonic() - self._written >= 60 * self.minutes

    def save(self, training: "Training") -> None:
        """Write a checkpoint, then remove all but the newest good ones."""
        path = save_checkpoint(training, self.folder, seconds=self.seconds_before + time.monotonic() - self._started)
        self.good = [*(kept for kept in self.good if kept != path), path][-KEPT:]
        for other in set(checkpoints(self.folder)) - set(self.good):
            other.unlink()
        self._written = time.monotonic()


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest last."""
    found = [(re.fullmatch(r"round-(\d+)(?:-step-(\d+))?\.safetensors", path.name), path) for path in folder.glob("*")]
    places = [((int(name[1]), int(name[2] or 0)), path) for name, path in found if name]
    return [path for _, path in sorted(places)]


def save_checkpoint(training: "Training", folder: Path, *, seconds: float = 0.0) -> Path:
    """Write where the training stands, unless its weights are no longer finite."""
    state, part = training.state, training.state.part
    told: dict[str, Any] = {
        "round": state.round,
        "iteration": state.iteration,
        "history": state.history,
        "part": {name: value for name, value in vars(part).items() if name != "previous"},
        "clustering_steps": {},
        "scaler": training.fabric.strategy.precision.state_dict(),
        "seconds": seconds,
    }
    tensors = {f"method.{name}": value for name, value in training.method.state_dict().items()}
    for name, optimizer in training.optimizers.items():
        tensors |= {f"optimizer.{name}.{key}": value for key, value in _buffers_of(optimizer).items()}
    tensors |= {f"scored.{name}": value for name, value in state.scored.items()}
    if state.kept is not None:
        tensors |= {f"kept.{name}": value for name, value in state.kept.tensors.items()}
        told["kept"] = {"round": state.kept.round, "merit": state.kept.merit}
    for name, clusters in (("clusters", state.clusters), ("previous", part.previous)):
        if clusters is not None:
            tensors |= {f"{name}.{field}": getattr(clusters, field) for field in _CLUSTER_FIELDS}
            told["clustering_steps"][name] = clusters.steps
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise UserError(f"{name} is no longer finite after iteration {state.iteration}: lower the learning rate.")
    step = f"-step-{part.steps:06d}" if part.steps else ""
    path = folder / f"round-{state.round:04d}{step}.safetensors"
    text = json.dumps(told)
    write_tensors(path, tensors, {"state": text, "sha256": digest(tensors, text)})
    return path


def restore_checkpoint(training: "Training", path: Path) -> float:
    """Put a training of the same task, method and settings where the checkpoint was written.

    Returns:
        The seconds that had been spent when it was written.

    Raises:
        DamagedError: the file does not hold what was written to it.
        UserError: it does, but belongs to another training.
    """
    tensors, told = read_checkpoint(path)
    try:
        _load(training, tensors, told)
        return float(told["seconds"])
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"The checkpoint {str(path)!r} does not fit this task and these settings ({reason}).") from None


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON of a checkpoint, if they are what was written."""
    try:
        mapped, metadata = read_tensors(path)
        tensors = {name: value.clone() for name, value in mapped.items()}  # not to depend on the file any longer
        text, expected = metadata["state"], metadata["sha256"]
        told: dict[str, Any] = json.loads(text)
    except (OSError, SafetensorError, LookupError, ValueError, RuntimeError) as error:
        raise DamagedError(" ".join(str(error).split())[:100]) from None
    if digest(tensors, text) != expected:
        raise DamagedError("its checksum does not match")
    return tensors, told


def _load(training: "Training", tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
    """Check that everything fits, then put it in its place."""
    own = {f"method.{name}": value for name, value in training.method.state_dict().items()}
    saved = {f"method.{name}": value for name, value in tensors_below("method.", tensors).items()}
    _check_alike(own, saved)
    buffers = {name: tensors_below(f"optimizer.{name}.", tensors) for name in training.optimizers}
    for name, optimizer in training.optimizers.items():
        _check_buffers(optimizer, buffers[name])
    task, features = training.task, training.method.network.num_features
    groups = {name: _clusters(name, tensors, told) for name in ("clusters", "previous")}
    for clusters in groups.values():
        if clusters is not None and (
            any(getattr(clusters, field).shape != (task.target.size,) for field in ("labels", "distances", "kept"))
            or clusters.centers.shape != (task.num_classes, features)
            or not 0 <= int(clusters.labels.min()) <= int(clusters.labels.max()) < task.num_classes
        ):
            raise ValueError("its clusters are of other data")
    scored = tensors_below("scored.", tensors)
    _check_neighbors(scored.get("first_neighbors"), training.scorer.target_size)
    _check_told(told)
    if "kept" in told:
        _check_alike(own, {f"method.{name}": value for name, value in tensors_below("kept.", tensors).items()})

    training.method.load_state_dict(tensors_below("method.", tensors))
    for name, optimizer in training.optimizers.items():
        optimizer.load_state_dict({**optimizer.state_dict(), "state": _by_parameter(buffers[name])})
    training.fabric.strategy.precision.load_state_dict(told["scaler"])
    state = training.state
    state.round, state.iteration, state.history = told["round"], told["iteration"], told["history"]
    state.scored = scored
    state.kept = Kept(**told["kept"], tensors=tensors_below("kept.", tensors)) if "kept" in told else None
    state.clusters = groups["clusters"]
    state.part = PartOfRound(**told["part"], previous=groups["previous"])


def _check_told(told: dict[str, Any]) -> None:
    """Refuse numbers that are none, which would be noticed too late; a checksum can be made for any content."""
    part, history = told["part"], told["history"]
    counts = [told["round"], told["iteration"], part["steps"], part["skipped"], *told["clustering_steps"].values()]
    if not all(type(count) is int and count >= 0 for count in [*counts, *part["counts"].values()]):
        raise ValueError("it counts in other than whole numbers")
    values = [*part["sums"].values(), part["seconds"], *(value for record in history for value in record.values())]
    if not all(isinstance(value, int | float | None) for value in values):
        raise ValueError("its history holds other than numbers")
    if len(history) != told["round"] or part["sums"].keys() != part["counts"].keys():
        raise ValueError("its history is not that of its rounds")
    kept = told.get("kept", {"round": -1, "merit": 0.0})
    if type(kept["round"]) is not int or kept["round"] >= len(history) or not isinstance(kept["merit"], int | float):
        raise ValueError("the round it keeps is none of its rounds")


def _check_alike(own: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Refuse tensors of other names, shapes or types; loading by itself would convert types in silence."""
    for name in sorted(own.keys() | saved.keys()):
        there, here = (_describe(group.get(name)) for group in (saved, own))
        if there != here:
            raise ValueError(f"{name} is {there} there and {here} here")


def _check_neighbors(rows: Tensor | None, size: int) -> None:
    """Refuse neighbors that are not those of so many samples."""
    if rows is None:
        return
    if rows.dtype != torch.int64 or rows.ndim != 2 or len(rows) != size or not rows.numel():
        raise ValueError("its neighbors are of other data")
    if not 0 <= int(rows.min()) <= int(rows.max()) < size:
        raise ValueError("its neighbors are of other data")


def _check_buffers(optimizer: Optimizer, buffers: dict[str, Tensor]) -> None:
    """Refuse buffers of other shapes than the parameters, which the optimizer would take."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = ("momentum_buffer",) if "momentum" in optimizer.defaults else ("exp_avg", "exp_avg_sq", "step")
    for key, value in buffers.items():
        index, name = key.split(".", 1)
        expected = _describe(torch.tensor(0.0) if name == "step" else parameters[int(index)])
        if name not in kept or expected != _describe(value):
            raise ValueError(f"the optimizer's {key} is {_describe(value)}")


def _describe(tensor: Tensor | None) -> str:
    """Type and shape of a tensor in words."""
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _clusters(name: str, tensors: dict[str, Tensor], told: dict[str, Any]) -> Clusters | None:
    """The clusters saved under a name, if there were any."""
    found = tensors_below(f"{name}.", tensors)
    return Clusters(**found, steps=told["clustering_steps"][name]) if found else None


def _buffers_of(optimizer: Optimizer) -> dict[str, Tensor]:
    """What an optimizer keeps of each parameter, by the parameter's number: `3.momentum_buffer`."""
    states = optimizer.state_dict()["state"].items()
    return {f"{index}.{name}": value for index, kept in states for name, value in kept.items() if value is not None}


def _by_parameter(buffers: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """`3.momentum_buffer` → {3: {momentum_buffer: …}}, the form that optimizers load."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in buffers.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state
