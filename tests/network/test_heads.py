"""Heads side by side: an ensemble that is trained and used as one network."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from candapt.data.domains import Side
from candapt.network.build import build_parts, decide
from candapt.network.dropout import drop_out
from candapt.network.network import Bottleneck, HeadEnsemble, Network
from candapt.settings import NetworkSettings

HEADS, WIDTH, INPUTS, CLASSES = 3, 4, 6, 5


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return build_parts(NetworkSettings(bottleneck=WIDTH, heads=HEADS), (INPUTS,), CLASSES).network


def one_by_one(network: Network, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Features and logits of each head from its own rows of the weights, in evaluation."""
    backbone, head = network.backbone, network.head
    hidden = backbone.before(x)
    outputs = []
    for number in range(HEADS):
        rows = slice(number * WIDTH, (number + 1) * WIDTH)
        mapped = linear(hidden, backbone.bottleneck.weight)
        features = backbone.after(mapped)[:, rows]
        outputs.append((features, linear(features, head.weight[number], head.bias[number, 0])))
    return outputs


class TestEnsemble:
    def test_it_predicts_the_mean_of_its_heads_probabilities(self, network: Network) -> None:
        network.eval()
        x = torch.randn(7, INPUTS)
        outputs, slow = network(x, Side.TARGET), one_by_one(network, x)
        mean = torch.stack([logits.softmax(1) for _, logits in slow]).mean(0)
        torch.testing.assert_close(outputs.probabilities, mean)
        torch.testing.assert_close(outputs.logits.exp().sum(1), torch.ones(7))
        torch.testing.assert_close(outputs.features, torch.cat([features for features, _ in slow], dim=1))

    def test_each_head_has_its_own_outputs(self, network: Network) -> None:
        network.eval()
        x = torch.randn(7, INPUTS)
        (heads,), slow = network.each_head([(x, Side.TARGET)]), one_by_one(network, x)
        for own, (features, logits) in zip(heads, slow, strict=True):
            torch.testing.assert_close(own.features, features)
            torch.testing.assert_close(own.logits, logits)

    def test_heads_start_differently(self, network: Network) -> None:
        assert isinstance(network.head, HeadEnsemble)
        assert len({tuple(weight.flatten().tolist()) for weight in network.head.weight}) == HEADS

    def test_a_single_head_is_a_network_without_ensemble(self) -> None:
        torch.manual_seed(0)
        network = build_parts(NetworkSettings(bottleneck=WIDTH), (INPUTS,), CLASSES).network
        assert isinstance(network.head, nn.Linear)
        x = torch.randn(4, INPUTS)
        ((own,),), (whole,) = network.eval().each_head([(x, Side.SOURCE)]), network.each([(x, Side.SOURCE)])
        assert all(torch.equal(a, b) for a, b in zip(own, whole, strict=True))

    def test_one_linear_layer_has_no_ensemble(self) -> None:
        assert decide(NetworkSettings(heads=4, head="linear"), (INPUTS,)).heads == 1

    def test_heads_that_would_start_alike_are_one(self) -> None:
        assert decide(NetworkSettings(heads=2, bottleneck=None), (INPUTS,)).heads == 1


class TestTraining:
    def test_dropout_differs_between_heads(self) -> None:
        torch.manual_seed(0)
        layer = Bottleneck(50, WIDTH, heads=HEADS, dropout=0.5)
        hidden = layer.train().before(torch.randn(8, 50))
        assert hidden.shape == (HEADS, 8, 50)
        dropped = hidden == 0
        assert not torch.equal(dropped[0], dropped[1])

    def test_batched_maps_equal_one_product_for_each_head(self) -> None:
        torch.manual_seed(0)
        layer = Bottleneck(INPUTS, WIDTH, heads=HEADS).double()
        hidden = torch.randn(HEADS, 8, INPUTS, dtype=torch.float64, requires_grad=True)
        weight = layer.bottleneck.weight
        slow = torch.cat([hidden[head] @ weight[head * WIDTH : (head + 1) * WIDTH].T for head in range(HEADS)], dim=1)
        fast, cost = layer.map(hidden), torch.randn(8, HEADS * WIDTH, dtype=torch.float64)
        torch.testing.assert_close(fast, slow)
        for ours, theirs in zip(
            torch.autograd.grad(fast, (hidden, weight), cost),
            torch.autograd.grad(slow, (hidden, weight), cost),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs)

    def test_batched_maps_in_mixed_precision(self) -> None:
        """The backward pass runs outside of autocast, where torch mixes no number formats."""
        torch.manual_seed(0)
        layer = Bottleneck(INPUTS, WIDTH, heads=HEADS)
        hidden, cost = torch.randn(HEADS, 8, INPUTS, requires_grad=True), torch.randn(8, HEADS * WIDTH)
        leaves = (hidden, layer.bottleneck.weight)
        exact = torch.autograd.grad(layer.map(hidden), leaves, cost)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mapped = layer.map(hidden)
        assert mapped.dtype == torch.bfloat16
        rough = torch.autograd.grad(mapped, leaves, cost.bfloat16())
        for ours, theirs in zip(rough, exact, strict=True):
            assert ours.dtype == torch.float32
            torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.1)

    def test_a_head_learns_from_its_own_loss_only(self, network: Network) -> None:
        (heads,) = network.train().each_head([(torch.randn(8, INPUTS), Side.SOURCE)])
        heads[1].logits.logsumexp(1).sum().backward()
        touched = network.backbone.bottleneck.weight.grad.view(HEADS, WIDTH, INPUTS).abs().sum((1, 2)) > 0
        assert touched.tolist() == [False, True, False]
        assert (network.head.weight.grad.abs().sum((1, 2)) > 0).tolist() == [False, True, False]

    @pytest.mark.parametrize("probability", [0.3, 0.5, 1 / 256, 0.25, 0.9])
    def test_dropout_keeps_the_mean(self, probability: float) -> None:
        torch.manual_seed(0)
        dropped = drop_out(torch.ones(100_000), probability)
        assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (1 - probability)])
        assert abs(float(dropped.eq(0).float().mean()) - probability) < 0.01
        assert abs(float(dropped.mean()) - 1) < 0.02

    @pytest.mark.parametrize("probability", [0.3, 0.5])
    def test_dropout_draws_each_value_by_itself(self, probability: float) -> None:
        torch.manual_seed(0)
        kept = drop_out(torch.ones(2000, 16), probability).ne(0).float()
        correlations = torch.corrcoef(kept.T) - torch.eye(16)
        assert float(correlations.abs().max()) < 0.1

    def test_no_and_full_dropout(self) -> None:
        assert not drop_out(torch.ones(5), 1.0).any()
        assert drop_out(torch.ones(5), 0.0).eq(1).all()


def test_gradients_in_mixed_precision(network: Network) -> None:
    x = torch.randn(20, INPUTS, requires_grad=True)
    gradients = []
    for enabled in (False, True):
        torch.manual_seed(0)
        network.train().zero_grad()
        x.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = network.each([(x, Side.SOURCE)])[0].logits.float().square().mean()
        loss.backward()
        gradients.append([parameter.grad for parameter in (x, *network.parameters()) if parameter.grad is not None])
    for exact, rounded in zip(*gradients, strict=True):
        assert rounded.dtype == torch.float32
        assert torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0) > 0.99
