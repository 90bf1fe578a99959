"""The source-only network beside a run, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from candapt import demo
from candapt.adaptation import adapt
from candapt.baseline import as_baseline, baseline_of, compare
from candapt.commands.adapt import adapt as adapt_files
from candapt.commands.job import Job
from tests.toy import Toy, quick_settings


class Silent:
    def on_step(self, done: int, planned: int) -> None:
        pass

    def on_round(self, training: Any, record: Any) -> None:
        pass


@pytest.mark.parametrize("network", [{}, {"network__bottleneck": None}])
def test_it_is_the_source_only_run_of_the_same_start(toy: Toy, network: dict[str, Any]) -> None:
    settings = quick_settings("can", **network)
    adapted = adapt(toy.task, settings)
    baseline = baseline_of(adapted, settings, Silent())
    own = quick_settings("source-only", **network)
    alone = adapt(toy.task, own)
    assert torch.equal(baseline.predictions.probabilities, alone.predictions.probabilities)
    again = as_baseline(alone, own)
    assert torch.equal(baseline.reference.target, again.reference.target)
    assert compare(adapted, baseline) == compare(adapted, again)


def test_training_is_not_disturbed_by_it(files: Path, tmp_path: Path) -> None:
    for name, baseline in (("with", True), ("without", False)):
        job = Job(files / "source.npz", files / "target.npz", quick_settings(), baseline=baseline)
        adapt_files(job, tmp_path / name)
    predictions = [(tmp_path / name / "predictions.csv").read_bytes() for name in ("with", "without")]
    assert predictions[0] == predictions[1]
    told = json.loads((tmp_path / "with/summary.json").read_text())
    assert isinstance(told["warnings"], list)
    assert 0 <= told["source_only"]["same_predictions"] <= 1
    assert told["source_only"]["scores"]["score_agreement"] > 0
    assert "oracle_accuracy" not in told["source_only"]
    assert "warnings" not in json.loads((tmp_path / "without/summary.json").read_text())


def test_warnings_are_said_and_stored(toy: Toy, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mixed = np.random.default_rng(0).permutation(toy.source_y)
    np.savez(tmp_path / "source.npz", x=toy.source_x, y=mixed)
    np.savez(tmp_path / "target.npz", x=toy.target_x, y=toy.target_y)
    job = Job(tmp_path / "source.npz", tmp_path / "target.npz", quick_settings(), target_labels=tmp_path / "target.npz")
    adapt_files(job, tmp_path / "run")
    told = json.loads((tmp_path / "run/summary.json").read_text())
    assert "inconsistent labels" in [finding["kind"] for finding in told["warnings"]]
    assert all(finding["sentence"] in caplog.text for finding in told["warnings"])
    assert 0 <= told["source_only"]["oracle_accuracy"] <= 1


def test_source_only_is_its_own_baseline(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candapt.baseline.adapt", lambda *_, **__: pytest.fail("trained twice"))
    job = Job(files / "source.npz", files / "target.npz", quick_settings("source-only"))
    adapt_files(job, tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["source_only"]["same_predictions"] == 1


def test_the_demonstration_trains_source_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candapt.baseline.adapt", lambda *_, **__: pytest.fail("trained twice"))
    monkeypatch.setattr(demo, "RENDERED", 100)
    monkeypatch.setattr(demo, "DEMO", {"rounds": 1, "training.steps": 2})
    demo.demo(tmp_path / "demo", 0)
    assert "warnings" in json.loads((tmp_path / "demo/can/summary.json").read_text())
