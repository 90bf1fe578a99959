"""What was found in the files of a task, in numbers and in sentences."""

from typing import Any

import numpy as np
import torch

from candapt.data.checking import ImageCheck
from candapt.data.domains import Domain, LabeledDomain, Task

UNBALANCED = 10
"""The largest class is told of when it has this many times the images of the smallest."""
EXAMPLES = 3
"""How many names a sentence lists before it only counts."""


def describe_data(task: Task, source: ImageCheck | None, target: ImageCheck | None) -> dict[str, Any]:
    """What was found, in plain values for `summary.json`.

    Args:
        task: what will be trained on.
        source: what the check of the source's image files has shown; None where there are none.
        target: the same of the target.
    """
    told: dict[str, Any] = {"source": task.source.size, "target": task.target.size}
    counts = task.source.labels.bincount(minlength=task.num_classes).tolist()
    told["source_classes"] = dict(zip(task.source.classes, counts, strict=True))
    if source is not None:
        told["source_images"] = describe_images(source, task.source)
    if target is not None:
        told["target_images"] = describe_images(target)
    if source is not None and target is not None:
        twins = source.duplicates(target)
        told["in_both"] = len({path for _, path in twins})
        told["in_both_examples"] = [[str(path) for path in pair] for pair in twins[:EXAMPLES]]
    return told


def describe_images(check: ImageCheck, domain: Domain | None = None) -> dict[str, Any]:
    """What was found in one domain, in plain values.

    Args:
        check: the result of checking the files.
        domain: with a `LabeledDomain`, the images of each class are counted too.
    """
    sides = np.array(check.sizes).reshape(-1, 2)
    found: dict[str, Any] = {
        "images": len(check.paths),
        "broken": len(check.broken),
        "repeated": len(check.paths) - len(set(check.hashes)),
        "grey": check.grey,
    }
    if len(sides):
        by_area = sides[np.argsort(sides.prod(axis=1), kind="stable")]
        middle = len(by_area) // 2
        found["sizes"] = {
            name: tuple(by_area[at].tolist()) for name, at in (("smallest", 0), ("median", middle), ("largest", -1))
        }
    if isinstance(domain, LabeledDomain):
        counts = torch.bincount(domain.labels, minlength=len(domain.classes)).tolist()
        found["classes"] = dict(zip(domain.classes, counts, strict=True))
        found["empty_classes"] = [path.name for path, _ in check.empty]
        found["imbalance"] = max(counts) / max(1, min(counts))
    return found


def sentences(task: Task, found: dict[str, Any]) -> list[str]:
    """The same in words, for the log: at most one line a matter."""
    told = [
        f"Source: {task.source.size} samples of {task.num_classes} classes; "
        f"target: {task.target.size} samples without labels."
    ]
    for side in ("source", "target"):
        if images := found.get(f"{side}_images"):
            told.append(f"{side.capitalize()} images: {_details(images)}.")
    told += _imbalance(found.get("source_images", {}))
    if shared := found.get("in_both"):
        pairs = "; ".join(f"{a!r} is {b!r}" for a, b in found["in_both_examples"])
        more = "; …" if shared > EXAMPLES else ""
        told.append(f"{shared} image(s) of the target are in the source too, byte for byte: {pairs}{more}.")
    if broken := sum(found.get(f"{side}_images", {}).get("broken", 0) for side in ("source", "target")):
        told.append(f"{broken} image file(s) cannot be used and are left out: left-out.csv lists them.")
    return told


def _details(images: dict[str, Any]) -> str:
    """Counts and sizes of one domain."""
    parts = []
    if counts := sorted(images.get("classes", {}).values()):
        spread = f"{counts[0]} to {counts[-1]} of each class, median {counts[len(counts) // 2]}"
        parts.append(spread if counts[0] < counts[-1] else f"{counts[0]} of each class")
    smallest, median, largest = ("×".join(map(str, images["sizes"][name])) for name in images["sizes"])
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
        "look at the predictions of rare classes with care."
    ]
