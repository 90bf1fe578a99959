"""Which settings are searched, between which limits, and by which scores they can be compared."""

from collections.abc import Collection
from dataclasses import fields, replace

from candapt.errors import UserError
from candapt.evaluation.scores import SCORES, check_score_name
from candapt.settings import Range, Settings, TrainingSettings

DEFAULT_SCORE = "neighbor_information"
"""It compares predictions with features from before training, which no setting touches, and does not reward collapse.
`class_ami` clusters adapted features, and a strong alignment makes these look good, right or wrong: benchmarks/tune.py
was misled by it."""

Values = dict[str, float]  # settings of a trial by flag name


def search_space(settings: Settings, fixed: Collection[str], classes: int) -> dict[str, Range]:
    """The settings to search by flag name, but for the fixed ones; each range holds the value to start from."""
    groups = ((settings.method, type(settings.method_settings)), ("training", TrainingSettings))
    ranges = {f"{group}.{item.name}": item.metadata.get("search") for group, kind in groups for item in fields(kind)}
    space: dict[str, Range] = {}
    for name, limits in ranges.items():
        if limits is None or name in fixed:
            continue
        value = settings.value(name)
        if name.endswith(".classes"):
            if value >= classes:
                continue  # every batch holds all classes, and another value would hardly change that
            limits = replace(limits, low=min(limits.low, value), high=min(limits.high, classes))
        space[name] = limits.including(value)
    return space


def comparable_scores() -> list[str]:
    """Names of the scores that can compare trainings with different settings."""
    return [name for name, score in SCORES.items() if not score.incomparable]


def check_score(name: str, settings: Settings) -> None:
    """Raise a `UserError` for a score that does not exist, or that cannot compare settings."""
    check_score_name(name, "--score", list(SCORES))
    if reason := SCORES[name].incomparable:
        good = ", ".join(comparable_scores())
        raise UserError(f"Settings cannot be compared by {name}, since {reason}: use one of {good}.")
    if SCORES[name].needs_held_out and not settings.training.held_out:
        need = f"To compare settings by {name}, some of the source must be held out of training"
        raise UserError(f"{need}: give --training.held_out 0.1, or another --score.")
