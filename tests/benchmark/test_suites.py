from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from candapt.benchmark.collections import DemoCollection, DigitCollection, FeatureCollection, ImageCollection
from candapt.benchmark.plan import Plan, make_rows
from candapt.benchmark.results import published_figures
from candapt.benchmark.suites import SUITES, tasks_of
from candapt.commands.benchmark import BenchmarkOptions, parse
from candapt.commands.parser import Parser, flags_of
from candapt.commands.training import setting_flags
from candapt.data.domains import LabeledDomain
from candapt.errors import UserError
from candapt.presets import for_family
from candapt.settings import ImageSettings
from tests.benchmark.conftest import write_images
from tests.toy import quick_settings


def write_digits(folder: Path) -> Path:
    """Files like those of MNIST and USPS, with three digits."""
    random = np.random.default_rng(0)
    for name, side in (("mnist", 28), ("usps", 16)):
        arrays: dict[str, Any] = {}
        for split, count in (("train", 60), ("test", 21)):
            y = np.arange(count) % 3
            x = random.integers(0, 60, size=(count, side, side)) + 60 * y[:, None, None]
            arrays |= {f"x_{split}": x.astype(np.uint8), f"y_{split}": y.astype(np.uint8)}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.mark.parametrize(
    ("preset", "filtered", "others"),
    [("default", (1.0, 3, "at-least"), (1.0, 3, "at-least")),
     ("paper", (0.05, 3, "more-than"), (1.0, 0, "more-than")),
     ("official", (0.05, 3, "at-least"), (1.0, 3, "at-least"))],
)  # fmt: skip
def test_a_preset_filters_the_tasks_that_its_source_filters(
    features: Path, tmp_path: Path, preset: str, filtered: tuple[float, int, str], others: tuple[float, int, str]
) -> None:
    plan = planned("office31", "--data", str(features), "--preset", preset, "--methods", "can,can-intra")
    assert {row.name for row in plan.rows} == (
        {"can", "can-intra"} if preset == "default" else {f"can ({preset})", f"can-intra ({preset})"}
    )
    for cell in plan.cells:
        own = cell.settings.method_settings
        expected = filtered if cell.task.name in ("A→W", "A→D") else others
        assert (own.max_distance, own.min_samples, own.min_samples_rule) == expected
        assert (
            published_figures(plan, cell.row)["A→W"]["mean"]
            == {"can": 94.5, "can-intra": 93.2}[cell.row.published_name]
        )


def test_a_flag_overrides_what_a_preset_has_for_a_task(features: Path) -> None:
    plan = planned("office31", "--data", str(features), "--preset", "paper", "--can.max_distance", "0.3")
    assert {cell.settings.method_settings.max_distance for cell in plan.cells if cell.row.name == "can (paper)"} == {
        0.3
    }


@pytest.mark.parametrize(("preset", "slope", "share"), [("paper", 10.0, 0.2), ("official", 0.0005, 0.2)])
def test_visda_has_the_schedule_and_the_steps_of_the_preset(
    tmp_path: Path, preset: str, slope: float, share: float
) -> None:
    plan = planned("visda2017", "--data", str(tmp_path), "--preset", preset, "--methods", "can")
    (settings,) = {cell.settings for cell in plan.cells if cell.seed == 0}
    assert (settings.training.slope, settings.training.power, settings.training.steps) == (slope, 2.25, None)
    assert settings.method_settings.epoch_share == share


def planned(*arguments: str) -> Plan:
    """The plan that `candapt benchmark` makes of these arguments."""
    parser = Parser("benchmark", [*flags_of(BenchmarkOptions), *setting_flags()])
    return parse(parser, parser.parse([*arguments, "--out", "out"]), {})[1]


def test_the_target_has_no_labels(features: Path) -> None:
    problem = FeatureCollection(features).problem("amazon", "webcam", 0)
    assert not isinstance(problem.task.target, LabeledDomain)
    assert problem.truth.tolist() == [row % 3 for row in range(24)]
    assert problem.task.source.classes == ("bike", "desk_lamp", "mug")


def test_missing_arrays_are_named(features: Path) -> None:
    with pytest.raises(UserError, match="no array caltech_x and no caltech_y"):
        FeatureCollection(features).problem("amazon", "caltech", 0)


