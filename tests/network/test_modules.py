"""Discriminators, heads, the small CNN and mirrored views, against plain ways to compute the same."""

import copy

import pytest
import torch
from torch import nn

from candapt.network.backbones import build_backbone
from candapt.network.dropout import Dropout
from candapt.network.modules import (
    ClassDiscriminators,
    DomainDiscriminator,
    GroupedLinear,
    HeadPair,
    Mirrored,
    SmallCNN,
    _quarters,
    dropout_head,
)

SIZES = [8, 16, 28, 32]


def test_grouped_layers_are_one_layer_a_group() -> None:
    layer, x = GroupedLinear(3, 4, 5), torch.randn(3, 7, 4)
    made = layer(x)
    assert made.shape == (3, 7, 5)
    for group in range(3):
        torch.testing.assert_close(made[group], x[group] @ layer.weight[group] + layer.bias[group])


def test_grouped_layers_start_like_linear_ones() -> None:
    layer = GroupedLinear(50, 16, 20)
    for values in (layer.weight, layer.bias):
        assert 0.9 * 0.25 < values.abs().max() <= 0.25  # 1 / sqrt(16)
        assert values.mean().abs() < 0.02


def test_class_discriminators_are_separate() -> None:
    discriminators, features, weights = ClassDiscriminators(4, 3, width=6).eval(), torch.randn(5, 4), torch.rand(5, 3)
    made = discriminators(features, weights)
    assert made.shape == (5, 3)
    for k in range(3):
        x = weights[:, k : k + 1] * features
        rows = slice(6 * k, 6 * k + 6)
        x = (x @ discriminators.first.weight[rows].mT + discriminators.first.bias[rows]).relu()
        x = (x @ discriminators.second.weight[k] + discriminators.second.bias[k]).relu()
        torch.testing.assert_close(made[:, k], (x @ discriminators.last.weight[k] + discriminators.last.bias[k])[:, 0])


def test_discriminators_of_one_class_and_of_all_have_the_same_layers() -> None:
    one, three = DomainDiscriminator(4, width=6), ClassDiscriminators(4, 3, width=6)
    assert 3 * sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in three.parameters())
    assert one(torch.randn(5, 4)).shape == (5, 1)


def test_dropout_comes_before_every_layer_of_a_head() -> None:
    head = dropout_head(4, 3, width=6, hidden=2, dropout=0.3)
    kinds = [type(layer) for layer in head]
    assert kinds == [Dropout, nn.Linear, nn.ReLU, Dropout, nn.Linear, nn.ReLU, Dropout, nn.Linear]
    assert head.eval()(torch.randn(5, 4)).shape == (5, 3)
    assert [type(layer) for layer in dropout_head(4, 3, width=6, hidden=0, dropout=0.5)] == [Dropout, nn.Linear]


def test_a_pair_predicts_the_mean_of_its_probabilities() -> None:
    pair, features = HeadPair(nn.Linear(4, 3), nn.Linear(4, 3)), 100 * torch.randn(5, 4)
    first, second = (logits.softmax(1) for logits in pair.both(features))
    torch.testing.assert_close(pair(features).softmax(1), (first + second) / 2)
    assert pair(features).isfinite().all()


@pytest.mark.parametrize("size", SIZES)
def test_the_small_cnn_takes_small_gray_images(size: int) -> None:
    backbone = build_backbone("small-cnn")
    assert backbone(torch.rand(3, 1, size, size)).shape == (3, 256)
    assert backbone.expects.channels == 1


@pytest.mark.parametrize("size", SIZES)
def test_the_small_cnn_pools_quarters(size: int) -> None:
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


class TestMirrored:
    @torch.no_grad()
    def test_it_is_the_sum_of_the_unit_features_of_both_images(self) -> None:
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        images = torch.rand(4, 3, 9, 9)
        made = Mirrored(backbone)(images)
        for image, row in zip(images, made, strict=True):
            seen, mirrored = (backbone(each[None])[0] for each in (image, image.flip(2)))
            total = seen / seen.norm() + mirrored / mirrored.norm()
            torch.testing.assert_close(row, total / total.norm())

    @torch.no_grad()
    def test_an_image_and_its_mirror_image_are_alike(self) -> None:
        torch.manual_seed(0)
        model = Mirrored(build_backbone("resnet18", pretrained=False).eval())
        images = torch.rand(2, 3, 40, 40)
        torch.testing.assert_close(model(images), model(images.flip(-1)))
