"""What answers measure: the last one of each sample, never one that steered, never one that nobody could give."""

from pathlib import Path

import pytest

from candapt.errors import UserError
from candapt.review.answers import Answer
from candapt.review.interval import Stratum, accuracy_interval
from candapt.review.measurement import known_samples, measure_answers, percent
from candapt.review.sampling import Population, Sample

SAMPLES = tuple(Sample(f"{row}.jpg", "cat" if row % 2 else "dog", row / 200) for row in range(200))
TARGET = Population(SAMPLES)


def answer(row: int, verdict: str = "right", **changes: str) -> Answer:
    sample = SAMPLES[row]
    label = {"right": sample.prediction, "wrong": "emu"}.get(verdict)
    values = {"path": sample.name, "answer": verdict, "label": label, "prediction": sample.prediction}
    return Answer(**{**values, **changes})  # type: ignore[arg-type]


def answers(right: range, wrong: range, **changes: str) -> list[Answer]:
    return [*(answer(row, **changes) for row in right), *(answer(row, "wrong", **changes) for row in wrong)]


def test_a_plain_sample() -> None:
    measured = measure_answers(TARGET, answers(range(46), range(46, 50)))
    assert measured.interval == accuracy_interval([Stratum(200, 50, 46)])
    assert (measured.judged, measured.right, measured.stratify) == (50, 46, "none")
    assert measured.sentence == "92% right, between 82% and 97% (95% interval), by 50 answers."


def test_a_sample_by_confidence_is_read_by_its_quarters() -> None:
    wrong = range(10)  # the least sure are wrong
    right = [row for first in (10, 50, 100, 150) for row in range(first, first + (5 if first == 10 else 15))]
    given = [*(answer(row, "wrong", stratify="confidence") for row in wrong)]
    given += [answer(row, stratify="confidence") for row in right]
    measured = measure_answers(TARGET, given)
    assert measured.stratify == "confidence"
    strata = [Stratum(50, 15, 5), *[Stratum(50, 15, 15)] * 3]
    assert measured.interval == accuracy_interval(strata)
    plain = measure_answers(TARGET, [Answer(**{**vars(each), "stratify": "none"}) for each in given])
    assert plain.interval is not None
    assert measured.interval.high - measured.interval.low < plain.interval.high - plain.interval.low


def test_strata_with_few_answers_are_joined() -> None:
    measured = measure_answers(TARGET, answers(range(0, 200, 14), range(1, 3), stratify="confidence"))
    assert measured.judged == 17
    assert measured.interval == accuracy_interval([Stratum(200, 17, 15)])


def test_cannot_say_and_none_of_the_classes() -> None:
    given = [*answers(range(8), range(0)), answer(20, "unsure"), answer(21, "unsure"), answer(22, "other")]
    measured = measure_answers(TARGET, given)
    assert (measured.judged, measured.right, measured.unsure) == (9, 8, 2)
    assert measured.remarks == ["2 answers “cannot say”: left out of the accuracy."]


def test_labels_that_steered_never_count() -> None:
    steered = Population(SAMPLES, frozenset({"0.jpg", "1.jpg", "60.jpg"}))
    measured = measure_answers(steered, answers(range(20), range(20, 25)))
    assert (measured.size, measured.judged, measured.right, measured.steered) == (197, 23, 18, 2)
    assert measured.interval == accuracy_interval([Stratum(197, 23, 18)])
    assert "steered the training" in measured.remarks[0]


def test_answers_for_other_samples_are_counted_apart() -> None:
    measured = measure_answers(TARGET, [answer(0), Answer("gone.jpg", "right", "cat", "cat")])
    assert (measured.judged, measured.elsewhere) == (1, 1)


def test_without_answers() -> None:
    measured = measure_answers(TARGET, [answer(0, "unsure")])
    assert measured.interval is None
    assert measured.sentence == "No prediction has been judged yet."
    assert measured.describe()["interval"] is None


def test_classes_with_enough_answers() -> None:
    given = [*answers(range(0, 40, 2), range(40, 48, 2)), *answers(range(1, 19, 2), range(0))]
    (dogs,) = measure_answers(TARGET, given).classes  # there are nine answers for cats
    assert (dogs.name, dogs.size, dogs.judged, dogs.right) == ("dog", 100, 24, 20)
    assert dogs.interval == accuracy_interval([Stratum(100, 24, 20)])


class TestKnown:
    def test_the_file_of_the_run(self, tmp_path: Path) -> None:
        assert known_samples(tmp_path, {}) == frozenset()
        (tmp_path / "known_labels.csv").write_text("path,label,answer\na.jpg,cat,right\nb.jpg,,unsure\n")
        for config in ({}, {"known_labels": "/nowhere.csv"}):
            assert known_samples(tmp_path, config, outside=False) == {"a.jpg"}

    def test_the_file_that_the_configuration_names(self, tmp_path: Path) -> None:
        (tmp_path / "k.csv").write_text("label,path\ncat,a.jpg\n")
        (tmp_path / "run").mkdir()
        config = {"known_labels": str(tmp_path / "k.csv")}
        assert known_samples(tmp_path / "run", config) == {"a.jpg"}
        with pytest.raises(UserError, match="put them into its folder"):
            known_samples(tmp_path / "run", config, outside=False)

    @pytest.mark.parametrize("text", ["", "path\na.jpg\n", "\0,label,path\n" + "x" * 200_000])
    def test_if_they_cannot_be_read_nothing_is_measured(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "known_labels.csv").write_text(text)
        with pytest.raises(UserError, match="so that none of them is counted"):
            known_samples(tmp_path, {})
        with pytest.raises(UserError, match="cannot be read"):
            known_samples(tmp_path / "run", {"known_labels": "/nowhere.csv"})


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (1, "100%"), (0.924, "92%"), (0.996, "99.6%"), (0.0001, "<0.1%"), (0.9999, ">99.9%"), (0.004, "0.4%")],
)
def test_percents(share: float, text: str) -> None:
    assert percent(share) == text