def test_digits_are_drawn_by_the_seed_and_measured_on_test_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DigitCollection, "DRAWN", {"mnist": 40, "usps": 30})
    digits = DigitCollection(write_digits(tmp_path))
    problem = digits.problem("usps", "mnist", 0)
    assert (problem.task.source.size, problem.task.target.size) == (30, 40)
    assert problem.measured is not None
    assert problem.measured.size == len(problem.truth) == 21
    for domain in (problem.task.source, problem.task.target, problem.measured):
        assert domain.samples.shape == (1, 16, 16)
        values = domain.samples.read(torch.arange(20))
        assert 0 <= values.min() < values.max() <= 1
    again, other = (digits.problem("usps", "mnist", seed).task.source for seed in (0, 1))
    assert torch.equal(problem.task.source.labels, again.labels)
    assert not torch.equal(problem.task.source.samples.read(torch.arange(30)), other.samples.read(torch.arange(30)))


def test_digits_out_of_range_are_refused(tmp_path: Path) -> None:
    for name in ("mnist", "usps"):
        x = np.full((6, 8, 8), 3.0)
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=np.arange(6) % 2, x_test=x, y_test=np.arange(6) % 2)
    with pytest.raises(UserError, match="from 0 to 1"):
        DigitCollection(tmp_path).problem("mnist", "usps", 0)


def test_the_demonstration_needs_no_data() -> None:
    problem = DemoCollection().problem("rendered", "handwritten", 0)
    assert problem.task.source.samples.shape == problem.task.target.samples.shape == (1, 16, 16)
    assert len(problem.truth) == problem.task.target.size == 1797


def test_folders_are_all_pairs(tmp_path: Path) -> None:
    write_images(tmp_path, ("art", "photo", "sketch"), ("cat", "dog"), count=1)
    (tmp_path / ".hidden").mkdir()
    names = [task.name for task in tasks_of(SUITES["folders"], tmp_path)]
    assert names == ["art→photo", "art→sketch", "photo→art", "photo→sketch", "sketch→art", "sketch→photo"]


def test_classes_that_the_source_lacks_are_not_measured(tmp_path: Path) -> None:
    write_images(tmp_path, ("few",), ("cat", "dog"), count=2)
    write_images(tmp_path, ("many",), ("cat", "cow", "dog"), count=2)
    problem = ImageCollection(tmp_path, ImageSettings(8, 8)).problem("few", "many", 0)
    assert problem.truth.tolist() == [0, 0, -1, -1, 1, 1]


def test_fingerprints_do_not_depend_on_the_place(tmp_path: Path) -> None:
    images = ImageSettings(8, 8)
    for copy in ("here", "there"):
        write_images(tmp_path / copy, ("art",), ("cat", "dog"), count=1)
    here, there = (ImageCollection(tmp_path / copy, images).fingerprint("art") for copy in ("here", "there"))
    assert here == there
    write_images(tmp_path / "other", ("art",), ("cat", "dog"), count=2)
    assert ImageCollection(tmp_path / "other", images).fingerprint("art") != here


@pytest.mark.parametrize("name", ["A→W", "A->W", "a->w", "amazon->webcam", " Amazon→Webcam "])
def test_tasks_by_name(name: str) -> None:
    assert [task.name for task in tasks_of(SUITES["office31"], Path(), [name])] == ["A→W"]


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(UserError, match=r"no task 'A→C'.*A→W, D→W"):
        tasks_of(SUITES["office31"], Path(), ["A→W", "A→C"])


def test_changes_to_can_reach_its_ablations() -> None:
    changes = {"can.samples": 6, "can.weight": 0.5, "rounds": 2}
    intra, pseudo, dann = (for_family(changes, method) for method in ("can-intra", "pseudo-fixed", "dann"))
    assert intra["can-intra.samples"] == pseudo["pseudo-fixed.samples"] == 6
    assert intra["can-intra.weight"] == 0.5
    assert "pseudo-fixed.weight" not in pseudo  # it weighs something else
    assert "dann.weight" not in dann
    assert for_family(changes, "can") == changes


def test_a_sweep_makes_rows_of_methods_that_have_its_setting() -> None:
    settings = {method: quick_settings(method) for method in ("can", "source-only")}
    rows = make_rows(SUITES["office31-beta"], settings)
    assert [row.name for row in rows] == ["source-only", *(f"can β={w}" for w in ("0.01", "0.03", "0.1", "0.3", "1"))]
    assert [row.settings.method_settings.weight for row in rows[1:]] == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert rows[1].folder == "can-weight-0.01"
