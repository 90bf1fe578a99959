"""When the alternation has settled, judged without target labels."""

from collections.abc import Mapping, Sequence

from candapt.clustering import Clusters, center_shift, label_change


def cluster_facts(clusters: Clusters | None, previous: Clusters | None) -> dict[str, float | int]:
    """What a round's clustering says: how much is kept, and how much changed since the round before."""
    if clusters is None:
        return {}
    facts: dict[str, float | int] = {
        "kept_samples": int(clusters.kept.sum()),
        "kept_share": float(clusters.kept.float().mean()),
        "kept_classes": len(clusters.kept_classes),
        "mean_distance": float(clusters.distances.mean()),
    }
    if previous is not None:
        facts["label_change"] = label_change(previous.labels, clusters.labels)
        facts["center_shift"] = center_shift(previous.centers, clusters.centers)
        facts["kept_change"] = float((clusters.kept != previous.kept).float().mean())
    return facts


QUIET = 2
"""Rounds in a row without change after which a training has settled: a single quiet round may be chance."""


def settled(history: Sequence[Mapping[str, float | int]], threshold: float) -> bool:
    """Whether the last rounds all changed fewer labels and kept samples than the threshold, and moved the centers less.

    As long as the share of each cluster that is kept grows there is more to come, and a warm-up only prepares the rest.
    """
    last = [record for record in history[-QUIET:] if not record.get("warmup")]
    changes = ("label_change", "center_shift", "kept_change")
    return len(last) == QUIET and all(record.get(change, 1) < threshold for record in last for change in changes)
