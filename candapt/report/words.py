"""What a page says in words: the verdict, and what each curve is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from candapt.evaluation.scores import SCORES
from candapt.evaluation.selection import LAST
from candapt.report.collect import Run


@dataclass(frozen=True)
class Metric:
    """How a number of `metrics.jsonl` is shown."""

    title: str
    note: str = ""
    percent: bool = False


METRICS = {
    "classification": Metric("Classification loss", "Cross-entropy on the labelled source; it falls as it is learned."),
    "discrepancy": Metric(
        "Discrepancy loss",
        "What pulls the domains together, as it is minimized. CAN's is negative when equal classes are nearer to each "
        "other than different ones.",
    ),
    "cdd": Metric(
        "Contrastive discrepancy (CDD)",
        "Distance of equal classes across the domains minus that of different ones, on a few samples of each class and "
        "with pseudo labels. Lower is better, if the labels are right.",
    ),
    "kept_share": Metric("Kept share", "Target samples near enough to a cluster center to be trained on.", True),
    "kept_change": Metric("Kept otherwise", "Target samples that are kept now and were not, or the reverse.", True),
    "kept_classes": Metric("Kept classes", "Classes with enough such samples to take part."),
    "label_change": Metric("Labels changed", "Pseudo labels that differ from the round before.", True),
    "center_shift": Metric("Centers moved", "How far the cluster centers moved since the round before."),
    "mean_distance": Metric("Distance to center", "Mean cosine distance of target samples to their cluster center."),
}
"""By key; other keys that a method writes are its losses."""
SILENT = {"round", "iteration", "seconds", "learning_rate", "kept_samples", "warmup", "skipped_steps"}
"""Stand in the table of rounds but have no curve."""
CLUSTERS = ("kept_share", "kept_change", "kept_classes", "label_change", "center_shift", "mean_distance")
ACRONYMS = {"adr", "bnm", "can", "dan", "dann", "dev", "jan", "mada", "mcc", "mcd", "snd"}
TITLES = {"class_ami": "ClassAMI"}
SHARES = {
    *("agreement", "confidence", "domain_error", "first_agreement", "kept", "label_change", "neighbors"),
    *("neighbor_information", "source_accuracy", "source_confidence"),
}
"""Scores that are parts of one."""
MAIN_SCORES = ("agreement", "neighbors", "class_ami", "information", "snd", "protocol")
"""Shown at once, beside the one that chose the round; the others are folded away."""
MEASURED = "Accuracy (oracle)"
SCORE = "score_"
ORACLE = "oracle_"


def metric(key: str) -> Metric:
    """How to show a number; a name that is not known speaks for itself."""
    name = key.removeprefix(SCORE)
    title = TITLES.get(name) or (name.upper() if name in ACRONYMS else name.replace("_", " ").strip().capitalize())
    if key.startswith(SCORE) and (score := SCORES.get(name)):
        better = "higher" if score.higher_is_better else "lower"
        return Metric(title, f"{score.meaning[0].upper()}{score.meaning[1:]}; {better} is better.", name in SHARES)
    return METRICS.get(key) or Metric(title)


def is_minor(key: str) -> bool:
    """Whether a number is a score that is folded away."""
    return key.startswith(SCORE) and key.removeprefix(SCORE) not in MAIN_SCORES


def verdict(run: Run) -> str:
    """The run in a sentence or two."""
    counts = len(run.predictions)
    done = f"{title(run.method)} gave each of {counts:,} target samples one of {len(run.classes)} classes."
    measured = "" if run.oracle is None else f" True labels (oracle) say that {run.oracle['accuracy']:.1%} are right."
    return f"{done} {_judgement(run)}{measured}"


def _judgement(run: Run) -> str:
    """What can be said without labels."""
    warnings = run.summary.get("warnings")
    if warnings:
        some = "a warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
        return f"Do not trust the result before you have read {some} below."
    no_alarm = "No alarm was raised" if warnings is not None else ""
    estimate = _number(run.summary.get("estimated_accuracy"), "value")
    if estimate is not None:
        guess = f"an estimated {estimate:.0%} of the predictions are right"
        return f"{no_alarm}, and {guess}." if no_alarm else f"{guess[0].upper()}{guess[1:]}."
    agreement = _number(run.summary, "cluster_agreement")
    agreed = f"Classifier and clusters agree on {agreement:.1%} of them." if agreement is not None else ""
    return " ".join(part for part in (f"{no_alarm}." if no_alarm else "", agreed) if part)


def title(method: str) -> str:
    """A method's name at the head of a sentence.

    >>> title("can-intra"), title("source-only")
    ('CAN-intra', 'Source-only')
    """
    head, *rest = method.split("-")
    return "-".join([head.upper() if head in ACRONYMS else head.capitalize(), *rest])


def facts(run: Run) -> list[tuple[str, str, str]]:
    """The figures on top: name, value, and a remark."""
    told, estimate = run.summary, run.summary.get("estimated_accuracy")
    found: list[tuple[str, str, str]] = []
    if (value := _number(estimate, "value")) is not None:
        assert isinstance(estimate, Mapping)
        low, high = _number(estimate, "low"), _number(estimate, "high")
        between = f"between {low:.0%} and {high:.0%}, without labels" if low is not None and high is not None else ""
        found.append(("Estimated accuracy", f"{value:.0%}", between))
    if run.oracle is not None and (accuracy := _number(run.oracle, "accuracy")) is not None:
        found.append((MEASURED, f"{accuracy:.1%}", "measured with true labels"))
    for name, key, remark in (
        ("Agreement", "cluster_agreement", "of classifier and clusters"),
        ("Mean confidence", "mean_confidence", "of the classifier"),
        ("Kept", "kept_share", "of the target lies close to a center"),
    ):
        if (value := _number(told, key)) is not None:
            found.append((name, f"{value:.1%}", remark))
    ended = "labels and centers had settled" if told.get("stopped") == "settled" else "up to the last one allowed"
    found.append(("Rounds", f"{told.get('rounds', len(run.rounds))}", ended))
    if (seconds := _number(told, "seconds")) is not None:
        found.append(("Time", duration(seconds), "to train"))
    return found


def selection(run: Run) -> str:
    """Which round was kept and why, if the run says so."""
    chosen = run.summary.get("selection")
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("round"), int):
        return ""
    last, kept, score = len(run.rounds), chosen["round"] + 1, str(chosen.get("score", ""))
    if score == LAST:
        return f"The last of {last} rounds was kept; no score was asked."
    told = f"Of {last} rounds, round {kept} was kept: the best one by the label-free score {score.replace('_', ' ')}"
    differing = _number(chosen.get("last"), "differing_predictions")
    if kept == last or differing is None:
        return f"{told}{', which is also the last one' if kept == last else ''}."
    return f"{told}. The last one would have predicted {differing:.1%} of the target otherwise."


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(7.31), duration(75), duration(750), duration(7500)
    ('7.3 s', '1 min 15 s', '12 min', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{minutes // 60} h"


def sureness(confidence: float) -> str:
    """A confidence in percent; it is never rounded to 100%, since no classifier is certain.

    >>> sureness(0.5), sureness(0.99961)
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
    r"""A name as a page can show it: bytes that are no text and control signs replaced, the middle of a long one cut.

    >>> readable("caf\udce9 au\u2028lait"), readable("a-very-long-name.jpg", 12)
    ('caf� au lait', 'a-ver…me.jpg')
    """
    text = "".join(sign if sign.isprintable() else " " if sign.isspace() else "�" for sign in text)
    if length is None or len(text) <= length:
        return text
    kept = length - 1
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"


def _number(told: Any, key: str) -> float | None:
    value = told.get(key) if isinstance(told, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
