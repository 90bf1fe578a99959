"""Checkpoints: where a training stands, as plain tensors and JSON; no code is ever loaded from one."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from candapt.clustering import Clusters
from candapt.files import read_tensors, tensors_below, write_atomically
from candapt.training.loop import Kept, Training

KEPT = 2
"""Newest checkpoints that stay on disk."""
_CLUSTER_FIELDS = ("labels", "distances", "centers", "kept")


def save_checkpoint(training: Training, folder: Path) -> Path:
    """Write the state after a round, and remove all but the newest checkpoints."""
    state = training.state
    told: dict[str, Any] = {"round": state.round, "iteration": state.iteration, "history": state.history}
    tensors = {f"method.{name}": value for name, value in training.method.state_dict().items()}
    for part, optimizer in training.optimizers.items():
        for index, buffers in optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{part}.{index}.{name}": value for name, value in buffers.items() if value is not None
            }
    tensors |= {f"scored.{name}": value for name, value in state.scored.items()}
    if state.kept is not None:
        tensors |= {f"kept.{name}": value for name, value in state.kept.tensors.items()}
        told["kept"] = {"round": state.kept.round, "merit": state.kept.merit}
    if state.clusters is not None:
        tensors |= {f"clusters.{name}": getattr(state.clusters, name) for name in _CLUSTER_FIELDS}
        told["clustering_steps"] = state.clusters.steps
    path = folder / f"round-{state.round:04d}.safetensors"
    with write_atomically(path) as part_path:
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(plain, part_path, metadata={"state": json.dumps(told)})
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest last."""
    return sorted(folder.glob("round-*.safetensors"))


def restore_checkpoint(training: Training, path: Path) -> None:
    """Put a training of the same task, method and settings where the checkpoint was written."""
    tensors, metadata = read_tensors(path)
    told = json.loads(metadata["state"])
    training.method.load_state_dict(tensors_below("method.", tensors))
    for part, optimizer in training.optimizers.items():
        optimizer.load_state_dict(
            {**optimizer.state_dict(), "state": _buffers(tensors_below(f"optimizer.{part}.", tensors))}
        )
    state = training.state
    state.round, state.iteration, state.history = told["round"], told["iteration"], told["history"]
    state.scored = tensors_below("scored.", tensors)
    state.kept = Kept(**told["kept"], tensors=tensors_below("kept.", tensors)) if "kept" in told else None
    clusters = tensors_below("clusters.", tensors)
    state.clusters = Clusters(**clusters, steps=told["clustering_steps"]) if clusters else None


def _buffers(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """`3.momentum_buffer` → {3: {momentum_buffer: …}}, the form that optimizers load."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state
