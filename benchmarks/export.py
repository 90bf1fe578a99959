"""Exported models against PyTorch, in agreement, speed and size: `python -m benchmarks.export`.

A short run over images of Office-31 (dslr → webcam, the head over a frozen ResNet-50), and one over features (amazon →
webcam), are exported as ONNX and quantized to int8; target labels are not used. The three are timed in turns, in one
process, with the threads of OMP_NUM_THREADS each. Needs `data/office31`, `data/office31-resnet50-features.npz` and
`weights/resnet50-imagenet.safetensors` below `../shared` or the folder that CANDAPT_SHARED names.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import convert_conv2d_weight_memory_format

import candapt
from benchmarks.record import record
from candapt.commands import adapt
from candapt.commands.adapt import AdaptOptions
from candapt.console import show_log
from candapt.export import OnnxModel
from candapt.export.agreement import find_examples
from candapt.export.exporting import export_run
from candapt.export.network import TargetNetwork
from candapt.presets import make_settings
from candapt.settings import ImageChoice

SHARED = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
REPEATS = 9  # times that each is measured
IMAGES, FEATURES = 32, 4096  # samples in one measurement

Array = np.ndarray[Any, Any]
Predict = Callable[[Array], object]


def main() -> None:
    show_log()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [
            measure("images", image_run(folder), folder, IMAGES),
            measure("features", feature_run(folder), folder, FEATURES),
        ]
    record("export", {"repeats": REPEATS, "cases": cases})


def image_run(folder: Path) -> Path:
    """A run over images; only the evaluation views pass through the frozen layers."""
    changes = {
        "rounds": 5,
        "network.backbone": "resnet50",
        "network.weights": SHARED / "weights" / "resnet50-imagenet.safetensors",
        "network.finetune": "head",
        "network.views": 0,
    }
    source, target = (SHARED / "data" / "office31" / name for name in ("dslr", "webcam"))
    settings = make_settings("can", changes=changes)
    views = ImageChoice(size=None)  # those of the backbone: larger ones would take longer and show nothing else
    adapt.run(AdaptOptions(source, target, settings, images=views, report=False, out=folder / "images"))
    return folder / "images"


def feature_run(folder: Path) -> Path:
    """A run over features, with all rounds of the default."""
    source, target = folder / "amazon.npz", folder / "webcam.npz"
    with np.load(SHARED / "data" / "office31-resnet50-features.npz") as file:
        np.savez(source, x=file["amazon_x"], y=file["amazon_y"], classes=file["classes"])
        np.savez(target, x=file["webcam_x"])
    settings = make_settings("can")
    adapt.run(AdaptOptions(source, target, settings, report=False, out=folder / "features"))
    return folder / "features"


def measure(case: str, run: Path, folder: Path, batch: int) -> dict[str, Any]:
    """One run's files, compared and timed."""
    plain = export_run(run, folder / f"{case}.onnx")
    small = export_run(run, folder / f"{case}-int8.onnx", quantize="int8")
    model, threads = candapt.load(run), torch.get_num_threads()
    samples = find_examples(model, run, None, batch).array
    samples = np.resize(samples, (batch, *samples.shape[1:]))  # again from the first one if there are fewer
    speeds = rates(
        {
            "torch": by_torch(TargetNetwork(model)),
            "onnx": OnnxModel.load(plain.path, threads=threads).predict,
            "int8": OnnxModel.load(small.path, threads=threads).predict,
        },
        samples,
    )
    return {
        "case": case,
        "batch": batch,
        "heads": model.parts.settings.heads,
        "confidence": plain.metadata.confidence,
        "agreement": {"onnx": plain.agreement.describe(), "int8": small.agreement.describe()},
        "bytes": {"onnx": plain.size, "int8": small.size},
        "per_second": speeds,
        "ratio": speeds["onnx"] / speeds["torch"],
    }


def by_torch(network: TargetNetwork) -> Predict:
    """The network in PyTorch, in the memory layout in which candapt computes frozen layers."""
    convert_conv2d_weight_memory_format(network, torch.channels_last)

    @torch.inference_mode()
    def predict(samples: Array) -> object:
        x = torch.from_numpy(samples)
        return network(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x)

    return predict


def rates(functions: dict[str, Predict], samples: Array) -> dict[str, float]:
    """Samples a second of each function: the median over measurements that alternate between them."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(REPEATS + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            function(samples)
            if repeat:  # the first is for allocation
                seconds[name].append(time.perf_counter() - started)
    return {name: len(samples) / statistics.median(each) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
