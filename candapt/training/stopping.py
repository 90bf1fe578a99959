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
    return facts


def settled(history: Sequence[Mapping[str, float | int]], threshold: float) -> bool:
    """Whether the last round changed fewer labels than the threshold and moved the centers by less."""
    if not history or "label_change" not in history[-1]:
        return False
    return history[-1]["label_change"] < threshold and history[-1]["center_shift"] < threshold
