"""How the learning rate decays."""

from typing import Literal

Schedule = Literal["progress", "iteration", "constant"]


def learning_rate_factor(schedule: Schedule, *, progress: float, iteration: int, slope: float, power: float) -> float:
    """Share of the initial learning rate that is left: (1 + slope·p)^-power.

    Args:
        schedule: `progress` takes p as the share of all planned steps done (the paper), `iteration` as the number of
            steps done (the authors' code), `constant` does not decay.
        progress: share of the planned steps done, 0 to 1.
        iteration: steps done since the start.
        slope: a in the paper.
        power: b in the paper.

    >>> round(0.001 * learning_rate_factor("iteration", progress=0, iteration=1000, slope=0.001, power=0.75), 9)
    0.000594604
    """
    if schedule == "constant":
        return 1.0
    position = progress if schedule == "progress" else float(iteration)
    return float((1 + slope * position) ** -power)
