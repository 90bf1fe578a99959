"""The estimate of target accuracy."""

import json
from pathlib import Path

import pytest

from candapt.commands import adapt
from candapt.commands.adapt import AdaptOptions
from candapt.evaluation.estimate import FORMULAS, Formula, estimate_accuracy, log_odds
from candapt.evaluation.scores import SCORES
from tests.toy import quick_settings


def rounds(value: float) -> dict[str, float]:
    return {f"score_{name}": value for name in SCORES}


@pytest.mark.parametrize("starts_at_random", [False, True])
def test_better_scores_make_a_better_estimate(starts_at_random: bool) -> None:
    estimates = [
        estimate_accuracy(rounds(value), starts_at_random=starts_at_random, doubtful=False) for value in (0.3, 0.6, 0.9)
    ]
    values = [estimate.value for estimate in estimates if estimate]
    assert values == sorted(values)
    assert len(values) == 3
    for estimate in estimates:
        assert estimate
        assert 0 <= estimate.low < estimate.value < estimate.high <= 1
        assert "guess" in estimate.sentence


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_perfect_scores_stay_finite(value: float) -> None:
    estimate = estimate_accuracy(rounds(value), starts_at_random=False, doubtful=False)
    assert estimate
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_a_formula_is_a_weighted_sum_of_log_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMULAS, "pretrained", Formula(0.5, {"class_ami": 1.0, "agreement": -2.0}, 0.05))
    record = {"score_class_ami": 0.8, "score_agreement": 0.6}
    estimate = estimate_accuracy(record, starts_at_random=False, doubtful=False)
    assert estimate
    assert log_odds(estimate.value) == pytest.approx(0.5 + log_odds(0.8) - 2 * log_odds(0.6))
    assert (estimate.low, estimate.high) == pytest.approx((estimate.value - 0.05, estimate.value + 0.05))


def test_the_range_is_open_below_where_the_alarm_spoke() -> None:
    estimate = estimate_accuracy(rounds(0.9), starts_at_random=False, doubtful=True)
    assert estimate
    assert estimate.low == 0


def test_without_a_score_there_is_no_estimate() -> None:
    record = rounds(0.9)
    del record["score_neighbor_information"]
    assert estimate_accuracy(record, starts_at_random=False, doubtful=False) is None


def test_it_stands_in_the_summary(files: Path, tmp_path: Path) -> None:
    paths = (files / "source.npz", files / "target.npz")
    adapt.run(AdaptOptions(*paths, quick_settings(), baseline=False, out=tmp_path / "run"))
    estimate = json.loads((tmp_path / "run/summary.json").read_text())["estimated_accuracy"]
    assert estimate.keys() == {"value", "low", "high", "method"}
    assert estimate["low"] <= estimate["value"] <= estimate["high"]
