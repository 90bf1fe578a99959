"""Figures and claims in sentences are computed from the records, and from nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record
from benchmarks.claims import check_claims, contradictions, fill_figures, unmarked


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite of three rows and two tasks, and a record of something else."""
    accuracies = {"can": ([0.90, 0.92], [0.70, 0.74]), "mcc": ([0.89, 0.91], [0.60, 0.62]), "plain": ([0.5], [0.61])}
    rows: list[Any] = []
    for name, (first, second) in accuracies.items():
        average = [sum(pair) / 2 for pair in zip(first, second, strict=True)]
        last = {"A→W": first, "D→A": second, "Average": average}
        rows.append({"name": name, "last": last, "paper": {"A→W": 94.5, "D→A": 78.0} if name == "can" else {}})
    (tmp_path / "suite-made.json").write_text(json.dumps({"rows": rows, "columns": ["A→W", "D→A", "Average"]}))
    other = {"all": [{"decoding": "eager", "shrunk": 860}], "winner": {"accuracy": 0.5}, "defaults": {"accuracy": 0.52}}
    (tmp_path / "other.json").write_text(json.dumps(other))
    monkeypatch.setattr(record, "RESULTS", tmp_path)


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("mean made:can A→W", "91.0"),
        ("mean made:can A→W+D→A", "81.5"),
        ("spread made:can D→A", "2.8"),
        ("paper made:can A→W", "94.5"),
        ("paper_difference made:can made:can A→W", "+0.0"),
        ("published visda2017 can", "87.2"),
        ("difference made:mcc made:can A→W", "−1.0"),
        ("width D→A made:mcc made:can made:plain", "11.0"),
        ("best made", "`can`"),
        ("best made Average mcc plain", "`mcc`"),
        ("close made A→W", "`mcc`"),
        ("close made D→A", "none"),
        ("below made:can Average", "`mcc` and `plain`"),
        ("below made:mcc D→A", "none"),
        ("value other:all/decoding=eager/shrunk ,", "860"),
        ("value other:winner/accuracy percent", "50.0"),
        ("value other:winner/accuracy points - other:defaults/accuracy", "−2.0"),
    ],
)
def test_figures_are_written_anew(figure: str, expected: str) -> None:
    text = f"It is <!-- figure {figure} -->old<!-- end -->, and <!-- figure mean made:mcc -->old<!-- end -->."
    filled = fill_figures(text)
    assert filled == text.replace("-->old", f"-->{expected}", 1).replace("-->old", "-->75.5", 1)
    assert fill_figures(filled) == filled


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    "claim",
    [
        "made:can > made:mcc > made:plain in Average",
        "made:can > others:made in every column",
        "made:plain < others:made in A→W",
        "made:can >> made:mcc in D→A",
        "made:mcc << made:can in D→A",
        "made:can ~ made:mcc in A→W",
        "made:can < paper:made:can in A→W, D→A",
        "made:can > 90 in A→W",
        "other:all/decoding=eager/shrunk = 860",
        "other:winner/accuracy < other:defaults/accuracy",
    ],
)
def test_claims_that_hold(claim: str) -> None:
    assert contradictions(claim) == []


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    "claim",
    [
        "made:mcc > made:can in Average",
        "made:can > made:plain > made:mcc in Average",  # one of two
        "made:mcc > others:made in Average",
        "made:mcc > made:plain in every column, Average",
        "made:can >> made:mcc in A→W",
        "made:can ~ made:mcc in D→A",
        "made:can > paper:made:can in D→A",
        "other:all/decoding=eager/shrunk = 0",
        "made:can > made:missing in Average",
        "missing:can > made:mcc in Average",
        "other:nothing > 1",
        "made:can beats made:mcc in Average",
        "made:can >",
        "made:can > __import__('os') in Average",
    ],
)
def test_claims_that_do_not_hold_or_make_no_sense(claim: str) -> None:
    (problem,) = check_claims(f"<!-- claim {claim} -->\nSo it is.\n")
    assert problem.startswith(("false: ", "cannot be read: "))


def test_a_figure_may_not_begin_a_line() -> None:
    assert check_claims("The mean is\n<!-- figure mean made:can -->1<!-- end -->.") != []
    assert check_claims("* The mean is\n  <!-- figure mean made:can -->1<!-- end -->.") != []


@pytest.mark.parametrize(
    "sentence",
    [
        "It gains a point and a half over the head.",
        "It has 13 points less.",
        "They agree on 95 % of the samples.",
        "This is twice as fast.",
        "Its score is 0.840 against 0.844.",
        "CAN has the highest average.",
        "Every method is above source-only.",
    ],
)
def test_comparisons_without_a_record_are_found(sentence: str) -> None:
    assert unmarked(f"First words.\n\n{sentence}\n")
    assert not unmarked(f"First words.\n\n<!-- claim a > b -->\n{sentence}\n")
    assert not unmarked(f"```\n{sentence}\n```\n")
    assert unmarked(f"The mean is <!-- figure mean made:can -->1<!-- end -->. {sentence}\n") == [sentence]


def test_sentences_that_only_look_like_it_pass() -> None:
    assert not unmarked("It gains <!-- figure difference made:can made:mcc -->+1.0<!-- end --> points over MCC.")
    assert not unmarked("New layers learn at ten times the rate. Set `--share 95 %`. Check target points on the map.")
