import json
import logging
import multiprocessing
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from candapt import adaptation
from candapt.benchmark import examiner, runner
from candapt.benchmark.plan import make_plan
from candapt.benchmark.runner import run, run_cell
from candapt.data.domains import LabeledDomain
from candapt.errors import UserError
from candapt.network.activations import View
from candapt.network.backbones import build_backbone
from candapt.settings import ImageChoice
from candapt.storage.provenance import code_digest, measured_with
from candapt.training.checkpoint import checkpoints
from candapt.training.loop import Training
from tests.benchmark.conftest import Planner, write_images
from tests.benchmark.test_suites import write_digits
from tests.forks import processes
from tests.toy import quick_settings

RESULTS = ("results.json", "results.md", "results.tex", "report.html")


def count_calls(
    monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None, error: type[Exception] = RuntimeError
) -> list[Any]:
    """Record the tasks that are trained on; raise at one of them."""
    calls: list[Any] = []

    def adapt(task: Any, settings: Any, **options: Any) -> Any:
        calls.append(task)
        if len(calls) == fail_at:
            raise error("pulled the plug")
        return adaptation.adapt(task, settings, **options)

    monkeypatch.setattr(runner, "adapt", adapt)
    return calls


def test_every_cell_is_stored_with_what_made_it(planned: Planner, tmp_path: Path) -> None:
    plan = planned()
    results = run(plan, tmp_path / "out")
    assert len(plan.cells) == 8
    for cell in plan.cells:
        stored = json.loads(cell.path(tmp_path / "out").read_text())
        assert stored["settings"]["seed"] == cell.seed
        assert stored["versions"]["torch"] == torch.__version__
        assert stored["rounds"] == len(stored["oracle_curve"]) == 2
        assert stored["seconds"] > 0
        assert stored["last"]["accuracy"] == stored["oracle_curve"][-1]
        best = max(stored["each_round"], key=lambda each: (not each["warmup"], each["score_neighbor_information"]))
        assert stored["chosen"]["rule"] == "best neighbor information"
        assert stored["chosen"]["accuracy"] == best["accuracy"]
        assert stored["oracle"]["accuracy"] == max(stored["oracle_curve"])
        assert [each["accuracy"] for each in stored["each_round"]] == stored["oracle_curve"]
        assert all({"score_snd", "score_agreement"} <= each.keys() for each in stored["each_round"])
        assert stored["samples"] == {"source": 24, "target": 24, "measured": 24}
        assert stored["provenance"] == measured_with()
    assert results["measured_with"]["code"] == [code_digest()]
    assert [row["name"] for row in results["rows"]] == ["source-only", "can"]
    assert json.loads((tmp_path / "out/timing.json").read_text())["cells"][0]["seconds"] > 0
    assert "seconds" not in (tmp_path / "out/results.json").read_text()


