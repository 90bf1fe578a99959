"""DANN and MADA: what the discriminators see, and which way the gradients go."""

from math import exp, log

import pytest
import torch
from torch import Tensor

from candapt.data.domains import Side
from candapt.methods.base import Method
from candapt.methods.dann import ramped
from candapt.network.network import Outputs
from tests.methods.rotated import gradients, small_batch, tiny


def outputs(method: Method) -> tuple[Outputs, Outputs]:
    batch = small_batch()
    return method.network(batch["source"].x, Side.SOURCE), method.network(batch["target"].x, Side.TARGET)


def losses(method: Method, progress: float = 0.5) -> dict[str, Tensor]:
    return method.forward(small_batch(), method.phases[0], progress)


def test_the_strength_of_the_reversed_gradient() -> None:
    assert ramped(0.3, 10) == pytest.approx(2 / (1 + exp(-3)) - 1)
    assert [ramped(p, 10) for p in (0, 1)] == pytest.approx([0, 1], abs=1e-4)


class TestDANN:
    def test_the_loss_by_hand(self) -> None:
        method = tiny("dann", weight=0.7, width=6)
        source, target = (method.discriminator(side.features).flatten().sigmoid().tolist() for side in outputs(method))
        expected = -0.5 * (sum(log(p) for p in source) / 6 + sum(log(1 - p) for p in target) / 6)
        assert losses(method)["domain"].item() == pytest.approx(0.7 * expected, rel=1e-5)

    def test_the_discriminator_learns_and_the_backbone_unlearns(self) -> None:
        method = tiny("dann", width=6)
        source, target = (method.discriminator(side.features) for side in outputs(method))
        plain = 0.5 * (torch.nn.functional.softplus(-source).mean() + torch.nn.functional.softplus(target).mean())
        made = losses(method, 0.2)["domain"]
        pairs = zip(gradients(made, method.discriminator), gradients(plain, method.discriminator), strict=True)
        assert all(torch.allclose(a, b, atol=1e-7) for a, b in pairs)
        pairs = zip(gradients(made, method.network.backbone), gradients(plain, method.network.backbone), strict=True)
        assert all(torch.allclose(a, -ramped(0.2, 10) * b, atol=1e-7) for a, b in pairs)
        assert any(b.abs().max() > 1e-4 for b in gradients(plain, method.network.backbone))

    def test_nothing_is_aligned_at_the_start(self) -> None:
        method = tiny("dann", width=6)
        assert all(not g.any() for g in gradients(losses(method, 0.0)["domain"], method.network))


class TestMADA:
    @staticmethod
    def by_hand(method: Method) -> Tensor:
        """The discriminators one after another and sample by sample, without reversing anything."""
        net, total = method.discriminators, torch.zeros(())
        first_weight = net.first.weight.view(3, -1, net.first.in_features).mT
        layers = [
            (first_weight, net.first.bias.view(3, -1)),
            *((part.weight, part.bias) for part in (net.second, net.last)),
        ]
        for k in range(3):
            errors = []
            for side, is_source in zip(outputs(method), (True, False), strict=True):
                for feature, probabilities in zip(side.features, side.probabilities, strict=True):
                    x = probabilities[k] * feature
                    for weight, bias in layers:
                        x = x.relu() if weight is not first_weight else x  # nothing before the first layer
                        x = x @ weight[k] + bias[k]
                    chance = x.sigmoid()[0]
                    errors.append(-(chance if is_source else 1 - chance).log())
            total = total + torch.stack(errors).mean()
        return total

    def test_the_loss_by_hand(self) -> None:
        method = tiny("mada", weight=0.3, width=6)
        torch.testing.assert_close(losses(method)["domain"], 0.3 * self.by_hand(method))

    @pytest.mark.parametrize("constant", [False, True])
    def test_the_gradient_into_the_weights(self, constant: bool) -> None:
        """The paper's formula has one into the softmax, the authors' code none; the head learns by it or does not."""
        method = tiny("mada", weight=1.0, width=6, constant_weights=constant)
        made = gradients(losses(method, 0.2)["domain"], method.network.head)
        plain = gradients(self.by_hand(method), method.network.head)
        for a, b in zip(made, plain, strict=True):
            assert b.abs().max() > 1e-6
            torch.testing.assert_close(a, torch.zeros_like(b) if constant else -ramped(0.2, 10) * b)

    def test_the_backbone_unlearns_and_the_discriminators_learn(self) -> None:
        method = tiny("mada", weight=1.0, width=6, constant_weights=False)
        made, plain = losses(method, 0.2)["domain"], self.by_hand(method)
        for a, b in zip(gradients(made, method.network), gradients(plain, method.network), strict=True):
            torch.testing.assert_close(a, -ramped(0.2, 10) * b)
        for a, b in zip(gradients(made, method.discriminators), gradients(plain, method.discriminators), strict=True):
            torch.testing.assert_close(a, b)
