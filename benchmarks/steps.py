"""A training over features beside the bare arithmetic of its steps: `python -m benchmarks.steps`.

amazon → webcam of Office-31 from ResNet-50 features, with one head and with the default recipe. The bare loop has the
same matrix products, forward and backward, and the same updates of the optimizer, as often and nothing else; it runs
before and after the training in the same process. Needs `data/office31-resnet50-features.npz` below `../shared` or the
folder that CANDAPT_SHARED names.
"""

import argparse
import time
from statistics import fmean
from typing import Any

import torch
from torch.optim import AdamW

from benchmarks.cells import domain, unlabeled
from benchmarks.record import record
from candapt.adaptation import adapt
from candapt.data.domains import Task
from candapt.evaluation.metrics import accuracy
from candapt.evaluation.scores import import_libraries
from candapt.methods.can import CANSettings
from candapt.presets import make_settings
from candapt.settings import Settings

ONE_HEAD = {
    "network.heads": 1,
    "network.bottleneck": 1024,
    "can.labels": "clusters",
    "can.selection": "distance",
    "can.confusion": 0.0,
    "training.proportions": "off",
    "training.unknown": "off",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    import_libraries()
    rows = [measured(name, changes, options.seeds) for name, changes in (("one head", ONE_HEAD), ("default", {}))]
    record("steps", {"task": "amazon → webcam", "rows": rows})


def measured(name: str, changes: dict[str, Any], seeds: int) -> dict[str, Any]:
    """Seconds of the trainings and of the bare loops around them."""
    source, target = domain("office31", "amazon"), domain("office31", "webcam")
    task = Task(source, unlabeled(target))
    runs = [one_run(task, target.labels, make_settings("can", seed=seed, changes=changes)) for seed in range(seeds)]
    network = make_settings("can", changes=changes).network
    print(name, runs, flush=True)
    return {"name": name, "heads": network.heads, "width": network.bottleneck, "runs": runs}


def one_run(task: Task, truth: torch.Tensor, settings: Settings) -> dict[str, Any]:
    """A training between two bare loops."""
    before = bare(settings, task)
    start = time.perf_counter()
    labels = adapt(task, settings).predictions.labels
    training = time.perf_counter() - start
    after = bare(settings, task)
    return {
        "seed": settings.seed,
        "seconds": training,
        "bare_seconds": [before, after],
        "ratio": training / fmean([before, after]),
        "oracle_accuracy": accuracy(truth, labels),
    }


def bare(settings: Settings, task: Task) -> float:
    """Seconds of the matrix products and the updates of all steps of a training."""
    inputs, classes = task.source.samples.shape[0], task.num_classes
    network, training = settings.network, settings.training
    method = settings.method_settings or CANSettings()
    heads, width = network.heads, network.bottleneck or inputs
    parts = 2 if method.confusion else 1  # random samples of the source alone, or of both domains
    rows = parts * training.batch_size + 2 * method.classes * method.samples
    x, upper = torch.randn(heads, rows, inputs), torch.randn(heads, rows, classes)
    weights = torch.randn(heads, width, inputs).mul_(inputs**-0.5).requires_grad_()
    head = torch.randn(heads, classes, width).mul_(width**-0.5).requires_grad_()
    optimizer = AdamW([weights, head], weight_decay=training.weight_decay, fused=True)
    start = time.perf_counter()
    with torch.no_grad():
        for _ in range(settings.rounds * (training.steps or 1)):
            hidden = x @ weights.mT
            hidden @ head.mT
            head.grad, inner = upper.mT @ hidden, upper @ head
            weights.grad = inner.mT @ x
            optimizer.step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
