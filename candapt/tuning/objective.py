"""By which scores settings can be compared."""

from candapt.errors import UserError
from candapt.evaluation.scores import SCORES
from candapt.settings import Settings

DEFAULT = "neighbor_information"
"""It compares predictions with features from before training, which no setting touches, and does not reward collapse.
`class_ami` clusters adapted features, and a strong alignment makes these look good, right or wrong: benchmarks/tune.py
was misled by it."""

INCOMPARABLE = {
    "kept": "settings that are searched decide how much is kept",
    "label_change": "a low learning rate makes it small, whatever the labels are",
    "distance": "a high weight of the alignment makes it small, whatever the clusters are",
    "entropy": "a high learning rate makes any prediction sure, right or wrong",
    "confidence": "a high learning rate makes any prediction sure, right or wrong",
    "source_confidence": "a high learning rate makes any prediction sure, right or wrong",
    "first_agreement": "a training that changes little does best",
}
"""Scores that tell rounds of a training apart, but not trainings with other settings, and why."""

OF_SOURCE = ("source_accuracy", "dev", "protocol")
"""Scores that need source samples which were not trained on: learning these by heart is a matter of settings too."""


def check_score(name: str, settings: Settings) -> None:
    """Refuse a score that there is not, or by which settings cannot be compared."""
    good = [score for score in SCORES if score not in INCOMPARABLE]
    if name not in SCORES:
        raise UserError(f"--score is {name!r}, but must be one of {', '.join(good)}.")
    if name in INCOMPARABLE:
        raise UserError(f"Settings cannot be compared by {name}, since {INCOMPARABLE[name]}: take {', '.join(good)}.")
    if name in OF_SOURCE and not settings.training.held_out:
        raise UserError(
            f"To compare settings by {name}, some of the source must be held out of training: "
            "give --training.held_out 0.1, or another --score."
        )


def is_better(value: float, other: float, score: str) -> bool:
    """Whether a value of the score is better than another one, not just as good."""
    return value > other if SCORES[score].higher_is_better else value < other
