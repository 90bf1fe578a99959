"""An inventory of a task's samples and image files, in numbers and in sentences."""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from candapt.data.decoding import ImageCheck
from candapt.data.domains import Domain, KnownLabels, LabeledDomain, Task
from candapt.storage.safe_reading import shortened

UNBALANCED = 10  # classes are reported as unbalanced if the largest has this many times the images of the smallest
EXAMPLES = 3  # pairs of equal images that are listed rather than only counted


class NamedSource(NamedTuple):
    """One of the sources of a task, as it was read."""

    title: str
    domain: LabeledDomain
    check: ImageCheck | None  # None without image files


def describe_data(task: Task, sources: Sequence[NamedSource], target: ImageCheck | None) -> dict[str, Any]:
    """The inventory in plain values for `summary.json`; a check is None for a domain without image files."""
    inventory: dict[str, Any] = {"source": task.source.size, "target": task.target.size}
    inventory["source_classes"] = _class_counts(task.source)
    if len(sources) > 1:
        inventory["sources"] = [_describe_source(each) for each in sources]
    source, domain = sources[0].check, sources[0].domain
    if task.known is not None:
        inventory["known_labels"] = _known_labels(task, task.known)
    if source is not None:
        inventory["source_images"] = describe_images(source, domain)
    if target is not None:
        inventory["target_images"] = describe_images(target)
    checks = [each.check for each in sources if each.check is not None]
    if checks and target is not None:
        twins = [twin for check in checks for twin in check.duplicates(target)]
        inventory["in_both"] = len({path for _, path in twins})
        inventory["in_both_examples"] = [[str(path) for path in pair] for pair in twins[:EXAMPLES]]
    return inventory


def _describe_source(source: NamedSource) -> dict[str, Any]:
    """One of several sources in plain values."""
    described = {"name": source.title, "samples": source.domain.size, "classes": _class_counts(source.domain)}
    return described | ({} if source.check is None else {"images": describe_images(source.check)})


def _known_labels(task: Task, known: KnownLabels) -> list[list[str]]:
    """Name and class of each target sample whose label steers the training."""
    names, classes = task.target.names, task.source.classes
    pairs = zip(known.rows.tolist(), known.labels.tolist(), strict=True)
    return [[names[row], classes[label]] for row, label in pairs]


def describe_images(check: ImageCheck, domain: Domain | None = None) -> dict[str, Any]:
    """The images of one domain in plain values, those of a `LabeledDomain` also by class."""
    images: dict[str, Any] = {
        "images": len(check.paths),
        "broken": len(check.broken),
        "repeated": len(check.paths) - len(set(check.hashes)),
        "grey": check.grey,
    }
    if check.sizes:
        by_area = sorted(check.sizes, key=prod)
        images["sizes"] = {"smallest": by_area[0], "median": by_area[len(by_area) // 2], "largest": by_area[-1]}
    if isinstance(domain, LabeledDomain):
        images["classes"] = _class_counts(domain)
        images["empty_classes"] = [path.name for path, _ in check.empty]
        images["imbalance"] = max(images["classes"].values()) / max(1, min(images["classes"].values()))
    return images


def _class_counts(domain: LabeledDomain) -> dict[str, int]:
    """Number of samples of each class."""
    counts = domain.labels.bincount(minlength=len(domain.classes)).tolist()
    return dict(zip(domain.classes, counts, strict=True))


def sentences(task: Task, inventory: dict[str, Any]) -> list[str]:
    """The inventory in sentences for the log."""
    lines = [
        f"Source: {task.source.size} samples of {task.num_classes} classes; "
        f"target: {task.target.size} samples without labels."
    ]
    if sources := inventory.get("sources"):
        listed = "; ".join(f"{each['name']!r} {each['samples']} of {len(each['classes'])} classes" for each in sources)
        lines.append(f"{len(sources)} sources, each with its own batch norm: {listed}.")
        lines += _lone_classes(sources)
    if known := inventory.get("known_labels"):
        classes = len({label for _, label in known})
        lines.append(
            f"Known labels of {len(known)} target samples, of {classes} classes, steer the training; no accuracy of "
            "this run counts these samples."
        )
    for side in ("source", "target"):
        if images := inventory.get(f"{side}_images"):
            lines.append(f"{side.capitalize()} images: {_details(images)}.")
    lines += _imbalance(inventory.get("source_images", {}))
    if shared := inventory.get("in_both"):
        pairs = "; ".join(f"{a!r} is {b!r}" for a, b in inventory["in_both_examples"])
        more = "; …" if shared > EXAMPLES else ""
        lines.append(f"{shared} image(s) of the target are in the source too, byte for byte: {pairs}{more}.")
    checked = [inventory.get(f"{side}_images", {}) for side in ("source", "target")]
    checked += [each.get("images", {}) for each in inventory.get("sources", [])[1:]]
    if broken := sum(images.get("broken", 0) for images in checked):
        lines.append(f"{broken} image file(s) cannot be used and are left out: left-out.csv lists them.")
    return lines


def _lone_classes(sources: Sequence[dict[str, Any]]) -> list[str]:
    """Classes that one of several sources has alone: perhaps another one spells them otherwise."""
    lines = []
    for each in sources:
        others = {name for other in sources if other is not each for name in other["classes"]}
        if lone := [name for name in each["classes"] if name not in others]:
            listed = shortened(", ".join(map(repr, lone)), 200)
            kind = (
                "no class of the other sources"
                if len(lone) == len(each["classes"])
                else f"classes of its own: {listed}"
            )
            lines.append(f"The source {each['name']!r} has {kind}; classes are joined by their exact names.")
    return lines


def _details(images: dict[str, Any]) -> str:
    """Counts and sizes of one domain."""
    parts = []
    if counts := sorted(images.get("classes", {}).values()):
        spread = f"{counts[0]} to {counts[-1]} of each class, median {counts[len(counts) // 2]}"
        parts.append(spread if counts[0] < counts[-1] else f"{counts[0]} of each class")
    smallest, median, largest = (f"{width}×{height}" for width, height in images["sizes"].values())
    parts.append(f"all {median} pixels" if smallest == largest else f"{smallest} to {largest} pixels, median {median}")
    if images["grey"]:
        parts.append(f"{images['grey'] / images['images']:.0%} without color")
    if images["repeated"]:
        parts.append(f"{images['repeated']} repeat another byte for byte")
    return "; ".join(parts)


def _imbalance(images: dict[str, Any]) -> list[str]:
    """A sentence if the classes are of very different sizes."""
    if images.get("imbalance", 1) < UNBALANCED:
        return []
    classes: dict[str, int] = images["classes"]
    small, large = min(classes, key=classes.__getitem__), max(classes, key=classes.__getitem__)
    return [
        f"The classes are unbalanced: {large!r} has {classes[large]} images, {small!r} only {classes[small]}; "
        "check the predictions of rare classes."
    ]
