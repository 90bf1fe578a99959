"""What `benchmarks.peers` runs in the environment of the peers: PART REPETITIONS STEPS OUT."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.class_loop import loop_discrepancy
from candapt.clustering import spherical_kmeans
from candapt.data.torchvision_ops import declare_missing_operators
from candapt.losses import (
    contrastive_domain_discrepancy,
    joint_maximum_mean_discrepancy,
    maximum_mean_discrepancy,
)
from candapt.losses.kernels import Mixture

SIZES = ((10, 3), (6, 10), (31, 3), (31, 10), (100, 3))  # classes in the batch, samples of each class and domain
WIDTH = 2048
SAMPLES = 55_000  # to cluster, about as many as VisDA-2017's target has
CLUSTERINGS = ((12, 2), (345, 3))  # classes and updates of the centers
SHARED = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
Row = dict[str, Any]


def main() -> None:
    torch.set_num_threads(1)
    part, repetitions, steps, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    parts: dict[str, Callable[[], Any]] = {
        "versions": peer_versions,
        "mmd": lambda: compare_mmd(repetitions),
        "cdd": lambda: [compare_cdd(*size, repetitions) for size in SIZES],
        "kmeans": lambda: [compare_kmeans(*each, max(3, repetitions // 5)) for each in CLUSTERINGS],
        "adaptation": lambda: [adapt_with_skada(name, steps) for name in ("MCC", "DANN", "DAN", "DeepCoral", "CAN")],
    }
    out.write_text(json.dumps(parts[part]()), encoding="utf-8")


def peer_versions() -> dict[str, str]:
    """Versions of the libraries compared with."""
    return {name: version(name) for name in ("skada", "pytorch-adapt", "faiss-cpu", "scikit-learn", "POT", "torch")}


def in_turns(sides: dict[str, Callable[[], object]], repetitions: int) -> dict[str, Row]:
    """Median processor time of each side and the median of its ratio to ours, measured in turns."""
    for work in sides.values():
        work()
    turns = [{name: processor_seconds(work) for name, work in sides.items()} for _ in range(repetitions)]
    return {
        name: {
            "seconds": statistics.median(turn[name] for turn in turns),
            "ratio_to_ours": statistics.median(turn[name] / turn["candapt"] for turn in turns),
        }
        for name in sides
    }


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor time that it takes."""
    started = time.process_time()
    work()
    return time.process_time() - started


def trained(loss: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], Tensor]:
    """The loss with its backward pass."""

    def run() -> Tensor:
        for layer in inputs:
            layer.grad = None
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    return run


def compare_mmd(repetitions: int) -> list[Row]:
    """MMD and joint MMD of 128 + 128 samples, with the same bandwidths; skada's kernel has no square in it."""
    declare_missing_operators()
    mmd_loss = import_module("pytorch_adapt.layers").MMDLoss
    dan_loss = import_module("skada.deep.losses").dan_loss
    random, bandwidth, count = torch.Generator().manual_seed(0), 300.0, 128
    layers = [torch.rand(2 * count, width, generator=random) for width in (WIDTH, 31)]
    source, target = ([x[rows].clone().requires_grad_() for x in layers] for rows in (slice(count), slice(count, None)))
    own, inputs = Mixture(bandwidth=bandwidth), [*source, *target]
    scales = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0])
    peer = mmd_loss(kernel_scales=scales, mmd_type="quadratic", bandwidth=bandwidth)
    sigmas = (bandwidth * scales).tolist()

    def plain() -> Tensor:
        return maximum_mean_discrepancy(source[0], target[0], estimator="unbiased", mixtures=own)

    def joint() -> Tensor:
        return joint_maximum_mean_discrepancy(source, target, estimator="unbiased", mixtures=own)

    cases: dict[str, tuple[float, dict[str, Callable[[], Tensor]]]] = {
        "MMD": (5.0, {"candapt": plain, "pytorch-adapt": lambda: peer(source[0], target[0])}),
        "joint MMD": (25.0, {"candapt": joint, "pytorch-adapt": lambda: peer(source, target)}),
    }
    cases["MMD"][1]["skada"] = lambda: dan_loss(source[0], target[0], sigmas=sigmas)
    rows = []
    for name, (factor, losses) in cases.items():
        sides = {side: trained(loss, inputs) for side, loss in losses.items()}
        values = {side: float(work()) for side, work in sides.items()}
        difference = abs(values["candapt"] - factor * values["pytorch-adapt"])  # its kernels are averaged
        figures = in_turns({**sides}, repetitions)
        rows.append({"case": name, "samples": count, "width": WIDTH, "difference": difference, "sides": figures})
    return rows


def compare_cdd(classes: int, samples: int, repetitions: int) -> Row:
    """The discrepancy against a bare product of all features with all, and a loop over pairs of classes."""
    random = torch.Generator().manual_seed(0)
    source, target = (torch.rand(classes * samples, WIDTH, generator=random).requires_grad_() for _ in range(2))
    labels, inputs = torch.arange(classes).repeat_interleave(samples), [source, target]

    def bare() -> Tensor:
        union = torch.cat(inputs)
        return (union @ union.mT).sum()

    losses: dict[str, Callable[[], Tensor]] = {
        "candapt": lambda: contrastive_domain_discrepancy(source, target, labels, labels),
        "bare product": bare,
    }
    if classes * samples <= 60:  # it takes seconds beyond
        losses["loop over classes"] = lambda: loop_discrepancy([source], [target], classes, classes)
    sides = {name: trained(loss, inputs) for name, loss in losses.items()}
    values = {name: float(work()) for name, work in sides.items()}
    figures = in_turns({**sides}, repetitions)
    row = {"classes": classes, "samples": samples, "width": WIDTH, "sides": figures}
    if "loop over classes" in values:
        row["difference"] = abs(values["candapt"] - values["loop over classes"])
    return row | {"ratio_to_bare": 1 / figures["bare product"]["ratio_to_ours"]}


