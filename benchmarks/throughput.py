"""The whole ResNet-50 trained on images, amazon → webcam of Office-31: `python -m benchmarks.throughput`.

Does it learn, and how many images a second does the training loop take against the bare backbone's forward and backward
pass over as many images? The bare passes are timed in the same process, before and after the training, in the same
number format and with the same frozen stem. Needs `data/office31` and `weights/resnet50-imagenet.safetensors` below
`../shared` or the folder that CANDAPT_SHARED names.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from benchmarks.record import record
from candapt.adaptation import adapt
from candapt.commands.training import TrainingOptions, read_inputs
from candapt.console import show_log
from candapt.data.domains import Side
from candapt.evaluation.metrics import accuracy
from candapt.methods.can import CANSettings
from candapt.network.backbones import build_backbone
from candapt.network.build import freeze_stem
from candapt.presets import make_settings
from candapt.training.batches import make_fabric
from candapt.training.callbacks import Callback
from candapt.training.loop import Training
from candapt.training.state import Record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()
    show_log()
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    weights = shared / "weights" / "resnet50-imagenet.safetensors"
    changes = {
        "rounds": options.rounds,
        "training.steps": options.steps,
        "training.precision": options.precision,
        "training.statistics": "running",  # one pass over all images less in each round
        "network.finetune": "all",
        "network.backbone": "resnet50",
        "network.weights": weights,
    }
    settings = make_settings("can", seed=options.seed, changes=changes)
    amazon, webcam = (shared / "data" / "office31" / name for name in ("amazon", "webcam"))
    inputs = read_inputs(TrainingOptions(amazon, webcam, settings))
    names = inputs.task.source.classes
    truth = torch.tensor([names.index(Path(name).parent.name) for name in inputs.task.target.names])
    method = settings.method_settings or CANSettings()
    sizes = [settings.training.batch_size, *[method.classes * method.samples] * 2]
    fabric = make_fabric(settings.training)
    before = bare(weights, sizes, options.steps, fabric)
    watch = Watch(sum(sizes), truth)
    adapt(inputs.task, settings, images=inputs.images, parts=inputs.parts, callbacks=[watch])
    after = bare(weights, sizes, options.steps, fabric)
    content = {
        "rounds": options.rounds,
        "steps": options.steps,
        "seed": options.seed,
        "precision": options.precision,
        "images_per_step": sum(sizes),
        "training_images_per_second": watch.images / watch.seconds,
        "bare_images_per_second": [before, after],
        "ratio": watch.images / watch.seconds / ((before + after) / 2),
        "classification": watch.losses,
        "oracle_accuracy": watch.accuracies,
    }
    record("throughput", content)


class Watch(Callback):
    """Times the steps of a round but the first, before which the target is clustered, and notes what is learned."""

    def __init__(self, images_per_step: int, truth: torch.Tensor) -> None:
        self.images_per_step, self.truth = images_per_step, truth
        self.images, self.seconds, self.last = 0, 0.0, 0.0
        self.losses: list[Any] = []
        self.accuracies: list[float] = []

    def on_step(self, training: Training, done: int, planned: int) -> None:
        """Add up the time since the step before."""
        now = time.perf_counter()
        if done > 1:
            self.images += self.images_per_step
            self.seconds += now - self.last
        self.last = now

    def on_round(self, training: Training, record: Record) -> None:
        """Note the loss, and by the labels the accuracy."""
        self.losses.append(record["classification"])
        self.accuracies.append(accuracy(self.truth, training.outputs.of(Side.TARGET).logits.argmax(1)))


def bare(weights: Path, sizes: list[int], steps: int, fabric: Fabric) -> float:
    """Images a second through the backbone, forward and backward, in batches of the same sizes but the first."""
    backbone = build_backbone("resnet50", weights=weights).train()
    freeze_stem(backbone.model)  # as the training does
    batches = [torch.randn(size, 3, 224, 224) for size in sizes]
    started = 0.0
    for step in range(steps):
        if step == 1:
            started = time.perf_counter()
        backbone.zero_grad()
        with fabric.autocast():
            losses = [backbone(batch).sum() for batch in batches]
        torch.autograd.backward(torch.stack(losses).sum())
    return (steps - 1) * sum(sizes) / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
