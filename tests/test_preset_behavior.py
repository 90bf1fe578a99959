"""What the settings of the presets make CAN do: whom it keeps, from when on, where it centers, by what it divides."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from candapt.clustering import Clusters, cosine_distances
from candapt.data.domains import Domain, Side, Task
from candapt.data.features import labeled_arrays
from candapt.methods.base import BatchPart, Round
from candapt.methods.can import CAN
from candapt.network.network import Network, Outputs
from candapt.presets import make_settings
from tests.references.discrepancies import cdd


def can(preset: str, width: int, classes: int) -> CAN:
    """CAN with the preset's settings over features as they are."""
    own = make_settings("can", preset=preset).method_settings
    return CAN(Network(nn.Identity(), width, classes, pretrained=True), own).eval()


def round_of(preset: str, source: Tensor, labels: list[int], target: Tensor, index: int = 0) -> Round:
    """A round of as many as the preset asks for; the network's features are the samples themselves."""
    task = Task(labeled_arrays(source.numpy(), np.array(labels), where="the test"), Domain(target.numpy()))
    sides = {Side.SOURCE: source, Side.TARGET: target}
    return Round(
        index=index,
        rounds=make_settings("can", preset=preset).rounds,
        task=task,
        seed=0,
        batch_size=4,
        steps=2,
        embed=lambda side: Outputs(sides[side], torch.zeros(len(sides[side]), max(labels) + 1)),
        previous=None,
    )


SIZES = (10, 3, 2, 1)  # samples of the target in each of four classes


def fans() -> tuple[Tensor, list[int], Tensor]:
    """Source classes on the axes; around each of them target samples, ever further apart."""
    target = torch.cat([torch.eye(8)[label] + torch.eye(8)[4:].repeat(3, 1)[:n] for label, n in enumerate(SIZES)])
    reach = torch.cat([torch.linspace(0.1, 0.7, n) for n in SIZES])[:, None]
    along = torch.cat([torch.eye(8)[label].expand(n, -1) for label, n in enumerate(SIZES)])
    return torch.eye(8)[:4].repeat(2, 1), [0, 1, 2, 3] * 2, along + reach * (target - along)


def clusters_in(preset: str, index: int) -> Clusters:
    return can(preset, 8, 4).cluster(round_of(preset, *fans(), index=index))


def kept_of(clusters: Clusters) -> list[int]:
    return clusters.labels[clusters.kept].bincount(minlength=4).tolist()


def test_the_clusters_are_those_of_the_made_target() -> None:
    clusters = clusters_in("paper", 0)
    assert clusters.labels.bincount().tolist() == list(SIZES)
    assert clusters.distances.max() > 0.05  # the D₀ of the tasks that are filtered would drop some


@pytest.mark.parametrize(
    ("preset", "index", "kept"),
    [
        ("paper", 0, [10, 3, 2, 1]),  # no filter: any distance, any class, whole clusters from the first round on
        ("official", 0, [10, 3, 0, 0]),  # N₀: classes of three samples or more
        ("official", 49, [10, 3, 0, 0]),
        ("default", 1, [3, 3, 0, 0]),  # a fifth of the cluster, but not less than N₀
        ("default", 49, [10, 3, 0, 0]),  # all in the end
    ],
)
def test_who_is_kept(preset: str, index: int, kept: list[int]) -> None:
    assert kept_of(clusters_in(preset, index)) == kept


def test_the_default_keeps_the_nearest_first() -> None:
    clusters = clusters_in("default", 1)
    large = clusters.labels == 0
    assert clusters.distances[large & clusters.kept].max() < clusters.distances[large & ~clusters.kept].min()


@pytest.mark.parametrize(("preset", "first"), [("paper", 0), ("official", 0), ("default", 1)])
def test_when_the_alignment_begins(preset: str, first: int) -> None:
    method = can(preset, 8, 4)
    for index in (0, 1):
        round = round_of(preset, *fans(), index=index)
        draws = method.draws(round, method.cluster(round))
        assert all(("aligned_target" in draw) is (index >= first) for draw in draws)


def test_the_paper_centers_directions_and_the_code_features() -> None:
    source = torch.tensor([[9.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -1.0]])
    expected = {"paper": [1.0, 1.0, 0.0], "official": [9.0, 1.0, 0.0]}
    for preset, direction in expected.items():
        centers = can(preset, 3, 2).label(round_of(preset, source, [0, 0, 1], source)).centers
        assert cosine_distances(centers[:1], torch.tensor([direction])).item() == pytest.approx(0, abs=1e-6)


def test_the_code_matches_clusters_to_classes_again() -> None:
    random = np.random.RandomState(2192)  # found by search: the clusters end nearer to each other's start
    target, source = (torch.tensor(random.randn(n, 3)).float() for n in (30, 3))
    found: dict[str, Any] = {
        preset: can(preset, 3, 3).label(round_of(preset, source, [0, 1, 2], target)) for preset in ("paper", "official")
    }
    shift = {preset: cosine_distances(source, each.centers).trace() for preset, each in found.items()}
    assert shift["official"] < shift["paper"]


@pytest.mark.parametrize(("preset", "divisor"), [("paper", 5), ("official", 5), ("default", 2)])
def test_by_what_the_discrepancy_is_divided(preset: str, divisor: int) -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 0, 3, 3])  # two of the five classes of the task
    x, y = torch.randn(2, 4, 6, generator=random)
    method = can(preset, 6, 5)
    batch = {
        "source": BatchPart(x, labels, Side.SOURCE),
        "aligned_source": BatchPart(x, labels, Side.SOURCE),
        "aligned_target": BatchPart(y, labels, Side.TARGET),
    }
    source, target = method.network(x, Side.SOURCE), method.network(y, Side.TARGET)
    layers = ([side.features, side.probabilities] for side in (source, target))
    expected = 0.3 * cdd(*layers, labels.tolist(), labels.tolist(), num_classes=divisor)
    made = method.forward(batch, method.phases[0], 0.5)["discrepancy"]
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
