"""Which settings are searched, and between which limits."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from candapt.presets import change_setting, read_setting
from candapt.settings import Settings

Values = dict[str, float]
"""Settings of a trial by the names of their flags."""


@dataclass(frozen=True)
class Range:
    """The values that a setting may take."""

    low: float
    high: float
    log: bool = False
    """Search evenly over orders of magnitude."""
    whole: bool = False
    """Whole numbers only."""

    def including(self, value: float) -> "Range":
        """The range, made as wide as to hold the value."""
        log = self.log and value > 0
        return replace(self, low=min(self.low, value), high=max(self.high, value), log=log)

    def holds(self, value: object) -> bool:
        """Whether it is a number of the range."""
        kind = int if self.whole else int | float
        return isinstance(value, kind) and not isinstance(value, bool) and self.low <= value <= self.high


SHARED = {"training.learning_rate": Range(1e-4, 1e-2, log=True)}
"""What is searched for every method."""

_CAN = {
    "weight": Range(0.03, 3, log=True),
    "start_share": Range(0.1, 1),
    "max_distance": Range(0.05, 1, log=True),
    "min_samples": Range(1, 10, whole=True),
    "classes": Range(5, 20, whole=True),
    "samples": Range(2, 6, whole=True),
}
_PSEUDO = {**_CAN, "weight": Range(0.1, 10, log=True)}

OWN: dict[str, dict[str, Range]] = {
    "source-only": {},
    "dann": {"weight": Range(0.1, 10, log=True)},
    "dan": {"weight": Range(0.1, 10, log=True)},
    "jan": {"weight": Range(0.03, 3, log=True)},
    "mada": {"weight": Range(0.03, 3, log=True)},
    "self-ensembling": {"weight": Range(1, 30, log=True), "threshold": Range(0.5, 0.98)},
    "adr": {"weight": Range(0.1, 10, log=True), "agreements": Range(1, 6, whole=True)},
    "mcd": {"weight": Range(0.1, 10, log=True), "agreements": Range(1, 6, whole=True)},
    "can": _CAN,
    "can-intra": _CAN,
    "can-no-ao": _CAN,
    "can-no-cas": {name: limits for name, limits in _CAN.items() if name != "classes"},  # batches hold random classes
    "pseudo-fixed": _PSEUDO,
    "pseudo-alternating": _PSEUDO,
    "mcc": {"weight": Range(0.1, 10, log=True), "temperature": Range(1, 5)},
}
"""What is searched of each method's own settings: the weight of its loss, and what decides which labels it believes."""


def search_space(settings: Settings, fixed: Collection[str], classes: int) -> dict[str, Range]:
    """The settings to search by the names of their flags; each range holds the value to start from.

    Args:
        settings: what the search starts from.
        fixed: names of settings that stay as they are, or of whole groups.
        classes: number of classes of the task.
    """
    own = {f"{settings.method}.{field}": limits for field, limits in OWN[settings.method].items()}
    space: dict[str, Range] = {}
    for name, limits in {**own, **SHARED}.items():
        value = read_setting(settings, name)
        if name.endswith(".classes"):
            if value >= classes:
                continue  # every batch holds all classes, and another value would hardly change that
            limits = replace(limits, low=min(limits.low, value), high=min(limits.high, classes))
        if name not in fixed and name.partition(".")[0] not in fixed:
            space[name] = limits.including(value)
    return space


def apply(settings: Settings, values: Mapping[str, float]) -> Settings:
    """The settings with those of a trial."""
    for name, value in values.items():
        settings = change_setting(settings, name, value)
    return settings
