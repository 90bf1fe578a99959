"""A map of both domains before and after adaptation: t-SNE of some samples of each, stored in `embedding.npz`."""

import copy
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from candapt import processes
from candapt.adaptation import Result
from candapt.data.domains import Domain, Side, part_of
from candapt.data.features import read_arrays
from candapt.errors import UserError
from candapt.methods.base import Method
from candapt.randomness import generator
from candapt.storage.files import write_atomically
from candapt.storage.safe_reading import contained
from candapt.training.callbacks import Callback
from candapt.training.loop import Training
from candapt.training.outputs import outputs_of, refresh_statistics

log = logging.getLogger(__name__)

FILE = "embedding.npz"
COMPONENTS = 50  # number of principal components that t-SNE starts from
ITERATIONS = 500

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class DomainMap:
    """Places of some samples of both domains in the plane; every array has one entry per sample."""

    side: Array  # 0 for the source, 1 for the target
    index: Array  # row of the sample in its domain
    label: Array  # class of a source sample; -1 for a target sample, which has none
    name: Array  # name of the sample, as in `predictions.csv`
    before: Array  # place by the network before the first step, shape (n, 2)
    after: Array  # place by the adapted network, shape (n, 2); empty until there is one

    def rows(self, side: Side) -> Tensor:
        """Rows of the domain's samples that are on the map."""
        return torch.as_tensor(self.index[self.side == int(side)].astype(np.int64))

    def write(self, folder: Path) -> None:
        """Write the arrays to the run folder."""
        with write_atomically(folder / FILE) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **vars(self))


def read_map(folder: Path) -> DomainMap | None:
    """The map of a run folder; None without one. Raises a `UserError` for a file that is no map."""
    if not (folder / FILE).exists():
        return None
    arrays = read_arrays(contained(folder, FILE), *DomainMap.__dataclass_fields__)
    if arrays.keys() != DomainMap.__dataclass_fields__.keys() or len(arrays["before"]) != len(arrays["side"]):
        raise UserError(f"{str(folder / FILE)!r} is not a map that `candapt adapt` made: remove it to go without.")
    return DomainMap(**arrays)


def map_before(training: Training, points: int) -> DomainMap:
    """A map of at most `points` samples of each domain before the first step; the training is left as it was."""
    task, seed, method = training.task, training.settings.seed, training.method
    draws = {side: torch.randperm(task.domain(side).size, generator=generator(seed, "map", side.name)) for side in Side}
    rows = {side: draw[:points].sort().values for side, draw in draws.items()}
    batch, whole = training.settings.training.evaluation_batch, training.outputs.uses_whole_domains
    if whole or processes.count() > 1:  # of several processes only the first maps
        method = copy.deepcopy(method)
        for side in Side if whole else ():  # an evaluation pass would change them, so a copy is used
            refresh_statistics(method, task.domain(side), side, batch_size=batch)
        features = [features_of(method, task.domain(side), side, rows[side], batch) for side in Side]
    else:
        features = [training.outputs.of(side).features[rows[side]] for side in Side]
    unknown = np.full(len(rows[Side.TARGET]), -1)
    return DomainMap(
        side=np.concatenate([np.full(len(rows[side]), int(side), np.uint8) for side in Side]),
        index=torch.cat([rows[side] for side in Side]).numpy().astype(np.int32),
        label=np.concatenate([task.source.labels[rows[Side.SOURCE]], unknown], dtype=np.int32),
        name=np.array([str(task.domain(side).names[row]) for side in Side for row in rows[side].tolist()]),
        before=project(torch.cat(features).numpy()),
        after=np.empty((0, 2), np.float32),
    )


def map_after(before: DomainMap, source: Tensor, target: Tensor) -> DomainMap:
    """The map with places by features of the adapted network, shape (n, d); points start from where they were."""
    return replace(before, after=project(torch.cat([source, target]).numpy(), start=before.before))


@torch.no_grad()
def features_of(method: Method, domain: Domain, side: Side, rows: Tensor, batch_size: int) -> Tensor:
    """Features of some samples of a domain, shape (len(rows), num_features)."""
    return outputs_of(method, part_of(domain, rows), side, batch_size=batch_size).features


def project(features: Array, start: Array | None = None) -> Array:
    """Places in the plane, shape (n, 2), float32, the same for the same features.

    Args:
        features: shape (n, d); only their directions count, as in the clustering.
        start: initial places; by default the first principal components.
    """
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.maximum(lengths, np.finfo(np.float32).tiny)
    if len(unit) < 5 or not np.isfinite(unit).all() or np.ptp(unit, axis=0).max() == 0:  # nothing to project
        return np.zeros((len(unit), 2), np.float32)
    components = PCA(min(COMPONENTS, *unit.shape), svd_solver="randomized", random_state=0).fit_transform(unit)
    start = components[:, :2] if start is None else start
    spread = start.std()
    if start.shape[1] < 2 or spread == 0:
        return np.zeros((len(unit), 2), np.float32)
    initial, perplexity = (start / spread * 1e-4).astype(np.float32), min(30, (len(unit) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init=initial, max_iter=ITERATIONS, random_state=0)
    places: Array = tsne.fit_transform(components)
    return places.astype(np.float32)


class Mapper(Callback):
    """Writes the map of a training to its run folder in two steps, between which the run can be interrupted."""

    def __init__(self, folder: Path, points: int) -> None:
        self.folder, self.points = folder, points
        self.training: Training | None = None

    def on_start(self, training: Training) -> None:
        """Map the domains before the first step; a resumed run has that map already."""
        self.training = training
        if training.state.iteration == 0 and not (self.folder / FILE).exists():
            log.info("Mapping both domains before adaptation.")
            map_before(training, self.points).write(self.folder)

    def finish(self, result: Result) -> None:
        """Map the same samples by the adapted network."""
        before = read_map(self.folder)
        if before is None or self.training is None:
            return
        log.info("Mapping both domains after adaptation.")
        source = self.training.task.source  # without held-out samples, as the map's rows count
        rows, model = before.rows(Side.SOURCE), result.model
        features = features_of(model.method, source, Side.SOURCE, rows, model.batch_size)
        known, chosen = result.predictions.features, before.rows(Side.TARGET)
        others = result.prepared.target
        target = (
            known[chosen] if len(known) else features_of(model.method, others, Side.TARGET, chosen, model.batch_size)
        )
        map_after(before, features, target).write(self.folder)
