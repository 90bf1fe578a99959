"""What a page says of the surest predictions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from candapt.report import text
from candapt.report.run_data import Prediction, Run
from candapt.report.run_page import class_table
from candapt.report.samples import hand_checks


def run_with(confidences: list[float], **summary: Any) -> Run:
    predictions = tuple(Prediction(str(row), "cat", value) for row, value in enumerate(confidences))
    known = {"method": "can", "mean_softmax": 0.99, "estimated_accuracy": {"value": 0.7}}
    return Run(Path(), {}, {**known, **summary}, [], ("cat", "dog"), (3,), predictions, None)


def test_the_surest_predictions_come_first() -> None:
    run = run_with([0.2, 1.0, 0.6, 0.8])
    assert text.expected_accuracies(run) == pytest.approx([1.0, 0.9, 0.8, 0.65])
    assert text.coverage(run) == [
        ("25%", "1", "100.0%"),
        ("50%", "2", "90.0%"),
        ("75%", "3", "80.0%"),
        ("90%", "4", "65.0%"),
        ("100%", "4", "65.0%"),
    ]


@pytest.mark.parametrize(
    ("confidences", "sentence"),
    [
        ([0.99] * 1200, "All 1,200 predictions together are expected to be at least 95% right: use them."),
        ([0.5] * 3, "No part of the predictions is expected to be 95% right: check them before you use them."),
        (
            [1.0, 0.5, 0.98, 0.4],
            "The 2 surest predictions are expected to be 95% right together: use these, and check the other 2 first.",
        ),
    ],
)
def test_what_to_use_and_what_to_check(confidences: list[float], sentence: str) -> None:
    assert text.what_to_check(run_with(confidences)) == sentence


def test_nothing_is_promised_without_calibrated_confidence() -> None:
    for run in (run_with([0.9], estimated_accuracy=None), run_with([0.9], estimated_accuracy="x")):
        assert text.coverage(run) == []
        assert text.what_to_check(run) == ""


def test_samples_with_known_labels_count_in_no_accuracy() -> None:
    run = run_with([0.2, 1.0, 0.6, 0.98], data={"known_labels": [["0", "cat"], ["2", "dog"]]})
    assert text.expected_accuracies(run) == pytest.approx([1.0, 0.99])
    assert text.coverage(run)[-1] == ("100%", "2", "99.0%")
    assert text.what_to_check(run).startswith("All 2 predictions without a known label together")
    assert [each.name for each in hand_checks(run)[0].samples] == ["3", "1"]
    everything = run_with([0.2], data={"known_labels": [["0", "cat"]]})
    assert text.coverage(everything) == []
    assert text.what_to_check(everything) == ""


def test_the_verdict_counts_what_is_called_unknown() -> None:
    run = run_with([0.9] * 5)
    assert text.verdict(run).startswith("CAN assigned each of 5 target samples to one of 2 classes.")
    named = replace(run, predictions=(*run.predictions, Prediction("5", "unknown", 0.1)))
    assert text.verdict(named).startswith(
        "CAN assigned 5 of 6 target samples to one of 2 classes, and called the other 1"
    )
    assert class_table(named).rows[-1] == ("unknown", "1", "16.7%", "", "")
    assert class_table(run).rows[-1][0] == "dog"
