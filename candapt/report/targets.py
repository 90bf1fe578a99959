"""What a page shows of a target unlike the source: proportions, unknown objects, and methods that were tried."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from candapt.data.domains import Side
from candapt.report import text
from candapt.report.page import Table
from candapt.report.run_data import Prediction, Run
from candapt.report.thumbnails import Thumbnails

GROUPS, MEMBERS = 6, 12  # maximum number of groups of unknown objects, and of pictures in each
SIZE = 96  # pixels of a picture


@dataclass(frozen=True)
class Group:
    """Unknown objects that resemble each other."""

    count: int
    samples: list[Prediction]  # some of them

    @property
    def sentence(self) -> str:
        """What the page says of them."""
        return f"{text.number(self.count)} samples resemble each other and none of your classes."


@dataclass(frozen=True)
class TargetParts:
    """The parts of the page; tables are None where there is nothing to show."""

    proportions: Table | None
    methods: Table | None
    unknown_share: float
    groups: list[Group]
    pictures: Mapping[str, str]  # by name of the sample


def target_parts(run: Run, thumbnails: Mapping[Side, Thumbnails]) -> TargetParts:
    """Everything that the page shows of it."""
    groups, share = unknown_groups(run), run.section("unknown").get("share")
    names = [sample.name for group in groups for sample in group.samples]
    return TargetParts(
        proportion_table(run),
        method_table(run),
        float(share) if isinstance(share, int | float) else 0.0,
        groups,
        thumbnails[Side.TARGET].make(names, SIZE) if names else {},
    )


def proportion_table(run: Run) -> Table | None:
    """Estimated proportions of the target's classes with their range, beside the source's."""
    classes = run.section("proportions").get("classes")
    if not isinstance(classes, Mapping):
        return None
    rows = [
        (name, f"{each['source']:.1%}", f"{each['target']:.1%}", f"{each['low']:.1%} to {each['high']:.1%}")
        for name, each in classes.items()
    ]
    columns = ("class", "in the source", "estimated in the target", "range")
    return Table("Class proportions, estimated without target labels", columns, rows)


def method_table(run: Run) -> Table | None:
    """The methods that were tried, with the evidence that chose among them."""
    methods, kept = (run.section("auto").get(key) for key in ("methods", "kept"))
    if not isinstance(methods, Mapping):
        return None
    rows = [
        (text.title(name), f"{each['estimated_accuracy']:.1%}", f"{each['seconds']:.0f} s", "kept" * (name == kept))
        for name, each in methods.items()
    ]
    strong = [place for place, name in enumerate(methods) if name == kept]
    columns = ("method", "estimated accuracy", "time", "")
    return Table(
        "Methods that were tried; CAN is kept unless another one is clearly better",
        columns,
        rows,
        strong=frozenset((place, 1) for place in strong),
    )


def unknown_groups(run: Run) -> list[Group]:
    """Groups of unknown objects, the largest first."""
    listed: Any = run.section("unknown").get("groups")
    by_name = {each.name: each for each in run.predictions}
    groups = []
    for names in (listed if isinstance(listed, list) else [])[:GROUPS]:
        samples = [by_name[name] for name in names[:MEMBERS] if name in by_name]
        groups += [Group(len(names), samples)] if samples else []
    return groups
