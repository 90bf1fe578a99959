"""The network for small grey images."""

import copy

import pytest
import torch
from torch import nn

from candapt.network.backbones import build_backbone
from candapt.network.small_cnn import SmallCNN, _quarters

SIZES = [8, 16, 28, 32]


@pytest.mark.parametrize("size", SIZES)
def test_it_takes_small_grey_images(size: int) -> None:
    backbone = build_backbone("small-cnn")
    assert backbone(torch.rand(3, 1, size, size)).shape == (3, 256)
    assert backbone.expects.channels == 1


@pytest.mark.parametrize("size", SIZES)
def test_it_pools_quarters(size: int) -> None:
    maps = torch.rand(2, 3, size // 8, size // 8 + 1)
    expected = nn.functional.adaptive_avg_pool2d(maps, 2).flatten(2)
    torch.testing.assert_close(_quarters(maps), expected)


def test_how_maps_lie_in_memory_changes_nothing_but_the_time() -> None:
    torch.manual_seed(0)
    model = SmallCNN().double()
    plain = copy.deepcopy(model)
    for stage in plain.stages:
        stage[0].__class__ = nn.Conv2d
    images = torch.rand(8, 1, 28, 28, dtype=torch.float64)
    features, expected = model(images), plain(images)
    torch.testing.assert_close(features, expected)
    assert model.forward_features(images).is_contiguous(memory_format=torch.channels_last)
    for each in (features, expected):
        each.square().sum().backward()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert one.is_contiguous(), name  # as it is stored
        torch.testing.assert_close(one.grad, other.grad)
