"""The suites: their tasks, their data, and the paper's figures. Another suite is another row of `SUITES`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from candapt.benchmark import collections, published
from candapt.data.inputs import is_feature_file
from candapt.errors import UserError
from candapt.network.build import expected_images
from candapt.settings import ImageChoice, Settings

ARROW = "→"


@dataclass(frozen=True)
class TaskName:
    """From one domain of a collection to another."""

    source: str
    target: str
    name: str  # title of the column

    def is_called(self, name: str) -> bool:
        """Whether this is a name of the task: A→W, A->W or amazon->webcam, in any case."""
        given = name.strip().replace("->", ARROW).casefold()
        return given in (self.name.casefold(), f"{self.source}{ARROW}{self.target}".casefold())


@dataclass(frozen=True)
class Sweep:
    """One setting of a method at several values, each of which becomes a row."""

    setting: str
    symbol: str
    values: tuple[float, ...]


Open = Callable[[Path, Settings, ImageChoice], collections.Collection]  # opens --data; the backbone sizes images


@dataclass(frozen=True)
class Suite:
    """What `candapt benchmark NAME` runs."""

    title: str
    data: str  # what --data must be; empty where no data is needed
    open: Open
    tasks: tuple[TaskName, ...] = ()  # as columns are ordered; empty for all ordered pairs of the folders in --data
    methods: tuple[str, ...] = ()  # what to run unless --methods is given; empty for all
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from the preset's, by flag name
    task_settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By preset and name of a task: settings that its source has for this task alone, by flag name."""
    recipes: bool = True
    """Whether each method has its own recipe; a comparison of methods gives all the same head, and CAN what its paper
    has."""
    sweep: Sweep | None = None
    by_class: bool = False  # one task, a column for each class, and their mean as the score
    protocol: str = "Accuracy on all of the unlabeled target that was adapted to."  # a sentence for the tables
    paper: published.Published | None = None


def tasks_of(suite: Suite, data: Path, wanted: Sequence[str] = ()) -> tuple[TaskName, ...]:
    """The tasks of a suite, or those of them that are wanted, in the suite's order."""
    tasks = suite.tasks or tuple(TaskName(a, b, f"{a}{ARROW}{b}") for a, b in permutations(_folders_in(data), 2))
    for name in wanted:
        if not any(task.is_called(name) for task in tasks):
            raise UserError(f"There is no task {name!r} in this suite: choose from {', '.join(t.name for t in tasks)}.")
    return tuple(task for task in tasks if not wanted or any(task.is_called(name) for name in wanted))


def _folders_in(root: Path) -> list[str]:
    """Names of at least two subfolders."""
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise UserError(f"{str(root)!r} holds {len(names)} folder(s), but a task needs two domains, each in a folder.")
    return names


def _demo(data: Path, settings: Settings, images: ImageChoice) -> collections.Collection:
    return collections.DemoCollection(augment=images.augmentation != "none")


def _digits(data: Path, settings: Settings, images: ImageChoice) -> collections.Collection:
    return collections.DigitCollection(data, augment=images.augmentation != "none")


def _folders(data: Path, settings: Settings, images: ImageChoice) -> collections.ImageCollection:
    if not data.is_dir():
        raise UserError(f"The folder {str(data)!r} does not exist: give by --data one with a folder per domain.")
    return collections.ImageCollection(data, expected_images(settings.network, images))


def _features_or_folders(data: Path, settings: Settings, images: ImageChoice) -> collections.Collection:
    return collections.FeatureCollection(data) if is_feature_file(data) else _folders(data, settings, images)


def _lists_or_folders(data: Path, settings: Settings, images: ImageChoice) -> collections.Collection:
    return collections.ListedCollection(data, _folders(data, settings, images).images)


def _tasks(*names: str) -> tuple[TaskName, ...]:
    """Tasks by their titles; a domain has the title's name in lower case, unless the title abbreviates it."""
    full = {"A": "amazon", "D": "dslr", "W": "webcam"}
    domains = {name: [full.get(part, part.lower()) for part in name.split(ARROW)] for name in names}
    return tuple(TaskName(source, target, name) for name, (source, target) in domains.items())


SHORT: Mapping[str, Any] = {"rounds": 20, "training.steps": 40}  # digits are small enough for shorter rounds
FILTERED = ("A→W", "A→D")  # the only tasks of Office-31 on which the paper filters target samples
VISDA_STEPS: Mapping[str, Any] = {"can.epoch_share": 0.2}  # the authors' code; the paper does not say
OFFICE31 = Suite(
    "Office-31",
    "a folder with amazon, dslr and webcam, or an .npz file with amazon_x, amazon_y, … and classes",
    _features_or_folders,
    _tasks("A→W", "D→W", "W→D", "A→D", "D→A", "W→A"),
    recipes=False,
    task_settings={
        "paper": {task: {"can.max_distance": 0.05, "can.min_samples": 3} for task in FILTERED},
        "official": {task: {"can.max_distance": 0.05} for task in FILTERED},
    },
    paper=published.OFFICE31,
)

SUITES: dict[str, Suite] = {
    "demo": Suite("Rendered → handwritten digits", "", _demo, _tasks("rendered→handwritten"), changes=SHORT),
    "digits": Suite(
        "MNIST ↔ USPS",
        "a folder with mnist.npz and usps.npz",
        _digits,
        _tasks("MNIST→USPS", "USPS→MNIST"),
        changes=SHORT,
        protocol="2,000 training images of MNIST and 1,800 of USPS, drawn by the seed; accuracy on all test images of "
        "the target.",
    ),
    "office31": OFFICE31,
    "pacs": Suite(
        "PACS",
        "a folder with photo, art_painting, cartoon and sketch, or an .npz file with photo_x, photo_y, … and classes",
        _features_or_folders,
        _tasks(*(f"{a}→{b}" for a, b in permutations(("photo", "art_painting", "cartoon", "sketch"), 2))),
    ),
    "office31-default": replace(OFFICE31, title="Office-31, default settings", recipes=True, methods=("can",)),
    "office31-table3": replace(
        OFFICE31,
        title="Office-31: without alternating optimization, without class-aware sampling",
        methods=("can", "can-no-ao", "can-no-cas"),
        paper=published.OFFICE31_TABLE3,
    ),
    "office31-table4": replace(
        OFFICE31,
        title="Office-31: ways of using pseudo labels",
        tasks=_tasks("A→W", "A→D", "D→A", "W→A"),
        methods=("can", "pseudo-fixed", "pseudo-alternating"),
        paper=published.OFFICE31_TABLE4,
    ),
    "office31-beta": replace(
        OFFICE31,
        title="Office-31: the weight β of the discrepancy",
        tasks=_tasks("A→D", "D→A"),
        methods=("can",),
        sweep=Sweep("weight", "β", (0.01, 0.03, 0.1, 0.3, 1.0)),  # two values per decade around the paper's 0.3
        paper=published.OFFICE31_BETA,
    ),
    "visda2017": Suite(
        "VisDA-2017",
        "the challenge's folder with train and validation",
        _lists_or_folders,
        _tasks("train→validation"),
        changes={"network.backbone": "resnet101.tv_in1k", "training.power": 2.25, "can.classes": 6, "can.samples": 10},
        task_settings={
            "paper": {"train→validation": VISDA_STEPS},
            "official": {"train→validation": {**VISDA_STEPS, "training.slope": 0.0005}},
        },
        by_class=True,
        protocol="Accuracy on each class of the validation images that were adapted to, and the mean of the classes.",
        paper=published.VISDA2017,
    ),
    "folders": Suite("All pairs of domains", "a folder with one subfolder per domain", _folders),
}
