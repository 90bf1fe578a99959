"""The suites: which tasks there are, where their data comes from, and what the paper says of them.

Another suite is another row of `SUITES`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from candapt.benchmark import published
from candapt.benchmark.collections import (
    Collection,
    DemoCollection,
    DigitCollection,
    FeatureCollection,
    ImageCollection,
    ListedCollection,
    domain_folders,
)
from candapt.benchmark.published import Published
from candapt.commands.job import Job, image_settings
from candapt.data.inputs import is_feature_file
from candapt.demo import DEMO
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.settings import ImageChoice, Settings

ARROW = "→"


@dataclass(frozen=True)
class TaskName:
    """From one domain of a collection to another."""

    source: str
    target: str
    name: str
    """How the column is called."""

    @property
    def folder(self) -> str:
        """Where its results lie."""
        return f"{self.source}-to-{self.target}"

    def is_called(self, name: str) -> bool:
        """Whether that is a name of this task: A→W, A->W or amazon->webcam, in any case."""
        given = name.strip().replace("->", ARROW).casefold()
        return given in (self.name.casefold(), f"{self.source}{ARROW}{self.target}".casefold())


@dataclass(frozen=True)
class Sweep:
    """One setting of a method, tried at several values, each of which becomes a row."""

    setting: str
    symbol: str
    values: tuple[float, ...]


Open = Callable[[Path, Settings, ImageChoice], Collection]
"""Makes the collection from --data; the settings tell what the backbone expects."""


@dataclass(frozen=True)
class Suite:
    """What `candapt benchmark NAME` runs."""

    title: str
    data: str
    """What --data must be; empty where no data is needed."""
    open: Open
    tasks: tuple[TaskName, ...] = ()
    """In the order of the columns; empty for all ordered pairs of the folders below --data."""
    methods: tuple[str, ...] = tuple(METHODS)
    """What is run unless --methods says otherwise."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the preset's, by the names of the flags."""
    sweep: Sweep | None = None
    by_class: bool = False
    """One task, a column for each class, and their mean as the score."""
    protocol: str = "Accuracy on all of the unlabelled target that was adapted to."
    """How the accuracy is taken, in a sentence for the tables."""
    paper: Published | None = None


def tasks_of(suite: Suite, data: Path, wanted: Sequence[str] = ()) -> tuple[TaskName, ...]:
    """The tasks of a suite, or those of them that are wanted, in the suite's order."""
    tasks = suite.tasks or tuple(TaskName(a, b, f"{a}{ARROW}{b}") for a, b in permutations(domain_folders(data), 2))
    for name in wanted:
        if not any(task.is_called(name) for task in tasks):
            raise UserError(f"There is no task {name!r} in this suite: choose of {', '.join(t.name for t in tasks)}.")
    return tuple(task for task in tasks if not wanted or any(task.is_called(name) for name in wanted))


def _features_or_folders(data: Path, settings: Settings, images: ImageChoice) -> Collection:
    return FeatureCollection(data) if is_feature_file(data) else _folders(data, settings, images)


def _folders(data: Path, settings: Settings, images: ImageChoice) -> ImageCollection:
    expected = image_settings(Job(data, data, settings, images))
    if expected is None or not data.is_dir():
        raise UserError(f"The folder {str(data)!r} does not exist: give by --data one that holds a folder a domain.")
    return ImageCollection(data, expected)


def _lists_or_folders(data: Path, settings: Settings, images: ImageChoice) -> Collection:
    folders = _folders(data, settings, images)
    return ListedCollection(folders.root, folders.images)


def _digits(data: Path, settings: Settings, images: ImageChoice) -> Collection:
    return DigitCollection(data, augment=images.augmentation != "none")


def _demo(data: Path, settings: Settings, images: ImageChoice) -> Collection:
    return DemoCollection(augment=images.augmentation != "none")


def _office31(*names: str) -> tuple[TaskName, ...]:
    domains = {"A": "amazon", "D": "dslr", "W": "webcam"}
    return tuple(TaskName(domains[name[0]], domains[name[-1]], name) for name in names)


OFFICE31_DATA = "a folder with amazon, dslr and webcam, or an .npz file with amazon_x, amazon_y, … and classes"

SUITES: dict[str, Suite] = {
    "demo": Suite(
        "Rendered → handwritten digits",
        "",
        _demo,
        (TaskName("rendered", "handwritten", "rendered→handwritten"),),
        changes=DEMO,
    ),
    "digits": Suite(
        "MNIST ↔ USPS",
        "a folder with mnist.npz and usps.npz",
        _digits,
        (TaskName("mnist", "usps", "MNIST→USPS"), TaskName("usps", "mnist", "USPS→MNIST")),
        changes=DEMO,
        protocol="2,000 training images of MNIST and 1,800 of USPS, drawn by the seed; accuracy on all test images of "
        "the target.",
    ),
    "office31": Suite(
        "Office-31",
        OFFICE31_DATA,
        _features_or_folders,
        _office31("A→W", "D→W", "W→D", "A→D", "D→A", "W→A"),
        paper=published.OFFICE31,
    ),
    "office31-table3": Suite(
        "Office-31: without alternating optimization, without class-aware sampling",
        OFFICE31_DATA,
        _features_or_folders,
        _office31("A→W", "D→W", "W→D", "A→D", "D→A", "W→A"),
        methods=("can", "can-no-ao", "can-no-cas"),
        paper=published.OFFICE31_TABLE3,
    ),
    "office31-table4": Suite(
        "Office-31: ways of using pseudo labels",
        OFFICE31_DATA,
        _features_or_folders,
        _office31("A→W", "A→D", "D→A", "W→A"),
        methods=("can", "pseudo-fixed", "pseudo-alternating"),
        paper=published.OFFICE31_TABLE4,
    ),
    "office31-beta": Suite(
        "Office-31: the weight β of the discrepancy",
        OFFICE31_DATA,
        _features_or_folders,
        _office31("A→D", "D→A"),
        methods=("can",),
        # Two values a decade around the paper's 0.3.
        sweep=Sweep("weight", "β", (0.01, 0.03, 0.1, 0.3, 1.0)),
        paper=published.OFFICE31_BETA,
    ),
    "visda2017": Suite(
        "VisDA-2017",
        "the challenge's folder with train and validation",
        _lists_or_folders,
        (TaskName("train", "validation", "train→validation"),),
        changes={
            "network.backbone": "resnet101.tv_in1k",
            "training.power": 2.25,
            "can.classes": 6,
            "can.samples": 10,
        },
        by_class=True,
        protocol="Accuracy on each class of the validation images that were adapted to, and the mean of the classes.",
        paper=published.VISDA2017,
    ),
    "folders": Suite("All pairs of domains", "a folder with a sub-folder a domain", _folders),
}
