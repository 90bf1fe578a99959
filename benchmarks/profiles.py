"""Where the processor time of a training goes: `python -m benchmarks.profiles`.

`head` is amazon → webcam of Office-31 from ResNet-50 features with the default settings; `last-stage` is ResNet-50 on
some images of the same domains, every `--step`-th, in a few rounds. Each part's own time is counted, without that of
parts that it calls. Needs `data/office31`, `data/office31-resnet50-features.npz` and
`weights/resnet50-imagenet.safetensors` below `../shared` or the folder that CANDAPT_SHARED names.
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricOptimizer

from benchmarks.cells import domain, unlabeled
from benchmarks.record import is_recorded, load, record
from candapt import adaptation
from candapt.commands.training import TrainingOptions, read_inputs
from candapt.data.domains import Task
from candapt.data.images import find_images
from candapt.evaluation.scores import import_libraries
from candapt.methods import can
from candapt.network.activations import ActivationCache
from candapt.network.network import Network
from candapt.presets import make_settings
from candapt.storage.provenance import measured_with
from candapt.training import finiteness, loop
from candapt.training.head_first import HeadFirst
from candapt.training.outputs import DomainOutputs
from candapt.training.scoring import Scorer

SHARED = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("frozen layers, once", adaptation, "prepare"),
    ("steps of the head alone", HeadFirst, "on_start"),
    ("view of untouched features, once", Scorer, "remember_view"),
    ("view of untouched features, once", Scorer, "remember_start"),
    ("steps: network, forward", Network, "each_head"),
    ("steps: discrepancy, forward", can, "contrastive_domain_discrepancy"),
    ("steps: backward", Fabric, "backward"),
    ("steps: optimizer", _FabricOptimizer, "step"),
    ("steps: checks of losses and gradients", finiteness, "check_losses"),
    ("steps: checks of losses and gradients", finiteness, "check_gradients"),
    ("steps: the rest", loop.Training, "step"),
    ("passes over the domains", DomainOutputs, "refresh"),
    ("passes over the domains", DomainOutputs, "of"),
    ("clustering", can.CAN, "cluster"),
    ("scores", Scorer, "scores"),
)
REST = "reading of batches and the rest"


class Clock:
    """Adds up each part's own processor time."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.names, self.since = [REST], time.process_time()

    def switch(self) -> None:
        """Charge the time since the last switch to the part that ran."""
        now = time.process_time()
        self.seconds[self.names[-1]] += now - self.since
        self.since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts for that part."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            self.switch()
            self.names.append(name)
            try:
                return function(*arguments, **keywords)
            finally:
                self.switch()
                self.names.pop()

        return run


@contextmanager
def clocked() -> Iterator[Clock]:
    """A clock that runs for all parts within this context."""
    clock = Clock()
    with ExitStack() as stack:
        for name, owner, function in PARTS:
            stack.enter_context(patch.object(owner, function, clock.timed(name, getattr(owner, function))))
        yield clock
        clock.switch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", nargs="+", choices=("head", "last-stage"), default=("head", "last-stage"))
    parser.add_argument("--step", type=int, default=10, help="every how manieth image (default: 10)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    import_libraries()
    content = {"runs": load("profiles")["runs"] if is_recorded("profiles") else {}}
    for depth in options.depths:
        content["runs"][depth] = head() if depth == "head" else last_stage(options.step)
        record("profiles", content)


def head() -> dict[str, Any]:
    """Seconds of the parts of a run over features."""
    source, target = domain("office31", "amazon"), domain("office31", "webcam")
    with clocked() as clock:
        result = adaptation.adapt(Task(source, unlabeled(target)), make_settings("can"))
    steps = result.state.iteration
    return described(clock, steps, f"{source.size} + {target.size} features, {len(result.history)} rounds")


def last_stage(step: int) -> dict[str, Any]:
    """Seconds of the parts of a run over images whose last stage learns."""
    changes = {
        "rounds": 2,
        "training.steps": 5,
        "training.head_rounds": 5,
        "network.finetune": "last-stage",
        "network.backbone": "resnet50",
        "network.weights": SHARED / "weights" / "resnet50-imagenet.safetensors",
        "training.unknown": "off",
        "training.proportions": "off",
    }
    with tempfile.TemporaryDirectory() as folder:
        source, target = (some_images(name, step, Path(folder, name)) for name in ("amazon", "webcam"))
        inputs = read_inputs(TrainingOptions(source, target, make_settings("can", changes=changes)))
        task, cache = inputs.task, ActivationCache(Path(folder, "cache"))
        with clocked() as clock:
            result = adaptation.adapt(task, inputs.settings, images=inputs.images, parts=inputs.parts, cache=cache)
        sizes = f"{task.source.size} + {task.target.size} images, {len(result.history)} rounds"
    return described(clock, result.state.iteration, sizes)


def some_images(name: str, step: int, folder: Path) -> Path:
    """A folder with links to every `step`-th image of a domain."""
    root = SHARED / "data" / "office31" / name
    for path in find_images(root)[::step]:
        link = folder / path.relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    return folder


def described(clock: Clock, steps: int, what: str) -> dict[str, Any]:
    """What is recorded of a run."""
    figures = {"what": what, "steps": steps, "seconds": dict(clock.seconds), "total": sum(clock.seconds.values())}
    return {**figures, "measured_with": measured_with()}  # runs are measured by commands of their own


if __name__ == "__main__":
    main()
