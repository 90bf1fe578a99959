"""Calibrated confidence: its evidence against a slow reference, its properties, and what a model stores of it."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from candapt.evaluation.confidence import (
    EVIDENCE,
    FILE,
    Calibration,
    SampleConfidence,
    calibration,
    class_means,
    log_odds,
    margins,
    whole_domain,
)
from candapt.evaluation.reference import Reference, View
from tests.evaluation.test_reference import CLASSES, LABELS, features

ROWS = torch.arange(len(LABELS))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference.of(features(0), LABELS, features(1, shift=2.0), CLASSES)


@pytest.fixture(scope="module")
def view(reference: Reference) -> View:
    return reference.view(features(1, shift=2.0), ROWS)


def predictions(labels: Tensor = LABELS, sure: float = 0.9) -> Tensor:
    rest = (1 - sure) / (CLASSES - 1)
    return torch.eye(CLASSES)[labels] * (sure - rest) + rest


def odds(share: float, edge: float = 0.02) -> float:
    share = min(max(share, edge), 1 - edge)
    return math.log(share / (1 - share))


def test_evidence_against_one_sample_at_a_time(reference: Reference, view: View) -> None:
    predicted = LABELS.clone()
    predicted[::7] = (predicted[::7] + 1) % CLASSES
    evidence, _ = whole_domain(reference, view, predictions(predicted))
    near = [[int(reference.target_rows[place]) for place in row] for row in view.target_neighbors]
    for row in range(len(LABELS)):
        own = int(predicted[row])
        same = sum(int(predicted[other]) == own for other in near[row]) / len(near[row])
        around = sum(float(view.classifier[other, own]) for other in near[row]) / len(near[row])
        alike = [other for other in range(len(LABELS)) if predicted[other] == own]
        agreeing = sum(int(view.classifier[other].argmax()) == own for other in alike)
        overall = sum(int(view.classifier[o].argmax()) == predicted[o] for o in range(len(LABELS))) / len(LABELS)
        expected = {
            "neighbors": same,
            "source_neighbors": float((view.source_neighbors[row] == own).float().mean()),
            "classifier": float(view.classifier[row, own]),
            "neighbor_classifier": around,
            "clusters": float(view.clusters[row] == own),
            "softmax": odds(0.9, 1e-4),
            "class_agreement": odds((agreeing + 3 * float(overall)) / (len(alike) + 3)),
        }
        for name, value in expected.items():
            assert float(evidence[name][row]) == pytest.approx(value, abs=1e-4), name
    assert evidence["target_density"].tolist() == pytest.approx([math.log10(60 / CLASSES)] * len(LABELS))
    assert evidence["source_density"].tolist() == pytest.approx([math.log10(60 / CLASSES)] * len(LABELS))
    mean = float(evidence["neighbor_classifier"].mean())
    assert evidence["all_neighbor_classifier"].tolist() == pytest.approx([odds(mean)] * len(LABELS), abs=1e-4)
    assert evidence.keys() == EVIDENCE.keys() - {"class_confidence"}


@pytest.mark.parametrize("kind", ["pretrained", "scratch"])
def test_right_predictions_are_surer_than_wrong_ones(reference: Reference, view: View, kind: str) -> None:
    predicted = LABELS.clone()
    wrong = torch.zeros(len(LABELS), dtype=torch.bool)
    wrong[::9] = True
    predicted[wrong] = (predicted[wrong] + 1) % CLASSES
    weights = calibration(kind, "domain")  # type: ignore[arg-type]
    confidence = weights.confidence(whole_domain(reference, view, predictions(predicted))[0])
    assert confidence[~wrong].min() > confidence[wrong].max()


def test_nothing_is_extrapolated() -> None:
    weights = Calibration(0.5, {"neighbors": 2.0}, {"neighbors": (0.2, 0.8)})
    values = weights.confidence({"neighbors": torch.tensor([-5.0, 0.2, 0.5, 0.8, 7.0])})
    assert values.tolist() == pytest.approx([1 / (1 + math.exp(-0.5 - 2 * v)) for v in (0.2, 0.2, 0.5, 0.8, 0.8)])


def test_class_means_are_drawn_to_the_mean_of_all() -> None:
    values, labels = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 2])
    assert class_means(values, labels, 3).tolist() == pytest.approx([3 / 5, 2 / 3, 3 / 4])


def test_log_odds_are_finite() -> None:
    assert log_odds(torch.tensor([0.0, 0.5, 1.0])).tolist() == pytest.approx([odds(0), 0, odds(1)])


def test_what_is_shipped_is_complete() -> None:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    assert {kind: set(each) for kind, each in content.items()} == {
        "pretrained": {"domain", "sample", "class", "margins"},
        "scratch": {"domain", "class", "margins"},
    }
    for kind, each in content.items():
        assert all(0 < each["margins"][name] < 0.5 for name in ("good", "doubtful"))
        assert margins()[kind] == each["margins"]
        for weights in (each[scope] for scope in each if scope != "margins"):
            assert weights["weights"].keys() == weights["ranges"].keys() <= EVIDENCE.keys()


class TestSamples:
    @pytest.fixture
    def stored(self, reference: Reference, view: View) -> SampleConfidence:
        evidence, means = whole_domain(reference, view, predictions())
        confidence = calibration("pretrained", "domain").confidence(evidence)
        small = reference.reduced(40)
        by_class = class_means(confidence, LABELS, CLASSES)
        return SampleConfidence("pretrained", by_class, small, LABELS[small.target_rows], means)

    def test_one_sample_or_many(self, stored: SampleConfidence) -> None:
        new, p = features(2, shift=2.0), predictions()
        together = stored.of(p, new)
        one_by_one = torch.cat([stored.of(p[row : row + 1], new[row : row + 1]) for row in range(len(new))])
        assert torch.allclose(together, one_by_one, atol=1e-5)

    def test_wrong_predictions_are_less_sure(self, stored: SampleConfidence) -> None:
        new = features(2, shift=2.0)
        assert (stored.of(predictions(), new) > stored.of(predictions((LABELS + 1) % CLASSES), new)).all()

    def test_without_features_class_and_softmax_decide(self, stored: SampleConfidence) -> None:
        plain = SampleConfidence("pretrained", torch.tensor([0.9, 0.5, 0.5, 0.1]))
        assert not plain.needs_features
        values = plain.of(predictions())
        assert values[0] > values[1] == values[2] > values[3]
        assert (plain.of(predictions(sure=0.99)) > values).all()

    def test_it_survives_storing(self, stored: SampleConfidence) -> None:
        again = SampleConfidence.from_tensors("pretrained", stored.tensors())
        again.check(CLASSES, features(0).shape[1])
        assert torch.equal(again.of(predictions(), features(2)), stored.of(predictions(), features(2)))
        plain = SampleConfidence.from_tensors("scratch", {"class_confidence": torch.ones(CLASSES)})
        plain.check(CLASSES, 99)
        assert plain.reference is None

    def test_what_does_not_fit_is_refused(self, stored: SampleConfidence) -> None:
        width = features(0).shape[1]
        assert stored.reference is not None
        with pytest.raises(ValueError, match=r"reference\.shift has shape"):
            stored.check(CLASSES, width + 1)
        with pytest.raises(ValueError, match="class_confidence has shape"):
            stored.check(CLASSES + 1, width)
        strange = replace(stored, bank_labels=torch.full_like(LABELS[:20], CLASSES))
        with pytest.raises(ValueError, match="not one of the classes"):
            strange.check(CLASSES, width)
        unlikely = replace(stored, bank_unknown=torch.full((20,), 1.5))
        with pytest.raises(ValueError, match="no probabilities"):
            unlikely.check(CLASSES, width)
        empty = replace(stored, reference=replace(stored.reference, source=torch.zeros(0, width)))
        with pytest.raises(ValueError, match="banks hold"):
            empty.check(CLASSES, width)