def test_an_interrupted_run_ends_in_the_same_bytes(
    planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(planned(), tmp_path / "undisturbed")
    calls = count_calls(monkeypatch, fail_at=4)
    with pytest.raises(RuntimeError, match="pulled the plug"):
        run(planned(), tmp_path / "out")
    assert len(list((tmp_path / "out").rglob("seed-*.json"))) == 3
    assert not (tmp_path / "out/results.json").exists()
    run(planned(), tmp_path / "out")
    assert len(calls) == 4 + 5  # nothing twice but the one that was cut off
    for name in RESULTS:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_a_long_cell_resumes_midway(planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(methods=("can",), seeds=(0,), tasks=("A→W",), rounds=4, training__settled=0)  # of two steps each
    run(plan, tmp_path / "undisturbed")
    monkeypatch.setattr(examiner, "MINUTES", 0)
    one_batch, made = Training.one_batch, []

    def counted(self: Training, *arguments: Any) -> dict[str, float]:
        made.append(self.state.iteration)
        if len(made) == 6:
            raise RuntimeError("pulled the plug")
        return one_batch(self, *arguments)

    monkeypatch.setattr(Training, "one_batch", counted)
    with pytest.raises(RuntimeError, match="pulled the plug"):
        run(plan, tmp_path / "out")
    (cell,) = plan.cells
    assert len(checkpoints(cell.saved(tmp_path / "out"))) == 2
    run(plan, tmp_path / "out")
    assert made == [0, 1, 2, 3, 4, 5, 5, 6, 7]
    assert not cell.saved(tmp_path / "out").exists()
    for name in RESULTS:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    cell.saved(tmp_path / "out").mkdir()  # killed after the result was stored
    run(plan, tmp_path / "out")
    assert not cell.saved(tmp_path / "out").exists()


@pytest.mark.parametrize("changed", ["code", "measured", "rounds"])
def test_a_cell_that_was_saved_by_other_code_starts_anew(
    changed: str, planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(examiner, "MINUTES", 0)
    plan = planned(methods=("can",), seeds=(0,), tasks=("A→W",), training__settled=0)
    run_cell(plan, plan.cells[0], saved=plan.cells[0].saved(tmp_path / "out"))
    if changed == "code":
        monkeypatch.setattr(examiner, "code_digest", lambda: "other")
    else:
        path = plan.cells[0].saved(tmp_path / "out") / examiner.FILE
        damaged = json.loads(path.read_text()) | {"rounds": [{"round": "x"}]} if changed == "rounds" else []
        path.write_text(json.dumps(damaged))
    run(plan, tmp_path / "out")
    assert not any("Resuming from" in message for message in caplog.messages)
    assert ("starts over" in caplog.text) is (changed != "measured")


def test_what_is_stored_is_not_run_again(planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(planned(seeds=(0,)), tmp_path)
    calls = count_calls(monkeypatch)
    run(planned(seeds=(0,)), tmp_path)
    assert not calls
    results = run(planned(seeds=(0,), methods=("source-only", "dann", "can")), tmp_path)
    assert len(calls) == 2  # the new method alone
    assert [row["name"] for row in results["rows"]] == ["source-only", "dann", "can"]


def test_other_settings_are_refused(planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(planned(seeds=(0,)), tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    calls = count_calls(monkeypatch)
    with pytest.raises(
        UserError, match=r"seed-0\.json' was made with settings\.rounds = 2, not 3: give another folder"
    ):
        run(planned(seeds=(0,), rounds=3), tmp_path)
    assert not calls
    assert (tmp_path / "results.json").read_bytes() == before
    run(planned(seeds=(0,), training__workers=1), tmp_path)  # changes no result


def test_cells_of_other_code_are_counted(
    planned: Planner, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of older versions, which store no provenance."""
    plan = planned(seeds=(0,))
    run(plan, tmp_path)
    assert "versions of the code" not in (tmp_path / "results.md").read_text()
    for cell, provenance in zip(plan.cells, ({"provenance": measured_with() | {"code": "other"}}, {}), strict=False):
        stored = json.loads(cell.path(tmp_path).read_text())
        del stored["provenance"]
        cell.path(tmp_path).write_text(json.dumps(stored | provenance))
    calls = count_calls(monkeypatch)
    caplog.set_level("WARNING", "candapt")
    monkeypatch.setattr(logging.getLogger("candapt"), "propagate", True)
    results = run(plan, tmp_path)
    assert not calls
    assert results["measured_with"]["code"] == ["other", None, code_digest()]
    assert "made by 3 versions of the code" in (tmp_path / "results.md").read_text()
    assert "other code of candapt" in caplog.text
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert timing["cells"][1]["provenance"]["threads"] == torch.get_num_threads()


def test_stored_rounds_are_chosen_from_without_training_again(
    planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(planned(seeds=(0,)), tmp_path)
    path = planned(seeds=(0,)).cells[0].path(tmp_path)
    stored = json.loads(path.read_text())
    for measured, value, accuracy in zip(stored["each_round"], (2.0, 1.0), (0.125, 0.25), strict=True):
        measured |= {"score_snd": value, "accuracy": accuracy}
    path.write_text(json.dumps(stored))
    calls = count_calls(monkeypatch)
    results = run(planned(seeds=(0,), select="snd"), tmp_path)
    assert not calls
    assert results["rule"] == "best snd"
    assert results["rows"][0]["chosen"]["A→W"]["values"] == [0.125]


def test_other_data_is_refused(planned: Planner, features: Path, tmp_path: Path) -> None:
    run(planned(seeds=(0,)), tmp_path / "out")
    copy = tmp_path / "moved.npz"
    shutil.copy(features, copy)
    run(planned(seeds=(0,), data=copy), tmp_path / "out")
    other = tmp_path / "other.npz"
    other.write_bytes(copy.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"was made with data\.amazon"):
        run(planned(seeds=(0,), data=other), tmp_path / "out")


def test_folders_that_hold_something_else_are_refused(planned: Planner, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(UserError, match=r"holds 'thesis.doc'"):
        run(planned(), tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        run(planned(), tmp_path / "thesis.doc")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]
    run(planned(seeds=(0,)), tmp_path / "out")
    (tmp_path / "out/results.json.part").touch()  # a killed writer left it
    with pytest.raises(UserError, match="results of the suite office31"):
        run(planned("office31-table4", seeds=(0,)), tmp_path / "out")


def test_a_damaged_cell_is_named(planned: Planner, tmp_path: Path) -> None:
    plan = planned(seeds=(0,))
    path = plan.cells[0].path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(UserError, match=r"seed-0\.json' cannot be read"):
        run(plan, tmp_path)


def test_a_cell_that_fails_does_not_stop_the_others(
    planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_calls(monkeypatch, fail_at=2, error=UserError)
    with pytest.raises(
        UserError, match="1 of 4 cells failed, the others are stored; the first, A→W can seed 0: pulled"
    ):
        run(planned(seeds=(0,)), tmp_path)
    assert len(list(tmp_path.rglob("seed-*.json"))) == 3


def test_labels_stay_out_of_the_training_and_measuring_changes_nothing(
    planned: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch)
    plan = planned(methods=("can",), training__statistics="domain")
    cell = plan.cells[0]
    stored, _ = run_cell(plan, cell)
    assert not isinstance(calls[0].target, LabeledDomain)
    problem = plan.collection.problem("amazon", "webcam", 0)
    unwatched = adaptation.adapt(problem.task, cell.settings).predictions.labels
    assert stored["last"]["accuracy"] == pytest.approx(float((unwatched == problem.truth).double().mean()))


def test_predictions_are_stored_beside_a_cell(planned: Planner, tmp_path: Path) -> None:
    plan = planned(methods=("can",), seeds=(0,))
    run(plan, tmp_path)
    for cell in plan.cells:
        stored = json.loads(cell.path(tmp_path).read_text(encoding="utf-8"))
        with np.load(cell.predictions_path(tmp_path)) as arrays:
            predicted = torch.as_tensor(arrays["probabilities"].argmax(1))
            assert arrays["cluster_labels"].shape == predicted.shape
        assert stored["last"]["accuracy"] == pytest.approx(
            float((predicted == plan.problem(cell).truth).double().mean())
        )


def test_digits_are_measured_on_images_that_training_never_saw(tmp_path: Path) -> None:
    data = write_digits(tmp_path)
    settings = {"can": quick_settings("can", rounds=1, training__steps=2)}
    results = run(make_plan("digits", data, settings), tmp_path / "out")
    assert results["columns"] == ["MNIST→USPS", "USPS→MNIST", "Average"]
    assert results["tasks"][0]["samples"] == {"source": 60, "target": 60, "measured": 21}
    assert results["networks"] == [{"backbone": "small-cnn", "finetune": "all"}]


def test_folders_with_a_small_network(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", ("art", "photo_1"), ("cat", "dog"))
    settings = {"can": quick_settings("can", rounds=1, training__steps=2, network__backbone="small-cnn")}
    results = run(make_plan("folders", data, settings, images=ImageChoice(size=16)), tmp_path / "out")
    assert results["columns"] == ["art→photo_1", "photo_1→art", "Average"]


def test_visda_has_a_column_for_each_class(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", ("train", "validation"), ("aeroplane", "bus", "truck"))
    settings = {"can": quick_settings("can", rounds=1, training__steps=2, network__backbone="small-cnn")}
    results = run(make_plan("visda2017", data, settings, images=ImageChoice(size=16)), tmp_path / "out")
    assert results["columns"] == ["aeroplane", "bus", "truck", "Average"]
    figures = results["rows"][0]["last"]
    each = [figures[name]["mean"] for name in ("aeroplane", "bus", "truck")]
    assert figures["Average"]["mean"] == pytest.approx(sum(each) / 3)
    assert results["rows"][0]["paper"]["aeroplane"]["mean"] == 97.0


@pytest.mark.parametrize("finetune", ["head", "last-stage"])
def test_a_frozen_backbone_processes_each_image_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finetune: str
) -> None:
    data = write_images(tmp_path / "data", ("art", "photo"), ("cat", "dog"), count=3)
    weights = tmp_path / "weights.pth"
    torch.save(build_backbone("resnet10t", pretrained=False).model.state_dict(), weights)
    network = {"network__backbone": "resnet10t", "network__weights": weights, "network__finetune": finetune}
    made: list[Any] = []
    make = View.make
    monkeypatch.setattr(View, "make", lambda view, *rest: (made.append(view.path), make(view, *rest)))

    def plan(seeds: tuple[int, ...]) -> Any:
        settings = {"can": quick_settings("can", rounds=1, training__steps=2, **network)}
        images = ImageChoice(size=32)
        return make_plan("folders", data, settings, seeds=seeds, images=images, cache=tmp_path / "cache")

    results = run(plan((0,)), tmp_path / "out")
    assert results["networks"] == [{"backbone": "resnet10t", "finetune": finetune}]
    views = 1 if finetune == "head" else 3  # a head learns over the evaluation view
    assert len(made) == len(set(made)) == 2 * views
    run(plan((0, 1)), tmp_path / "out")
    assert len(made) == 2 * views


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get their work as those that are spawned do, but import nothing first."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: processes)


@pytest.mark.usefixtures("forked")
def test_a_worker_that_is_killed_costs_only_what_it_was_at(features: Path, tmp_path: Path) -> None:
    endless = quick_settings("can", rounds=10**6, training__steps=2, training__settled=0)  # until it is killed
    settings = {"source-only": quick_settings("source-only", rounds=1, training__steps=2), "can": endless}
    plan = make_plan("office31", features, settings, seeds=(0, 1), tasks=("A→W",))
    short = [cell.path(tmp_path / "out") for cell in plan.cells if cell.settings.method == "source-only"]
    assert len(short) == 2

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not all(path.exists() for path in short) and time.monotonic() < deadline:
            time.sleep(0.02)  # until both workers can only be at an endless cell
        multiprocessing.active_children()[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(UserError, match="was killed, perhaps because memory ran out: use fewer --jobs"):
        run(plan, tmp_path / "out", jobs=2)
    killer.join()
    assert all(json.loads(path.read_text())["rounds"] == 1 for path in short)
    assert len(list((tmp_path / "out").rglob("seed-*.json"))) == 2
    deadline = time.monotonic() + 120  # one that still starts does so first, which takes long on a busy machine
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.1)  # and not join(): the pool's own thread may reap it at the same moment, which join() takes ill
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("forked")
def test_processes_give_the_same_results(planned: Planner, tmp_path: Path) -> None:
    run(planned(tasks=("A→W",)), tmp_path / "one")
    run(planned(tasks=("A→W",)), tmp_path / "two", jobs=2)
    assert (tmp_path / "one/results.json").read_bytes() == (tmp_path / "two/results.json").read_bytes()
    with pytest.raises(UserError, match="--jobs is 0"):
        run(planned(), tmp_path / "none", jobs=0)
