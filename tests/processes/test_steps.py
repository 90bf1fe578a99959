"""Training on several processes: a step equals that of one process on the same global batch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from benchmarks.processes import in_processes
from candapt import processes
from candapt.adaptation import adapt, build_method, initial_parts
from candapt.clustering import CHUNK_SIZE, Clusters, spherical_kmeans
from candapt.data.domains import ArraySamples, Domain, Side
from candapt.errors import UserError
from candapt.methods.base import Part
from candapt.training.batches import make_fabric, read_batches, share_of_part
from candapt.training.loop import Training
from candapt.training.outputs import batches_of
from tests.toy import Toy, make_toy, quick_settings

STEPS = 3
TOY = make_toy(classes=5)


def in_double(toy: Toy) -> Any:
    """The task in double precision."""
    task = toy.task
    for side in Side:
        samples = task.domain(side).samples
        assert isinstance(samples, ArraySamples)
        samples.array = samples.array.double()
    return task


def steps(method: str, changes: dict[str, Any]) -> dict[str, Tensor]:
    """The method's state after a few steps in double precision, on batches that all classes are in."""
    torch.set_num_threads(1)
    settings = quick_settings(method, training__optimizer="sgd", training__steps=STEPS, **changes)
    fabric, task = make_fabric(settings.training), in_double(TOY)
    torch.set_default_dtype(torch.float64)
    trained = build_method(initial_parts(task, settings), settings).double()
    training = Training(fabric, trained, task, settings)
    labels = torch.as_tensor(TOY.target_y)
    everything = torch.ones_like(labels, dtype=torch.bool)
    clusters = Clusters(labels, torch.zeros(len(labels)), torch.zeros(5, 3), everything, steps=1)
    round = replace(training.describe_round(), index=1)  # after the warm-up
    draws = trained.draws(round, clusters)
    how = {
        "together": settings.training.global_losses,
        "normalized_apart": not settings.training.sync_batchnorm,
    }
    for step, batch in enumerate(read_batches(fabric, task, draws, round.seed, **how)):
        training.one_batch([batch], draws, step, round.seed)
    assert training.state.progress.skipped == 0
    return {**trained.state_dict(), **{n: torch.tensor(v) for n, v in training.state.progress.means().items()}}


@pytest.mark.parametrize(
    ("method", "changes"),
    [("can", {}), ("can", {"network__heads": 1}), ("mcd", {}), ("self-ensembling", {}), ("mcc", {}), ("dann", {})],
)
def test_a_step_of_two_processes_is_that_of_one(method: str, changes: dict[str, Any]) -> None:
    (alone,) = in_processes(1, steps, method, changes)
    both = in_processes(2, steps, method, changes)
    for other in both:
        assert other.keys() == alone.keys()
        for name, value in other.items():
            assert torch.allclose(value.double(), alone[name].double(), rtol=0, atol=1e-6), name


def test_losses_and_batch_norm_by_process_train_too() -> None:
    first, second = in_processes(2, steps, "can", {"training__global_losses": False, "training__sync_batchnorm": False})
    weights = [name for name in first if name.endswith("weight")]
    assert all(torch.allclose(first[name], second[name], atol=1e-12) for name in weights)  # gradients are exchanged
    assert any(not torch.equal(first[name], second[name]) for name in first if name.endswith("running_mean"))


def test_parts_too_small_to_be_normalized_apart_are_whole_in_each_process() -> None:
    changes = {"training__sync_batchnorm": False, "training__batch_size": 3}  # a share of 2 samples and one of 1
    (alone,), both = in_processes(1, steps, "mcc", changes), in_processes(2, steps, "mcc", changes)
    for other in both:
        for name, value in other.items():
            assert torch.allclose(value.double(), alone[name].double(), rtol=0, atol=1e-6), name


def joined_maps(samples: int) -> Tensor:
    make_fabric(quick_settings().training)
    values = torch.arange(samples * 6.0).view(samples, 2, 3)
    share = batches_of(Domain(ArraySamples(values)), 4, together=True)
    return share.join([values[rows] for rows in share.own])


def test_a_process_without_a_batch_gets_those_of_the_others() -> None:
    for samples in (3, 9):  # one batch, and three
        for found in in_processes(3, joined_maps, samples):
            assert torch.equal(found, torch.arange(samples * 6.0).view(samples, 2, 3))


def test_a_class_stays_with_one_process() -> None:
    labels = torch.tensor([3, 3, 3, 0, 0, 7, 7, 7, 1])
    shares = [share_of_part(Part(Side.SOURCE, torch.arange(9), labels), 2, rank) for rank in range(2)]
    assert [share.rows for share in shares if share] == [slice(0, 5), slice(5, 9)]
    without = Part(Side.TARGET, torch.arange(9), torch.full((9,), -1))
    share = share_of_part(without, 4, 1)
    assert share is not None
    assert share.sizes == (3, 2, 2, 2)


@pytest.fixture
def _of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process believes that it was started with another one."""
    places = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "test"}
    for name, value in places.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.usefixtures("_of_two")
def test_processes_that_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: str) -> Any:
        raise torch.distributed.DistNetworkError("timed out after 1s")

    monkeypatch.setattr(processes, "rendezvous", nobody)
    with pytest.raises(UserError, match="The 2 processes of this command cannot reach each other"):
        make_fabric(quick_settings().training)


@pytest.mark.usefixtures("_of_two")
def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> Any:
        raise MisconfigurationException("You requested gpu: [0, 1]")

    monkeypatch.setattr("lightning_fabric.Fabric", refused)
    with pytest.raises(UserError, match="2 processes were started on this machine, which has fewer GPUs"):
        make_fabric(quick_settings().training)


def whole_run(changes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    torch.set_num_threads(1)
    result = adapt(TOY.task, quick_settings("can", rounds=2, **changes))
    return result.predictions.probabilities, result.predictions.cluster_labels


def test_a_whole_training_gives_the_same_predictions() -> None:
    (alone,) = in_processes(1, whole_run, {})
    for probabilities, labels in in_processes(3, whole_run, {}):
        assert torch.allclose(probabilities, alone[0], atol=1e-4)
        assert torch.equal(labels, alone[1])


def clustered(features: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    torch.set_num_threads(1)
    make_fabric(quick_settings().training)
    chunks = [min(CHUNK_SIZE, len(features) - start) for start in range(0, len(features), CHUNK_SIZE)]
    share = processes.share_of(chunks)
    own = spherical_kmeans(features[share.rows], centers, tolerance=0, max_steps=10, reduce=processes.summed)
    return processes.joined(own.labels, share), own.centers


def test_clustering_by_sums_gives_the_same_bits_ties_included() -> None:
    random = np.random.default_rng(0)
    features = torch.tensor(random.normal(size=(6 * CHUNK_SIZE + 17, 16)), dtype=torch.float32)
    features[::7] = torch.tensor([1.0, 1.0] + [0.0] * 14)  # as near to the first center as to the second
    centers = torch.eye(16)[:9]
    expected = spherical_kmeans(features, centers, tolerance=0, max_steps=10)
    for count in (2, 4):
        for labels, found in in_processes(count, clustered, features, centers):
            assert torch.equal(labels, expected.labels)
            assert torch.equal(found, expected.centers)
