"""Which samples a page shows: those to check by hand, and the surest and least sure ones of each class."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from candapt.report.run_data import Prediction, Run
from candapt.report.text import counted

TO_CHECK = 24  # maximum number of samples in one list of those to check by hand
OF_CLASS = 4  # maximum number of surest samples of a class, and of least sure ones
GALLERY = 256  # maximum number of samples of all classes, if that leaves two for each


class HandCheck(NamedTuple):
    """Samples to check by hand for one reason."""

    title: str
    note: str
    samples: Sequence[Prediction]


class ClassSamples(NamedTuple):
    """Some of the samples that were predicted as one class."""

    surest: Sequence[Prediction]
    unsure: Sequence[Prediction]  # the least sure one first; none that is among the surest


def hand_checks(run: Run) -> list[HandCheck]:
    """Lists of samples to check by hand, the most urgent list first; a person knows the given labels already."""
    unsure = ranked(counted(run))[::-1][:TO_CHECK]
    note = "The predictions that are least likely to be right."
    return [HandCheck("Least sure", note, unsure)]


def class_samples(predictions: Sequence[Prediction]) -> dict[str, ClassSamples]:
    """The surest and least sure samples of each class that was predicted."""
    grouped: defaultdict[str, list[Prediction]] = defaultdict(list)
    for each in ranked(predictions):
        grouped[each.label].append(each)
    most = max(1, min(OF_CLASS, GALLERY // (2 * max(1, len(grouped)))))
    return {
        label: ClassSamples(samples[:most], samples[most:][::-1][:most]) for label, samples in sorted(grouped.items())
    }


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The predictions, the surest first."""
    return sorted(predictions, key=lambda each: -each.confidence)
