"""Discriminators and heads: the grouped layers against one layer a group, and what a pair of heads predicts."""

import torch
from torch import nn

from candapt.network.modules import ClassDiscriminators, DomainDiscriminator, GroupedLinear, HeadPair, dropout_head


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
    assert kinds == [nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert head.eval()(torch.randn(5, 4)).shape == (5, 3)
    assert [type(layer) for layer in dropout_head(4, 3, width=6, hidden=0)] == [nn.Dropout, nn.Linear]


def test_a_pair_predicts_the_mean_of_its_probabilities() -> None:
    pair, features = HeadPair(nn.Linear(4, 3), nn.Linear(4, 3)), 100 * torch.randn(5, 4)
    first, second = (logits.softmax(1) for logits in pair.both(features))
    torch.testing.assert_close(pair(features).softmax(1), (first + second) / 2)
    assert pair(features).isfinite().all()
