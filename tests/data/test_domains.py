"""Domains and tasks."""

import numpy as np
import pytest
import torch

from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Side, Task


class TestArraySamples:
    @pytest.mark.parametrize("kind", [np.float16, np.float64, np.uint8, np.int64])
    def test_anything_becomes_single_precision(self, kind: type) -> None:
        samples = ArraySamples(np.arange(6).reshape(3, 2).astype(kind))
        read = samples.read(torch.tensor([2, 0, 2]))
        assert read.dtype == torch.float32
        assert read.tolist() == [[4, 5], [0, 1], [4, 5]]
        assert (len(samples), samples.shape) == (3, (2,))

    def test_lists_and_tensors_are_taken_too(self) -> None:
        assert ArraySamples([[1, 2], [3, 4]]).shape == (2,)
        assert len(ArraySamples(torch.zeros(5, 1, 8, 8))) == 5

    def test_both_views_are_the_same(self) -> None:
        samples, rows = ArraySamples(np.random.rand(4, 3)), torch.arange(4)
        assert torch.equal(samples.read(rows), samples.read(rows, seed=3))


class TestDomain:
    def test_unnamed_samples_are_called_by_their_row(self) -> None:
        assert list(Domain(np.zeros((3, 2))).names) == ["0", "1", "2"]

    def test_names_are_kept(self) -> None:
        assert list(Domain(ArraySamples(np.zeros((2, 2))), ("a.png", "b.png")).names) == ["a.png", "b.png"]

    def test_it_is_no_array_that_scikit_learn_would_cut(self) -> None:
        domain = Domain(np.zeros((3, 2)))
        assert domain.size == 3
        assert not any(hasattr(domain, name) for name in ("__len__", "shape", "__array__"))

    def test_it_has_no_place_for_labels(self) -> None:
        assert not hasattr(Domain(np.zeros((3, 2))), "labels")
        with pytest.raises(TypeError):
            Domain(np.zeros((3, 2)), labels=torch.zeros(3))  # type: ignore[call-arg, arg-type]

    def test_a_task_finds_its_domains(self) -> None:
        source = LabeledDomain(np.zeros((3, 2)), (), torch.tensor([0, 1, 1]), ("a", "b"))  # type: ignore[arg-type]
        task = Task(source, Domain(np.zeros((4, 2))))  # type: ignore[arg-type]
        assert task.domain(Side.SOURCE) is source
        assert task.domain(Side.TARGET) is task.target
        assert task.num_classes == 2
        assert (task.source.size, task.target.size) == (3, 4)
