"""The estimate of target accuracy."""

import json
from pathlib import Path

import pytest
import torch

from candapt.commands import adapt
from candapt.commands.adapt import AdaptOptions
from candapt.evaluation.confidence import margins
from candapt.evaluation.estimate import estimate_accuracy
from tests.toy import quick_settings


def test_it_is_the_mean_of_the_confidence() -> None:
    estimate = estimate_accuracy(torch.tensor([0.4, 0.6, 0.8]), "pretrained", doubtful=False)
    margin = margins()["pretrained"]["good"]
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((0.6 - margin, 0.6, 0.6 + margin))
    assert "60%" in estimate.sentence
    assert "guess" in estimate.sentence


def test_the_range_of_a_doubtful_run_is_that_of_such_runs() -> None:
    good, doubtful = (estimate_accuracy(torch.full((9,), 0.6), "scratch", doubtful=each) for each in (False, True))
    for estimate, name in ((good, "good"), (doubtful, "doubtful")):
        assert estimate.high - estimate.value == pytest.approx(margins()["scratch"][name])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_range_stays_within_0_and_1(value: float) -> None:
    estimate = estimate_accuracy(torch.full((5,), value), "pretrained", doubtful=True)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_it_stands_in_the_summary(files: Path, tmp_path: Path) -> None:
    paths = (files / "source.npz", files / "target.npz")
    adapt.run(AdaptOptions(*paths, quick_settings(), baseline=False, out=tmp_path / "run"))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    estimate = summary["estimated_accuracy"]
    assert estimate.keys() == {"value", "low", "high", "method"}
    assert estimate["low"] <= estimate["value"] <= estimate["high"]
    assert estimate["value"] == summary["mean_confidence"]  # so that the two agree
    assert summary["mean_softmax"] != summary["mean_confidence"]
