"""Follows a training to map its domains before and after."""

import logging
from pathlib import Path

from candapt.adaptation import Adapted
from candapt.data.domains import Side
from candapt.report.domain_map import FILE, features_of, map_after, map_before, read_map
from candapt.training.loop import Training

log = logging.getLogger(__name__)


class Mapper:
    """Leaves the map of a training in its run folder, in two steps, so that a run can be interrupted between them."""

    def __init__(self, folder: Path, points: int) -> None:
        self.folder, self.points = folder, points
        self.training: Training | None = None

    def start(self, training: Training) -> None:
        """Map the domains before the first step; who goes on with a run finds that done."""
        self.training = training
        if training.state.iteration == 0 and not (self.folder / FILE).exists():
            log.info("Mapping both domains before adaptation.")
            map_before(training, self.points).write(self.folder)

    def finish(self, adapted: Adapted) -> None:
        """Map the same samples by the adapted network."""
        found = read_map(self.folder)
        if found is None or self.training is None:
            return
        log.info("Mapping both domains after adaptation.")
        source = features_of(
            adapted.model.method,
            self.training.task.source,  # without what was held out, as the map's rows count
            Side.SOURCE,
            found.rows(Side.SOURCE),
            adapted.model.batch_size,
        )
        target = adapted.predictions.features[found.rows(Side.TARGET)]
        map_after(found, source, target).write(self.folder)
