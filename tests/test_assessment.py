"""The source-only network beside a run, and what is concluded from it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from candapt.adaptation import adapt
from candapt.assessment import as_baseline, compare, train_baseline, unknown_in
from candapt.benchmark.suites import SUITES
from candapt.commands import demo
from candapt.commands.adapt import AdaptOptions
from candapt.commands.adapt import run as adapt_files
from candapt.evaluation.unknown import Unknown
from candapt.training.mixing import UNKNOWN
from tests.toy import Toy, quick_settings


@pytest.mark.parametrize("network", [{}, {"network__bottleneck": None}])
def test_it_is_the_source_only_run_of_the_same_start(toy: Toy, network: dict[str, Any]) -> None:
    result = adapt(toy.task, quick_settings("can", **network))
    baseline = train_baseline(result)
    alone = adapt(toy.task, quick_settings("source-only", **{"network__heads": 4, **network}))  # as many as CAN has
    assert torch.equal(baseline.predictions.probabilities, alone.predictions.probabilities)
    again = as_baseline(alone)
    assert torch.equal(baseline.untouched.reference.target, again.untouched.reference.target)
    assert compare(result, baseline) == compare(result, again)


def test_training_is_not_disturbed_by_it(files: Path, tmp_path: Path) -> None:
    for name, baseline in (("with", True), ("without", False)):
        out = tmp_path / name
        adapt_files(
            AdaptOptions(files / "source.npz", files / "target.npz", quick_settings(), baseline=baseline, out=out)
        )
    for file in ("predictions.csv", "model.safetensors", "confidence.safetensors"):
        contents = [(tmp_path / name / file).read_bytes() for name in ("with", "without")]
        assert contents[0] == contents[1], file
    summary = json.loads((tmp_path / "with/summary.json").read_text())
    assert isinstance(summary["warnings"], list)
    assert 0 <= summary["source_only"]["same_predictions"] <= 1
    assert summary["source_only"]["scores"]["score_agreement"] > 0
    assert "oracle_accuracy" not in summary["source_only"]
    assert "warnings" not in json.loads((tmp_path / "without/summary.json").read_text())


def test_warnings_are_said_and_stored(toy: Toy, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mixed = np.random.default_rng(0).permutation(toy.source_y)
    source, target = tmp_path / "source.npz", tmp_path / "target.npz"
    np.savez(source, x=toy.source_x, y=mixed)
    np.savez(target, x=toy.target_x, y=toy.target_y)
    adapt_files(AdaptOptions(source, target, quick_settings(), target_labels=target, out=tmp_path / "run"))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert [note["kind"] for note in summary["notes"]] == ["inconsistent labels"]
    assert summary["warnings"]
    assert all(finding["sentence"] in caplog.text for finding in (*summary["warnings"], *summary["notes"]))
    assert 0 <= summary["source_only"]["oracle_accuracy"] <= 1


@pytest.mark.parametrize(("kind", "largest"), [("pretrained", 1.0), ("scratch", 0.05)])
def test_a_network_from_scratch_only_orders_by_strangeness(
    toy: Toy, kind: str, largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = adapt(toy.task, quick_settings())
    untouched = replace(train_baseline(result).untouched, kind=kind)
    strange = torch.linspace(0, 1, len(untouched.reference.target))
    monkeypatch.setattr("candapt.assessment.find_unknown", lambda *_: Unknown(strange, found=True))
    result.state.score_memory.pop(UNKNOWN)
    unknown = unknown_in(result, untouched)
    assert unknown is not None
    assert float(unknown.max()) == pytest.approx(largest)


def test_source_only_is_its_own_baseline(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candapt.assessment.adapt", lambda *_, **__: pytest.fail("trained twice"))
    settings = quick_settings("source-only")
    adapt_files(AdaptOptions(files / "source.npz", files / "target.npz", settings, out=tmp_path / "run"))
    assert json.loads((tmp_path / "run/summary.json").read_text())["source_only"]["same_predictions"] == 1


def test_the_demonstration_trains_source_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candapt.assessment.adapt", lambda *_, **__: pytest.fail("trained twice"))
    monkeypatch.setattr("candapt.data.digits.RENDERED", 100)
    monkeypatch.setitem(SUITES, "demo", replace(SUITES["demo"], changes={"rounds": 1, "training.steps": 2}))
    demo.run(demo.DemoOptions(tmp_path / "demo"))
    assert "warnings" in json.loads((tmp_path / "demo/can/summary.json").read_text())
