"""The text of the pages: the verdict, the figures on top, and the title and note of every curve."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from candapt.console import duration
from candapt.evaluation.scores import SCORES
from candapt.methods import METHODS
from candapt.model import UNKNOWN
from candapt.report.run_data import Prediction, Run
from candapt.review.interval import LEVEL
from candapt.review.measurement import percent, plural
from candapt.settings import LAST


@dataclass(frozen=True)
class Metric:
    """How a page shows a number of `metrics.jsonl`."""

    title: str
    note: str = ""
    percent: bool = False


METRICS = {
    "classification": Metric("Classification loss", "Cross-entropy on the labeled source."),
    "discrepancy": Metric(
        "Discrepancy loss",
        "The loss that aligns the domains. CAN's is negative when samples of the same class are closer to each other "
        "than those of different classes.",
    ),
    "cdd": Metric(
        "Contrastive discrepancy (CDD)",
        "Distance between the domains within a class minus that between classes, on a few samples per class and with "
        "pseudo labels. Lower is better, if the pseudo labels are right.",
    ),
    "kept_share": Metric("Kept share", "Target samples close enough to a cluster center to be trained on.", True),
    "kept_change": Metric("Change in kept samples", "Target samples kept now but not before, or vice versa.", True),
    "kept_classes": Metric("Kept classes", "Classes with enough such samples to take part."),
    "label_change": Metric("Label change", "Pseudo labels that differ from the round before.", True),
    "center_shift": Metric("Center shift", "Mean cosine distance of the cluster centers to those of the round before."),
    "mean_distance": Metric("Distance to center", "Mean cosine distance of target samples to their cluster center."),
}  # by key; other keys that a method writes are its losses
WITHOUT_CURVE = {"round", "iteration", "seconds", "learning_rate", "kept_samples", "warmup", "skipped_steps"}
CLUSTERS = ("kept_share", "kept_change", "kept_classes", "label_change", "center_shift", "mean_distance")
MAIN_SCORES = ("neighbor_information", "agreement", "class_ami")  # the others, but for the one that chose, are folded
MEASURED = "Accuracy (oracle)"
REVIEWED = "Measured by review"
ANSWERS = 50  # of a review, in two minutes of work
COVERAGES = (0.25, 0.5, 0.75, 0.9, 1.0)  # shares of the predictions, the surest first, whose accuracy is shown
USABLE = 0.95  # expected accuracy at which predictions are called usable without a check
SCORE, ORACLE = "score_", "oracle_"  # how the keys of scores begin, and those of figures that need true labels


def metric(key: str) -> Metric:
    """How to show the number of a key; an unknown one is shown under its own name."""
    name = key.removeprefix(SCORE)
    if key.startswith(SCORE) and (score := SCORES.get(name)):
        better = "higher" if score.higher_is_better else "lower"
        note = f"{score.meaning[0].upper()}{score.meaning[1:]}; {better} is better."
        return Metric(score.title, note, score.is_share)
    return METRICS.get(key) or Metric(name.replace("_", " ").strip().capitalize())


def is_minor(key: str) -> bool:
    """Whether a number is a score that is shown folded."""
    return key.startswith(SCORE) and key.removeprefix(SCORE) not in MAIN_SCORES


def verdict(run: Run) -> str:
    """The outcome of a run in two or three sentences."""
    count, unknown = f"{len(run.predictions):,}", called_unknown(run)
    some = f"{len(run.predictions) - unknown:,} of {count}" if unknown else f"each of {count}"
    others = f", and called the other {unknown:,} unknown" if unknown else ""
    done = f"{title(run.method)} assigned {some} target samples to one of {len(run.classes)} classes{others}."
    return f"{done} {_judgement(run)}{_reviewed(run)}{_measured(run)}"


def _measured(run: Run) -> str:
    """The accuracy by true labels; empty without them."""
    if not run.oracle:
        return ""
    left_out = run.oracle.get("left_out")
    of = f" of the {run.oracle['samples']:,} samples whose true class is one of these" if left_out else ""
    return f" By the true labels (oracle), {run.oracle['accuracy']:.1%}{of} are right."


def called_unknown(run: Run) -> int:
    """How many samples have `unknown` in place of a class."""
    return 0 if UNKNOWN in run.classes else sum(1 for each in run.predictions if each.label == UNKNOWN)


def _reviewed(run: Run) -> str:
    """The accuracy that a review measured; empty without one."""
    if run.measured is None or run.measured.interval is None:
        return ""
    value, low, high = map(percent, run.measured.interval)
    answers = plural(run.measured.judged, "answer")
    return f" Measured by review, {value} are right, between {low} and {high} ({LEVEL:.0%} interval, {answers})."


def _judgement(run: Run) -> str:
    """How far the result can be trusted, judged without labels."""
    warnings = run.summary.get("warnings")
    if warnings:
        some = "a warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
        return f"Do not trust the result before you have read {some} below."
    no_alarm = "No warning was raised" if warnings is not None else ""
    if (estimate := _number(run.section("estimated_accuracy"), "value")) is not None:
        guess = f"an estimated {estimate:.0%} of the predictions are right"
        return f"{no_alarm}, and {guess}." if no_alarm else f"{guess[0].upper()}{guess[1:]}."
    sentences = [f"{no_alarm}."] if no_alarm else []
    if (agreement := _number(run.summary, "cluster_agreement")) is not None:
        sentences.append(f"Classifier and clusters agree on {agreement:.1%} of them.")
    return " ".join(sentences)


def title(method: str) -> str:
    """A method's name for use in a sentence.

    >>> title("can-intra"), title("source-only"), title("unknown-method")
    ('CAN-intra', 'Source-only', 'Unknown-method')
    """
    return METHODS[method].title if method in METHODS else method.capitalize()


def facts(run: Run) -> list[tuple[str, str, str]]:
    """The figures at the top of a page: name, value and remark."""
    summary, estimate = run.summary, run.section("estimated_accuracy")
    rows: list[tuple[str, str, str]] = []
    if (value := _number(estimate, "value")) is not None:
        low, high = _number(estimate, "low"), _number(estimate, "high")
        between = f"between {low:.0%} and {high:.0%}, without labels" if low is not None and high is not None else ""
        rows.append(("Estimated accuracy", f"{value:.0%}", between))
    if (measured := run.measured) is not None and measured.interval is not None:
        low, high = measured.interval.low, measured.interval.high
        remark = f"between {percent(low)} and {percent(high)}, {plural(measured.judged, 'answer')}"
        rows.append((REVIEWED, percent(measured.interval.value), remark))
    if (accuracy := _number(run.oracle, "accuracy")) is not None:
        rows.append((MEASURED, f"{accuracy:.1%}", "measured with true labels"))
    for name, key, remark in (
        ("Agreement", "cluster_agreement", "of classifier and clusters"),
        ("Kept", "kept_share", "of the target is close to a center"),
    ):
        if (value := _number(summary, key)) is not None:
            rows.append((name, f"{value:.1%}", remark))
    ended = "until labels and centers settled" if summary.get("stopped") == "settled" else "the maximum"
    rows.append(("Rounds", f"{summary.get('rounds', len(run.rounds))}", ended))
    if (seconds := _number(summary, "seconds")) is not None:
        rows.append(("Time", duration(seconds), "to train"))
    return rows


def counted(run: Run) -> list[Prediction]:
    """The predictions that may count in an accuracy: all but those whose known labels steered the training."""
    known = known_labels(run)
    return [each for each in run.predictions if each.name not in known]


def known_labels(run: Run) -> dict[str, str]:
    """The class of each target sample whose label the user gave to steer the training."""
    pairs = run.section("data").get("known_labels")
    return {str(name): str(label) for name, label in pairs} if isinstance(pairs, list) else {}


def coverage(run: Run) -> list[tuple[str, str, str]]:
    """How many of the surest predictions are expected to be right: share, number and expected accuracy of each row.

    Empty if the run's confidence is not calibrated.
    """
    if _number(run.section("estimated_accuracy"), "value") is None or "mean_softmax" not in run.summary:
        return []
    if not (expected := expected_accuracies(run)):
        return []
    rows = []
    for share in COVERAGES:
        count = max(1, round(share * len(expected)))
        rows.append((f"{share:.0%}", number(count), f"{expected[count - 1]:.1%}"))
    return rows


def expected_accuracies(run: Run) -> list[float]:
    """Mean confidence of the surest prediction, of the surest two, and so on to all."""
    surest_first = sorted((each.confidence for each in counted(run)), reverse=True)
    return [total / count for count, total in enumerate(accumulate(surest_first), 1)]


def what_to_check(run: Run) -> str:
    """Which predictions can be used and which to check first, in a sentence; empty without calibrated confidence."""
    if not coverage(run):
        return ""
    expected = expected_accuracies(run)
    usable = sum(1 for each in expected if each >= USABLE)  # they fall from the surest on
    rest, total = len(expected) - usable, len(expected)
    if not rest:
        others = " without a known label" if known_labels(run) else ""
        return f"All {total:,} predictions{others} together are expected to be at least {USABLE:.0%} right: use them."
    if not usable:
        return f"No part of the predictions is expected to be {USABLE:.0%} right: check them before you use them."
    sure = f"The {usable:,} surest predictions are expected to be {USABLE:.0%} right together"
    return f"{sure}: use these, and check the other {rest:,} first."


def next_steps(run: Run) -> list[tuple[str, str]]:
    """What to do next: sentences, each with a command to type or an empty text."""
    folder, steps = shlex.quote(readable(str(run.folder))), []
    if count := len(run.summary.get("warnings") or []):
        steps.append(
            (f"Read the {'warning' if count == 1 else f'{count} warnings'} above before you use anything.", "")
        )
    if run.measured is None or run.measured.judged < ANSWERS:
        more = f" You have {plural(run.measured.judged, 'answer')} so far." if run.measured else ""
        sentence = f"Measure how good it is here: judge {ANSWERS} random predictions, two minutes of work.{more}"
        steps.append((sentence, f"candapt review {folder}"))
    elif conflict := _conflict(run):
        steps.append((conflict, ""))
    if advice := what_to_check(run):
        steps.append((advice, ""))
    steps.append(("Check the samples below by hand, the least sure ones first.", ""))
    steps.append(("Predict new samples.", f"candapt predict {folder} NEW --out new.csv"))
    return steps


def _conflict(run: Run) -> str:
    """That a review contradicts the label-free estimate; empty if it does not."""
    estimate = _number(run.section("estimated_accuracy"), "value")
    interval = run.measured.interval if run.measured else None
    if estimate is None or interval is None or interval.low <= estimate <= interval.high:
        return ""
    height = "high" if estimate > interval.high else "low"
    return f"Go by the review: it shows that the estimate without labels, {estimate:.0%}, is too {height}."


def selection(run: Run) -> str:
    """Which round was kept and why; empty if the run does not record it."""
    chosen = run.section("selection")
    if not isinstance(chosen.get("round"), int):
        return ""
    last, kept, score = len(run.rounds), chosen["round"] + 1, str(chosen.get("score", ""))
    if score == LAST:
        return f"The last of {last} rounds was kept; no score was used."
    name = score.replace("_", " ")
    sentence = f"Of {last} rounds, round {kept} was kept: the best one by the label-free score {name}"
    differing = _number(chosen.get("last"), "differing_predictions")
    if kept == last or differing is None:
        return f"{sentence}{', which is also the last one' if kept == last else ''}."
    return f"{sentence}. The last one predicts another class for {differing:.1%} of the target."


def format_confidence(confidence: float) -> str:
    """A confidence in percent, never rounded to 100%, since no classifier is certain.

    >>> format_confidence(0.5), format_confidence(0.99961)
    ('50.0%', '>99.9%')
    """
    return ">99.9%" if confidence >= 0.9995 else f"{confidence:.1%}"


def number(value: Any) -> str:
    """A number as a table shows it.

    >>> number(0.123456), number(1797), number(None), number(0.00001)
    ('0.1235', '1,797', '', '1e-05')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if math.isfinite(value) else "not a number"


def readable(text: str, length: int | None = None) -> str:
    r"""A name as a page can show it: invalid bytes and control characters replaced, the middle of a long one cut.

    >>> readable("caf\udce9 au\u2028lait"), readable("a-very-long-name.jpg", 12)
    ('caf� au lait', 'a-ver…me.jpg')
    """
    text = "".join(sign if sign.isprintable() else " " if sign.isspace() else "�" for sign in text)
    if length is None or len(text) <= length:
        return text
    return f"{text[: (length - 1) // 2]}…{text[len(text) - length // 2 :]}"


def _number(mapping: Any, key: str) -> float | None:
    value = mapping.get(key) if isinstance(mapping, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
