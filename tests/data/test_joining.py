"""Several sources as one domain: classes by name, samples in order, and the way back."""

import numpy as np
import pytest
import torch

from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Side, Task, by_norm, part_of
from candapt.data.joining import JoinedSamples, join_sources, separate_domains, with_samples
from candapt.errors import UserError


def source(values: list[float], labels: list[int], *classes: str) -> LabeledDomain:
    return LabeledDomain(np.array(values, dtype=np.float32)[:, None], (), torch.tensor(labels), classes)


FIRST = source([0, 1, 2], [0, 1, 1], "cat", "dog")
SECOND = source([10, 11], [1, 0], "dog", "emu")


class TestJoined:
    def test_classes_are_joined_by_name(self) -> None:
        joined = join_sources([FIRST, SECOND], ["a", "b"])
        assert joined.classes == ("cat", "dog", "emu")
        assert joined.labels.tolist() == [0, 1, 1, 2, 1]
        assert joined.origins is not None
        assert joined.origins.tolist() == [0, 0, 0, 1, 1]
        assert joined.names == ("0", "1", "2", "b/0", "b/1")
        assert joined.count == 2

    def test_samples_are_read_in_any_order(self) -> None:
        joined = join_sources([FIRST, SECOND], ["a", "b"])
        assert joined.samples.read(torch.tensor([4, 0, 3, 2])).flatten().tolist() == [11, 0, 10, 2]
        assert len(joined.samples) == 5

    def test_a_single_source_stays_as_it_is(self) -> None:
        assert join_sources([FIRST], ["a"]) is FIRST

    def test_other_shapes_are_refused(self) -> None:
        wide = LabeledDomain(np.zeros((2, 3)), (), torch.tensor([0, 1]), ("cat", "dog"))
        with pytest.raises(UserError, match="'b'"):
            join_sources([FIRST, wide], ["a", "b"])


class TestTask:
    def test_domains_are_separate_again_and_get_other_samples(self) -> None:
        task = Task(join_sources([FIRST, SECOND], ["a", "b"]), Domain(np.zeros((4, 1))))
        domains = separate_domains(task)
        assert [domain.size for domain in domains] == [3, 2, 4]
        assert list(domains[1].names) == ["b/0", "b/1"]
        other = with_samples(task, [ArraySamples(np.full((domain.size, 6), 7)) for domain in domains])
        assert isinstance(other.source.samples, JoinedSamples)
        assert other.source.samples.shape == other.target.samples.shape == (6,)
        assert other.source.labels.equal(task.source.labels)

    def test_each_source_has_its_own_batch_norm(self) -> None:
        joined = join_sources([FIRST, SECOND, FIRST], ["a", "b", "c"])
        some = part_of(joined, torch.tensor([7, 4, 0]))
        groups = [(rows.tolist(), part.size, norm) for rows, part, norm in by_norm(some, Side.SOURCE)]
        assert groups == [([2], 1, 0), ([1], 1, 2), ([0], 1, 3)]
        assert [norm for _, _, norm in by_norm(Domain(np.zeros((4, 1))), Side.TARGET)] == [1]
