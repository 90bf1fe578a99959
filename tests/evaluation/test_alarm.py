"""The alarm: its facts in plain cases, and what it says to them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from candapt.evaluation import alarm
from candapt.evaluation.alarm import Facts, Outcome, gather_facts, notes_from, warnings_from
from candapt.evaluation.confidence import calibration, whole_domain
from candapt.evaluation.reference import Reference, View
from candapt.randomness import generator

CLASSES, EACH, WIDTH = 10, 20, 40
GOOD = Facts(
    consistency=0.9,
    missing=0.05,
    resemblance=(0.65, 0.7),
    spread=(0.95, 0.97),
    clustered=(0.9, 0.8),
    expected=(0.9, 0.8),
    same=0.8,
)


def kinds(facts: Facts) -> list[str]:
    return [finding.kind for finding in warnings_from(facts)]


def domain(seed: int, labels: Tensor, *, other: bool = False) -> Tensor:
    """Features of classes that are the same in every domain, or of others."""
    centers = torch.randn(CLASSES, WIDTH, generator=generator("other" if other else "centers"))
    return centers[labels] + 0.3 * torch.randn(len(labels), WIDTH, generator=generator(seed)) + seed


def outcome(labels: Tensor, *, sure: float = 0.9, seen: tuple[Reference, View] | None = None) -> Outcome:
    rest = (1 - sure) / (CLASSES - 1)
    probabilities = one_hot(labels, CLASSES) * (sure - rest) + rest
    confidence = torch.ones(len(labels))
    if seen is not None:
        confidence = calibration("pretrained", "domain").confidence(whole_domain(*seen, probabilities)[0])
    return Outcome(probabilities, labels, confidence)


SOURCE = torch.arange(CLASSES).repeat(EACH)


def facts_of(target_labels: Tensor, predicted: Tensor, *, source: Tensor = SOURCE, other: bool = False) -> Facts:
    target = domain(1, target_labels, other=other)
    reference = Reference.of(domain(0, SOURCE), source, target, CLASSES)
    view = reference.view(target, torch.arange(len(target)))
    both = outcome(predicted, seen=(reference, view))
    return gather_facts(both, both, reference, view)


class TestSentences:
    def test_a_good_run_is_met_with_silence(self) -> None:
        assert not warnings_from(GOOD)

    @pytest.mark.parametrize(
        ("change", "kind"),
        [
            ({"resemblance": (0.2, 0.45)}, "other classes"),
            ({"missing": 0.5}, "missing classes"),
            ({"spread": (0.2, 0.9)}, "collapse"),
            ({"clustered": (0.4, 0.42)}, "no clusters"),
            ({"expected": (0.45, 0.4)}, "low accuracy"),
            ({"expected": (0.7, 0.71)}, "negative transfer"),
        ],
    )
    def test_each_sign_has_its_sentence(self, change: dict[str, float], kind: str) -> None:
        (finding,) = warnings_from(replace(GOOD, **change))  # type: ignore[arg-type]
        assert finding.kind == kind
        assert finding.sentence.endswith(".")
        assert finding.describe() == {"kind": kind, "sentence": finding.sentence}

    def test_labels_that_contradict_the_features_are_a_note(self) -> None:
        doubtful = replace(GOOD, consistency=0.47)
        assert not warnings_from(doubtful)
        (note,) = notes_from(doubtful)
        assert note.kind == "inconsistent labels"
        assert "47%" in note.sentence
        assert "features do not tell the classes apart" in note.sentence  # weak features do it too
        assert not notes_from(GOOD)


class TestFacts:
    def test_the_same_classes(self) -> None:
        facts = facts_of(SOURCE, SOURCE)
        assert facts.consistency == facts.same == 1
        assert facts.missing == 0
        assert facts.resemblance[0] > 0.9
        assert facts.spread == pytest.approx((1, 1))
        assert not kinds(facts)

    def test_other_classes(self) -> None:
        assert "low accuracy" in kinds(facts_of(SOURCE, SOURCE, other=True))

    def test_half_of_the_classes(self) -> None:
        few = SOURCE % (CLASSES // 2)
        assert "missing classes" in kinds(facts_of(few, few))

    def test_labels_of_half_of_the_source_permuted(self) -> None:
        mixed = SOURCE.clone()
        mixed[::2] = mixed[::2][torch.randperm(len(mixed[::2]), generator=generator(0))]
        (note,) = notes_from(facts_of(SOURCE, SOURCE, source=mixed))
        assert note.kind == "inconsistent labels"

    def test_predictions_of_one_class(self) -> None:
        assert "collapse" in kinds(facts_of(SOURCE, torch.zeros_like(SOURCE)))


class TestParts:
    def test_shares_of_classes_are_found_in_unsure_predictions(self) -> None:
        """Half of the classes are absent, but each prediction leaves a third to others."""
        shares = alarm.target_shares(outcome(SOURCE % 5, sure=0.66).probabilities.double(), torch.full((10,), 0.1))
        assert shares[:5].tolist() == pytest.approx([0.2] * 5, abs=0.01)
        assert shares[5:].sum() < 0.01

    def test_classes_that_the_source_lacks_are_not_missing(self) -> None:
        prior = torch.tensor([0.5, 0.5, 0.0])
        assert alarm.missing_classes(torch.tensor([0.6, 0.4, 0.0]), prior) == 0
        assert alarm.missing_classes(torch.tensor([0.99, 0.01, 0.0]), prior) == 0.5

    def test_effective_number(self) -> None:
        assert alarm.effective_number(torch.full((8,), 0.125)) == pytest.approx(8)
        assert alarm.effective_number(torch.tensor([1.0, 0, 0])) == pytest.approx(1)

    def test_resemblance_without_common_classes(self) -> None:
        assert alarm.resemblance(torch.eye(2), torch.zeros(2, 2)) == 0

    def test_tiny_domains(self) -> None:
        reference = Reference.of(torch.rand(2, 3), torch.tensor([0, 1]), torch.rand(2, 3), CLASSES)
        view = reference.view(torch.rand(2, 3), torch.arange(2))
        both = outcome(torch.tensor([0, 1]), seen=(reference, view))
        assert isinstance(warnings_from(gather_facts(both, both, reference, view)), list)
