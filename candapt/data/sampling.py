"""Which samples each step uses: random batches, and CAN's class-aware ones (Kang et al., CVPR 2019)."""

import torch
from torch import Tensor


def random_batches(
    count: int, batch_size: int, steps: int, generator: torch.Generator, weights: Tensor | None = None
) -> Tensor:
    """Batches of indices below `count` from one shuffled epoch after another, shape (steps, min(batch_size, count)).

    No index is twice in a batch. The incomplete batch at the end of an epoch is dropped. With fewer samples than
    `batch_size` every batch is the whole set, shuffled again. With weights, shape (count,) and none of them zero, each
    batch is a draw of its own, in which an index is as likely as its weight says.
    """
    if count < 1 or batch_size < 1:
        raise ValueError(f"Batches of {batch_size} from {count} samples are not possible: both must be at least 1.")
    size = min(batch_size, count)
    if weights is not None:
        drawn = [weights.multinomial(size, generator=generator) for _ in range(steps)]
        return torch.stack([torch.empty(size, dtype=torch.int64), *drawn])[1:]
    batches = count // size  # of one epoch
    epochs = [torch.randperm(count, generator=generator)[: batches * size] for _ in range(-(-steps // batches))]
    return torch.cat([torch.empty(0, dtype=torch.int64), *epochs]).view(-1, size)[:steps]


def class_aware_batches(
    source_labels: Tensor, target_labels: Tensor, *, classes: int, samples: int, steps: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Batches in which every class is present in both domains.

    The shared classes are shuffled and cut into groups, one per step, and shuffled again when no whole group is left.
    In each step every class of the group gives a fresh uniform draw without replacement per domain.

    Args:
        source_labels: class of each source sample, shape (n,).
        target_labels: pseudo-label of each target sample, shape (m,); -1 for samples that are not kept.
        classes: classes in one batch, or all shared ones if they are fewer.
        samples: samples of one class and domain in a batch, or all there are if they are fewer.
        steps: number of batches.
        generator: source of all randomness.

    Returns:
        For each step the source and the target indices, ordered class by class with the classes in the same order in
        both; empty if the domains share no class.
    """
    _check_sizes(classes, samples)
    source_counts, target_counts = _class_counts(source_labels, target_labels)
    shared = ((source_counts > 0) & (target_counts > 0)).nonzero().flatten()
    if not len(shared):
        return []
    groups = shared[random_batches(len(shared), classes, steps, generator)]  # (steps, classes)
    source = _draw_members(source_labels, source_counts, groups, samples, generator)
    target = _draw_members(target_labels, target_counts, groups, samples, generator)
    return list(zip(source, target, strict=True))


def steps_per_round(source_labels: Tensor, target_labels: Tensor, *, classes: int, samples: int) -> int:
    """Class-aware steps until the larger domain of each shared class has been drawn from about once, at least 1.

    The arguments are those of `class_aware_batches`.
    """
    _check_sizes(classes, samples)
    counts = torch.stack(_class_counts(source_labels, target_labels))  # (2, M)
    counts = counts[:, (counts > 0).all(dim=0)]  # (2, shared classes)
    if not counts.numel():
        return 1
    draws = int((counts // counts.clamp_max(samples)).amax(dim=0).sum())  # at least one per shared class
    return -(-draws // min(classes, counts.shape[1]))


def _check_sizes(classes: int, samples: int) -> None:
    """Raise a `ValueError` for batches without a class or without a sample."""
    if classes < 1 or samples < 1:
        raise ValueError(f"A class-aware batch of {classes} classes x {samples} samples is empty: use at least 1 x 1.")


def _class_counts(source_labels: Tensor, target_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Samples of each class in either domain, both of shape (M,) on the CPU; negative labels are not counted."""
    source, target = (labels[labels >= 0].cpu() for labels in (source_labels, target_labels))
    num_classes = 1 + max(int(labels.max()) if len(labels) else -1 for labels in (source, target))
    return source.bincount(minlength=num_classes), target.bincount(minlength=num_classes)


def _draw_members(
    labels: Tensor, counts: Tensor, groups: Tensor, samples: int, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """For each row of `groups` (steps, classes) the indices of a draw from each of its classes, one after another."""
    by_class = labels.cpu().argsort(stable=True)
    by_class = by_class[len(by_class) - int(counts.sum()) :]  # negative labels come first
    starts = counts.cumsum(0) - counts  # (M,)
    samples = min(samples, int(counts.max()))
    places = _distinct_integers(counts[groups].flatten(), samples, generator).view(*groups.shape, samples)
    drawn = places >= 0  # (steps, classes, samples)
    members = by_class[(starts[groups][..., None] + places)[drawn]]
    return torch.split(members, drawn.sum(dim=(1, 2)).tolist())


def _distinct_integers(limits: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """For each limit a uniform set of min(samples, limit) integers below it, padded with -1, shape (n, samples).

    This is Floyd's algorithm for all limits at once: its cost does not depend on how large the limits are. The
    order within a set is not uniform.
    """
    sizes = limits.clamp_max(samples)
    uniform = torch.rand(len(limits), samples, generator=generator, dtype=torch.float64)
    chosen = torch.full((len(limits), samples), -1, dtype=torch.int64)
    for step in range(samples):
        last = limits - sizes + step  # (n,) may be chosen from this step on, so it replaces a repetition
        pick = (uniform[:, step] * (last + 1)).long()
        repeated = (chosen[:, :step] == pick[:, None]).any(dim=1)
        chosen[:, step] = torch.where(repeated, last, pick).where(step < sizes, -1)
    return chosen