def compare_kmeans(classes: int, updates: int, repetitions: int) -> Row:
    """Spherical k-means of unit vectors with as many updates of the same first centers, and the labels after them."""
    random = torch.Generator().manual_seed(0)
    means = torch.randn(classes, WIDTH, generator=random)
    x = means[torch.arange(SAMPLES) % classes] + 4 * torch.randn(SAMPLES, WIDTH, generator=random)
    x = nn.functional.normalize(x)
    first = nn.functional.normalize(means + 2 * torch.randn(classes, WIDTH, generator=random))
    array, start = x.numpy(), first.numpy()
    labels: dict[str, Tensor] = {}

    def ours() -> None:
        labels["candapt"] = spherical_kmeans(x, first, max_steps=updates, tolerance=0.0).labels

    def faiss() -> None:
        options = {"niter": updates, "spherical": True, "max_points_per_centroid": SAMPLES}
        model = import_module("faiss").Kmeans(WIDTH, classes, **options)
        model.train(array, init_centroids=start)
        labels["faiss"] = torch.from_numpy(model.index.search(array, 1)[1][:, 0])

    def sklearn() -> None:
        options = {"n_init": 1, "max_iter": updates, "algorithm": "lloyd", "tol": 0.0}
        model = import_module("sklearn.cluster").KMeans(classes, init=start, **options)
        labels["scikit-learn"] = torch.from_numpy(model.fit(array).labels_).long()

    import_module("faiss").omp_set_num_threads(1)
    sides: dict[str, Callable[[], object]] = {"candapt": ours, "faiss": faiss, "scikit-learn": sklearn}
    figures = in_turns(sides, repetitions)
    for name, own in labels.items():
        sums = torch.zeros(classes, WIDTH).index_add_(0, own, x)
        figures[name]["objective"] = float(
            sums.norm(dim=1).sum() / SAMPLES
        )  # mean cosine to the best centers of its labels
    return {"samples": SAMPLES, "width": WIDTH, "classes": classes, "updates": updates, "sides": figures}


class Classifier(nn.Module):
    """A bottleneck over features and a linear head, of the sizes that one head of ours has."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 1024, bias=False))
        self.bottleneck = nn.Sequential(nn.BatchNorm1d(1024), nn.ReLU())
        self.head = nn.Linear(1024, 31)

    def forward(self, x: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Logits of features."""
        logits: Tensor = self.head(self.bottleneck(self.features(nn.functional.normalize(x))))
        return logits


def adapt_with_skada(name: str, steps: int) -> Row:
    """A method of skada on amazon → webcam with 30 + 30 samples a step; the labels of the target only measure it."""
    torch.manual_seed(0)
    with np.load(SHARED / "data" / "office31-resnet50-features.npz") as file:
        x, y = file["amazon_x"].astype(np.float32), file["amazon_y"].astype(np.int64)
        other, truth = file["webcam_x"].astype(np.float32), file["webcam_y"].astype(np.int64)
    samples, labels = np.concatenate([x, other]), np.concatenate([y, np.full(len(other), -1)])
    domains = np.concatenate([np.ones(len(x)), -2 * np.ones(len(other))]).astype(int)
    epochs = -(-steps // (len(x) // 30))
    if name == "CAN":  # its loss recomputes all kernels for every pair of classes: a whole adaptation takes hours
        some = np.concatenate([np.arange(0, len(x), 16), len(x) + np.arange(0, len(other), 4)])
        x, samples, labels, domains, epochs = x[::16], samples[some], labels[some], domains[some], 1
    own: Row = {"num_features": 1024} if name == "DANN" else {}
    net = getattr(import_module("skada.deep"), name)(
        Classifier(),
        layer_name="bottleneck",
        max_epochs=epochs,
        batch_size=60,
        optimizer=torch.optim.AdamW,
        optimizer__weight_decay=5e-4,
        lr=1e-3,
        train_split=None,
        verbose=0,
        iterator_train__drop_last=True,
        **own,
    )
    started = time.process_time()
    try:
        net.fit(samples, labels, domains)
    except Exception as error:  # what a peer cannot do is a result too
        return {"method": name, "failed": f"{type(error).__name__}: {str(error)[:200]}"}
    seconds, done = time.process_time() - started, epochs * (len(x) // 30)
    print(name, seconds, done, file=sys.stderr, flush=True)
    row = {"method": name, "steps": done, "seconds": seconds, "seconds_per_step": seconds / done}
    if name == "CAN":
        return row
    predicted = net.predict(other, np.full(len(other), -2), allow_source=True)
    return row | {"oracle_accuracy": float((np.asarray(predicted) == truth).mean())}


if __name__ == "__main__":
    main()
