"""What was found in the files of a task, in numbers and in sentences."""

from typing import Any

import numpy as np
import torch

from candapt.data.checking import ImageCheck
from candapt.data.domains import Domain, LabeledDomain


def describe_images(check: ImageCheck, domain: Domain | None = None) -> dict[str, Any]:
    """What was found, in plain values for a log or a report.

    Args:
        check: the result of checking the files.
        domain: with a `LabeledDomain`, the images of each class are counted too.
    """
    sides = np.array(check.sizes).reshape(-1, 2)
    found: dict[str, Any] = {
        "images": len(check.paths),
        "broken": len(check.broken),
        "repeated": len(check.paths) - len(set(check.hashes)),
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
        found["imbalance"] = max(counts) / max(1, min(counts))
    return found
