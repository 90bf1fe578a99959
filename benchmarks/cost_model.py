"""What a larger job would take, from the times that `benchmarks.scaling` and `benchmarks.embed` recorded.

    embed    images / P · e
    cluster  rounds · updates · samples · classes · features · c / P
    step     rounds · steps · (batch / P · b + f + x),  x = 0 on one process

Processes are as fast as those that were measured: two threads of a processor for e, one for the rest.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.record import load

WIDTH, UPDATES, ROUNDS = 2048, 3, 20  # features, updates of the centers in a clustering, rounds
PROCESSES = (1, 8, 64)


@dataclass(frozen=True)
class Job:
    """What is to be adapted."""

    name: str
    images: int
    target: int
    classes: int
    steps: int  # of a round
    batch: int  # samples of both domains in a step


JOBS = (
    Job("VisDA-2017", 152_397 + 55_388, 55_388, 12, 508, 180),
    Job("100 million target images", 152_397 + 100_000_000, 100_000_000, 12, 508, 180),
)


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    image: float  # e, of the backbone for one image
    product: float  # c, of a clustering for one sample, class and feature
    sample: float  # b, of a step for one sample of the batch
    losses: float  # f, of a step whatever the batch
    exchange: float  # x, of a step on several processes

    def hours(self, job: Job, count: int) -> tuple[float, float, float]:
        """Hours to embed, to cluster and to take the steps on that many processes."""
        exchange = self.exchange if count > 1 else 0.0
        embed = job.images * self.image / count
        cluster = ROUNDS * UPDATES * job.target * job.classes * WIDTH * self.product / count
        step = ROUNDS * job.steps * (job.batch / count * self.sample + self.losses + exchange)
        return embed / 3600, cluster / 3600, step / 3600


def fit() -> Costs:
    """The costs that fit the recorded times best."""
    parts = load("scaling")["parts"]
    embedded = [each for each in load("embed")["domains"] if each["decoding"] == "default"]
    image = sum(each["seconds"] for each in embedded) / sum(each["images"] for each in embedded)
    stream = parts["stream"]
    work = sum(each["samples"] for each in stream["sizes"]) * stream["width"] * stream["classes"]
    product = sum(each["step"] for each in stream["sizes"]) / work
    steps: list[dict[str, Any]] = parts["step"]["steps"]
    # A step of MCC has a batch of each domain. The exchange is the same for every batch.
    rows = [[2 * each["batch"] / each["processes"], 1.0, float(each["processes"] > 1)] for each in steps]
    seconds = [each["seconds"] for each in steps]
    sample, losses, exchange = np.linalg.lstsq(np.array(rows), np.array(seconds), rcond=None)[0].tolist()
    return Costs(image, product, sample, max(losses, 0.0), max(exchange, 0.0))
