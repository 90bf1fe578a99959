"""Several sources as one labeled domain, in which every sample knows the source it comes from."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from candapt.data.domains import Domain, LabeledDomain, Samples, Task
from candapt.errors import UserError
from candapt.randomness import derive_seed


class JoinedSamples:
    """The samples of several domains, one domain after the other."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = tuple(parts)
        self.starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)  # (parts + 1,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.parts[0].shape

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The samples at `indices`, which may be of several domains."""
        owners = torch.bucketize(indices, self.starts[1:-1], right=True)
        samples = torch.empty(len(indices), *self.shape)
        for number in torch.unique(owners).tolist():
            own = owners == number
            drawn = seed if seed is None or number == 0 else derive_seed(seed, "source", number)
            samples[own] = self.parts[number].read(indices[own] - self.starts[number], seed=drawn)
        return samples


def join_sources(sources: Sequence[LabeledDomain], titles: Sequence[str]) -> LabeledDomain:
    """One domain of all sources; classes are joined by name, those of the first source come first.

    Samples of further sources are named with the title of theirs in front. A single source stays as it is.
    """
    first = sources[0]
    if len(sources) == 1:
        return first
    for source, title in zip(sources, titles, strict=True):
        if tuple(source.samples.shape) != tuple(first.samples.shape):
            shapes = f"{tuple(first.samples.shape)} but of {title!r} {tuple(source.samples.shape)}"
            raise UserError(f"Samples of the first source have shape {shapes}: all must come from the same features.")
    classes = tuple(dict.fromkeys(name for source in sources for name in source.classes))
    position = {name: index for index, name in enumerate(classes)}
    labels = [torch.tensor([position[name] for name in each.classes])[each.labels] for each in sources]
    further = [f"{title}/{name}" for each, title in zip(sources[1:], titles[1:], strict=True) for name in each.names]
    origins = [torch.full((each.size,), number) for number, each in enumerate(sources)]
    samples = JoinedSamples([each.samples for each in sources])
    return LabeledDomain(samples, (*first.names, *further), torch.cat(labels), classes, torch.cat(origins))


def source_titles(paths: Sequence[Path]) -> list[str]:
    """A short name for each source: that of its folder or file, with a number where two are alike.

    >>> source_titles([Path("a/photo"), Path("b/photo"), Path("art.npz")])
    ['photo', 'photo-2', 'art']
    """
    names = [path.parent.name if path.name == "images" and path.parent.name else path.stem for path in paths]
    titles: list[str] = []
    for name in names:
        number = names[: len(titles)].count(name)
        titles.append(f"{name}-{number + 1}" if number else name)
    return titles


def separate_domains(task: Task) -> list[Domain]:
    """The domains of a task as they were read: every source, then the target."""
    joined = task.source.samples
    if not isinstance(joined, JoinedSamples):
        return [task.source, task.target]
    bounds = zip(joined.parts, joined.starts.tolist(), strict=False)
    return [*(Domain(part, task.source.names[start : start + len(part)]) for part, start in bounds), task.target]


def with_samples(task: Task, samples: Sequence[Samples]) -> Task:
    """The task with other samples, one for each of its `separate_domains`."""
    *sources, target = samples
    source = sources[0] if len(sources) == 1 else JoinedSamples(sources)
    return replace(task, source=replace(task.source, samples=source), target=replace(task.target, samples=target))
