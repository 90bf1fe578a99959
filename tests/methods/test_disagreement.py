"""MCD and ADR: what is minimized in each of their three phases, and what they predict with."""

import pytest
import torch
from torch import Tensor, nn

from candapt.data.domains import Side
from candapt.methods.base import Method
from candapt.methods.mcd import MCD, MCDSettings
from candapt.network.batchnorm import DomainBatchNorm
from candapt.network.network import Network
from tests.methods.rotated import adapted, begin, gradients, short_settings, small_batch, tiny


def in_phase(method: Method, number: int) -> dict[str, Tensor]:
    return method.forward(small_batch(), method.phases[number], 0.5)


def features(method: Method) -> tuple[Tensor, Tensor]:
    source, target = method.features(small_batch(), "source", "target")
    return source, target


def cross_entropy(logits: Tensor) -> Tensor:
    labels = small_batch()["source"].labels
    return -torch.stack([row.softmax(0)[label].log() for row, label in zip(logits, labels, strict=True)]).mean()


def balance(logits: Tensor) -> Tensor:
    return -(logits.softmax(1).mean(0) + 1e-6).log().mean()


@pytest.mark.parametrize("name", ["mcd", "adr"])
def test_the_phases(name: str) -> None:
    phases = tiny(name, agreements=3).phases
    assert [(phase.name, phase.repeats) for phase in phases] == [("classify", 1), ("disagree", 1), ("agree", 3)]


@pytest.mark.parametrize("name", ["mcd", "adr"])
def test_the_backbone_is_fixed_while_the_heads_disagree(name: str) -> None:
    method = tiny(name).train()
    total = torch.stack(list(in_phase(method, 1).values())).sum()
    assert all(not g.any() for g in gradients(total, method.network.backbone))
    assert any(g.any() for g in gradients(total, method.network.head))


class TestMCD:
    def test_the_losses_by_hand(self) -> None:
        method = tiny("mcd", weight=2.0, balance=0.5, width=6)
        source, target = features(method)
        heads = method.network.head.first, method.network.head.second
        first, second = (head(target) for head in heads)
        disagreement = 2.0 * (first.softmax(1) - second.softmax(1)).abs().sum() / (6 * 3)
        expected = {
            "classification": sum(cross_entropy(head(source)) for head in heads),
            "balance": 0.5 * (balance(first) + balance(second)),
        }
        for number, added in enumerate([{}, {"opposition": -disagreement}]):
            losses = in_phase(method, number)
            assert losses.keys() == (expected | added).keys()
            for name, value in (expected | added).items():
                torch.testing.assert_close(losses[name], value)
        assert in_phase(method, 2).keys() == {"disagreement"}
        torch.testing.assert_close(in_phase(method, 2)["disagreement"], disagreement)

    @pytest.mark.parametrize(
        ("classes", "by_classes", "weight"), [(12, True, 2.0), (31, True, 2 * 31 / 3), (31, False, 2.0)]
    )
    def test_the_weight_grows_with_many_classes(self, classes: int, by_classes: bool, weight: float) -> None:
        network = Network(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), 4, classes)
        method = MCD(network, MCDSettings(weight=2.0, by_classes=by_classes)).eval()
        first, second = method.network.head.both(method.features(small_batch(), "target")[0])
        expected = weight * (first.softmax(1) - second.softmax(1)).abs().sum() / (6 * classes)
        torch.testing.assert_close(in_phase(method, 2)["disagreement"], expected)

    def test_the_balance_can_be_left_out(self) -> None:
        assert in_phase(tiny("mcd", balance=0.0), 0).keys() == {"classification"}

    def test_the_heads_start_apart(self) -> None:
        head = tiny("mcd").network.head
        assert not torch.equal(head.first[-1].weight, head.second[-1].weight)

    def test_the_mean_of_the_probabilities_is_predicted(self) -> None:
        method, x = tiny("mcd"), small_batch()["target"].x
        first, second = method.network.head.both(method.features(small_batch(), "target")[0])
        expected = (first.softmax(1) + second.softmax(1)) / 2
        torch.testing.assert_close(method.predict(x, Side.TARGET).probabilities, expected)


class TestADR:
    @staticmethod
    def sensitivity(first: Tensor, second: Tensor) -> float:
        """Both divergences, term by term."""
        p, q = first.softmax(1), second.softmax(1)
        terms = [0.5 * (a * (a / b).log() + b * (b / a).log()) for a, b in zip(p.flatten(), q.flatten(), strict=True)]
        return torch.stack(terms).sum().item()

    @pytest.mark.parametrize(("reduction", "divisor"), [("element", 18), ("batch", 6)])
    def test_the_losses_by_hand(self, reduction: str, divisor: int) -> None:
        method = tiny("adr", weight=2.0, balance=0.5, width=6, reduction=reduction).eval()
        method.network.head.train()  # dropout, while batch norm stays as it is
        source, target = features(method)
        torch.manual_seed(3)
        losses = in_phase(method, 1)
        torch.manual_seed(3)
        head = method.network.head
        first, second, classified = head(target), head(target), head(source)  # in the order of the random draws
        expected = 2.0 * self.sensitivity(first, second) / divisor
        assert expected > 0.01
        assert losses["opposition"].item() == pytest.approx(-expected, rel=1e-4)
        torch.testing.assert_close(losses["classification"], cross_entropy(classified))
        torch.testing.assert_close(losses["balance"], 0.5 * balance(first))
        torch.manual_seed(3)
        agreement = in_phase(method, 2)
        assert agreement.keys() == {"sensitivity"}
        assert agreement["sensitivity"].item() == pytest.approx(expected, rel=1e-4)

    def test_without_dropout_nothing_is_sensitive(self) -> None:
        assert in_phase(tiny("adr", dropout=0.0).train(), 2)["sensitivity"].item() == pytest.approx(0, abs=1e-7)

    def test_predictions_are_made_without_dropout(self) -> None:
        method, x = adapted("adr").model.method, torch.randn(4, 16)
        assert torch.equal(method.predict(x, Side.TARGET).logits, method.predict(x, Side.TARGET).logits)

    @pytest.mark.parametrize("shared", [True, False])
    def test_scale_and_shift_of_the_domains(self, shared: bool) -> None:
        training = begin(short_settings("adr", shared_affine=shared, rounds=1))
        training.run()
        layers = [layer for layer in training.method.network.modules() if isinstance(layer, DomainBatchNorm)]
        pairs = [pair for layer in layers for pair in zip(*(norm.parameters() for norm in layer.norms), strict=True)]
        assert len(pairs) > 0
        assert all(torch.equal(source, target) is shared for source, target in pairs)
        assert any(source.std() > 0 for source, _ in pairs)  # they did learn
