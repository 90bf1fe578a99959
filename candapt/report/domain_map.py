"""A map of both domains before and after adaptation: t-SNE of some samples of each, kept in `embedding.npz`."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from candapt.data.domains import Domain, Side
from candapt.data.features import read_arrays
from candapt.errors import UserError
from candapt.evaluation.predict import refresh_statistics
from candapt.files import write_atomically
from candapt.methods.base import Method
from candapt.randomness import generator
from candapt.training.loop import Training
from candapt.untrusted import contained

FILE = "embedding.npz"
COMPONENTS = 50
"""Principal components that t-SNE sees."""
ITERATIONS = 500

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class DomainMap:
    """Where some samples of both domains lie in the plane. Every array has one entry a sample."""

    side: Array
    """0 for the source, 1 for the target."""
    index: Array
    """Row of the sample in its domain."""
    label: Array
    """Class of a source sample; -1 for a target sample, which has none."""
    name: Array
    """What the sample is called, as in `predictions.csv`."""
    before: Array
    """Place by the network before the first step, shape (n, 2)."""
    after: Array
    """Place by the adapted network, shape (n, 2); empty until there is one."""

    def rows(self, side: Side) -> Tensor:
        """Rows of the domain that are on the map."""
        return torch.as_tensor(self.index[self.side == int(side)].astype(np.int64))

    def write(self, folder: Path) -> None:
        """Write the arrays to the run folder."""
        with write_atomically(folder / FILE) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **vars(self))


def read_map(folder: Path) -> DomainMap | None:
    """The map of a run folder, if it has a whole one."""
    if not (folder / FILE).exists():
        return None
    arrays = read_arrays(contained(folder, FILE), *DomainMap.__dataclass_fields__)
    if arrays.keys() != DomainMap.__dataclass_fields__.keys() or len(arrays["before"]) != len(arrays["side"]):
        raise UserError(f"{str(folder / FILE)!r} is not a map that `candapt adapt` made: remove it to go without.")
    return DomainMap(**arrays)


def map_before(training: Training, points: int) -> DomainMap:
    """The map by a network that has not been trained yet; the training goes on as if nobody had looked.

    Args:
        training: before its first step.
        points: samples of each domain, at most.
    """
    task, seed = training.task, training.settings.seed
    rows = {side: _draw(task.domain(side).size, points, seed, side) for side in Side}
    method = training.method
    if training.whole_domain_statistics:  # to look would change them, so a copy is looked at
        method = copy.deepcopy(method)
        for side in Side:
            batch = training.settings.training.evaluation_batch
            refresh_statistics(method, task.domain(side), side, batch_size=batch)
        features = [features_of(method, task.domain(side), side, rows[side], batch) for side in Side]
    else:
        features = [training.embed(side).features[rows[side]] for side in Side]
    return DomainMap(
        side=np.concatenate([np.full(len(rows[side]), int(side), np.uint8) for side in Side]),
        index=torch.cat([rows[side] for side in Side]).numpy().astype(np.int32),
        label=np.concatenate(
            [task.source.labels[rows[Side.SOURCE]], np.full(len(rows[Side.TARGET]), -1)], dtype=np.int32
        ),
        name=np.array([_name(task.domain(side).names, row) for side in Side for row in rows[side].tolist()]),
        before=project(torch.cat(features).numpy()),
        after=np.empty((0, 2), np.float32),
    )


def map_after(found: DomainMap, source: Tensor, target: Tensor) -> DomainMap:
    """The same samples by the adapted network, from features of shape (n, d); points start from where they were."""
    features = torch.cat([source, target]).numpy()
    return replace(found, after=project(features, start=found.before))


@torch.no_grad()
def features_of(method: Method, domain: Domain, side: Side, rows: Tensor, batch_size: int) -> Tensor:
    """Features of some samples of a domain, shape (len(rows), num_features)."""
    method.eval()
    device = next(method.parameters()).device
    parts = [
        method.predict(domain.samples.read(part).to(device), side).features
        for part in rows.tensor_split(-(-len(rows) // batch_size))
    ]
    return torch.cat(parts).cpu()


def project(features: Array, start: Array | None = None) -> Array:
    """Places in the plane, shape (n, 2), float32, the same whenever the features are.

    Args:
        features: shape (n, d); only their directions count, as in the clustering.
        start: places to begin from; by default the first principal components.
    """
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.maximum(lengths, np.finfo(np.float32).tiny)
    if len(unit) < 5 or np.ptp(unit, axis=0).max() == 0:  # nothing to unfold
        return np.zeros((len(unit), 2), np.float32)
    components = PCA(min(COMPONENTS, *unit.shape), svd_solver="randomized", random_state=0).fit_transform(unit)
    start = components[:, :2] if start is None else start
    spread = start.std()
    if start.shape[1] < 2 or spread == 0:
        return np.zeros((len(unit), 2), np.float32)
    tsne = TSNE(
        perplexity=min(30, (len(unit) - 1) / 3),
        init=(start / spread * 1e-4).astype(np.float32),
        max_iter=ITERATIONS,
        random_state=0,
    )
    places: Array = tsne.fit_transform(components)
    return places.astype(np.float32)


def _draw(size: int, points: int, seed: int, side: Side) -> Tensor:
    """Some rows of a domain, in order."""
    return torch.randperm(size, generator=generator(seed, "map", side.name))[:points].sort().values


def _name(names: Sequence[str], row: int) -> str:
    return str(names[row])
