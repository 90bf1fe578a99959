"""Tiny data in the layouts of the suites."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from candapt.benchmark.plan import Plan, make_plan
from tests.toy import quick_settings

Planner = Callable[..., Plan]


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file like that of Office-31's features: three domains, three classes."""
    random = np.random.default_rng(0)
    centers = 3 * random.normal(size=(3, 12))
    arrays: dict[str, Any] = {"classes": np.array(["bike", "desk_lamp", "mug"])}
    for name in ("amazon", "dslr", "webcam"):
        y = np.arange(24) % 3
        x = centers[y] + random.normal(size=(24, 12)) + random.normal(size=12)
        arrays |= {f"{name}_x": x.astype(np.float16), f"{name}_y": y.astype(np.uint8)}
    path = tmp_path_factory.mktemp("office31") / "features.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture
def planned(features: Path) -> Planner:
    """Makes a small plan over those features: two methods, two seeds, two tasks."""

    def plan(
        suite: str = "office31",
        *,
        data: Path | None = features,
        methods: tuple[str, ...] = ("source-only", "can"),
        seeds: tuple[int, ...] = (0, 1),
        tasks: tuple[str, ...] = ("A→W", "D→A"),
        **changes: Any,
    ) -> Plan:
        settings = {method: quick_settings(method, training__steps=2, **changes) for method in methods}
        return make_plan(suite, data, settings, seeds=seeds, tasks=tasks)

    return plan


def write_images(root: Path, domains: tuple[str, ...], classes: tuple[str, ...], *, count: int = 4) -> Path:
    """Gray noise whose brightness depends on the class, in one folder per domain and class."""
    random = np.random.default_rng(0)
    for domain in domains:
        for index, name in enumerate(classes):
            (root / domain / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 40, size=(16, 16)) + 200 * index // len(classes)
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / name / f"{number}.png")
    return root
