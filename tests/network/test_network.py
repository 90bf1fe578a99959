"""The network, how it is decided and built, and which layers learn how fast."""

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.network import backbones
from candapt.network.backbones import build_backbone
from candapt.network.batchnorm import DomainBatchNorm, select_side
from candapt.network.build import build_network, build_parts, decide, freeze_stem
from candapt.network.network import Bottleneck, Correction, Network, linear_head
from candapt.settings import NetworkSettings, TrainingSettings
from candapt.training.optimizers import build_optimizers


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return build_parts(NetworkSettings(bottleneck=8), (6,), 3).network


class TestNetwork:
    def test_outputs(self, network: Network) -> None:
        outputs = network(torch.randn(5, 6), Side.SOURCE)
        assert outputs.features.shape == (5, 8)
        assert torch.equal(outputs.logits, network.head(outputs.features))
        torch.testing.assert_close(outputs.probabilities, outputs.logits.exp() / outputs.logits.exp().sum(1, True))

    @pytest.mark.parametrize("side", Side)
    def test_a_batch_is_normalized_by_its_side(self, network: Network, side: Side) -> None:
        other = Side(1 - side)
        network(torch.randn(5, 6), other)  # what was last does not matter
        norm = network.backbone.input_norm
        before = norm.norms[other].running_mean.clone()
        network(torch.randn(5, 6), side)
        assert norm.side == side
        assert torch.equal(norm.norms[other].running_mean, before)

    def test_the_same_input_differs_between_sides_once_their_statistics_do(self, network: Network) -> None:
        x = torch.randn(20, 6)
        network(x, Side.SOURCE), network(x + 4, Side.TARGET)
        network.eval()
        assert not torch.allclose(network(x, Side.SOURCE).logits, network(x, Side.TARGET).logits)

    def test_another_head_shares_the_backbone_and_leaves_the_network_as_it_is(self, network: Network) -> None:
        modules, own, head = dict(network.named_modules()), network.head, linear_head(8, 5)
        other = network.with_head(head)
        assert other.backbone is network.backbone
        assert (other.head, network.head) == (head, own)
        assert dict(network.named_modules()) == modules
        assert [name for name, _ in other.named_parameters()] == [name for name, _ in network.named_parameters()]
        assert other(torch.randn(4, 6), Side.TARGET).logits.shape == (4, 5)
        assert network(torch.randn(4, 6), Side.TARGET).logits.shape == (4, 3)

    def test_what_is_set_on_a_network_with_another_head_stays_with_it(self) -> None:
        layers = nn.Sequential(OrderedDict(layers=nn.Linear(6, 6), bottleneck=Bottleneck(6, 8)))
        network = Network(layers, 8, 3, pretrained=True)
        other = network.with_head(linear_head(8, 3))
        other.layers_are_fixed = True
        with other.over_features():
            assert other.backbone is layers.bottleneck
            assert network.backbone is layers
        assert other.backbone is layers
        assert not network.layers_are_fixed

    def test_head_starts_as_in_the_paper(self) -> None:
        torch.manual_seed(0)
        head = linear_head(400, 300)
        assert torch.equal(head.bias, torch.zeros(300))
        assert float(head.weight.detach().std()) == pytest.approx(
            (2 / 400) ** 0.5, rel=0.01
        )  # Kaiming: variance 2 / inputs

    def test_a_correction_starts_as_the_identity(self) -> None:
        x = torch.randn(5, 6)
        assert torch.equal(Correction(6, 2)(x), x)

    def test_a_correction_first_moves_like_a_full_matrix(self) -> None:
        torch.manual_seed(0)
        x, wanted, moved = torch.randn(4, 50), torch.randn(4, 50), []
        for layer in (nn.Linear(50, 50, bias=False), *(Correction(50, 10) for _ in range(300))):
            nn.init.eye_(layer.weight) if isinstance(layer, nn.Linear) else None
            (layer(x) * wanted).sum().backward()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter -= 0.1 * parameter.grad
                moved.append(layer(x) - x)
        torch.testing.assert_close(torch.stack(moved[1:]).mean(0), moved[0], rtol=0.1, atol=1.0)
        assert torch.stack(moved[1:]).mean(0).norm() == pytest.approx(float(moved[0].norm()), rel=0.05)

    def test_the_length_of_a_feature_vector_does_not_matter(self) -> None:
        torch.manual_seed(0)
        backbone = Bottleneck(6, 8).eval()
        x = torch.randn(5, 6)
        torch.testing.assert_close(backbone(x), backbone(x * torch.tensor([[0.1], [1], [2], [30], [1000]])))

    @pytest.mark.parametrize("width", [None, 8])
    def test_several_batches_at_once_are_as_one_after_the_other(self, width: int | None) -> None:
        torch.manual_seed(0)
        together = Network(Bottleneck(6, width), width or 6, 3)
        alone = copy.deepcopy(together)
        batches = [(torch.randn(5, 6), Side.SOURCE), (torch.randn(7, 6), Side.TARGET), (torch.randn(4, 6), Side.SOURCE)]
        torch.manual_seed(1)
        outputs = together.each(batches)
        torch.manual_seed(1)
        for (x, side), output in zip(batches, outputs, strict=True):
            torch.testing.assert_close(tuple(output), tuple(alone(x, side)))
        torch.testing.assert_close(together.state_dict(), alone.state_dict())  # the statistics of the batch norms


class TestDecisions:
    @pytest.mark.parametrize(
        ("shape", "backbone", "expected"),
        [
            ((2048,), "auto", ("features", "head")),
            ((2048,), "resnet50", ("features", "head")),  # the backbone has done its work before
            ((1, 16, 16), "auto", ("small-cnn", "all")),
            ((1, 64, 64), "auto", ("small-cnn", "all")),
            ((1, 224, 224), "auto", ("resnet50.tv_in1k", None)),
            ((3, 224, 224), "auto", ("resnet50.tv_in1k", None)),
            ((3, 224, 224), "resnet101", ("resnet101", None)),
        ],
    )
    def test_auto(
        self,
        shape: tuple[int, ...],
        backbone: str,
        expected: tuple[str, str | None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(backbones, "_can_be_had", lambda name: True)
        decided = decide(NetworkSettings(backbone=backbone), shape)
        by_device = "all" if torch.cuda.is_available() else "head"
        assert (decided.backbone, decided.finetune) == (expected[0], expected[1] or by_device)

    def test_a_choice_is_kept(self) -> None:
        assert decide(NetworkSettings(backbone="small-cnn", finetune="head"), (1, 16, 16)).finetune == "head"
        assert decide(NetworkSettings(finetune="all"), (3, 224, 224)).finetune == "all"


class TestParts:
    def test_features(self) -> None:
        parts = build_parts(NetworkSettings(bottleneck=8), (6,), 3)
        assert parts.frozen is None
        assert parts.network(torch.randn(4, 6), Side.TARGET).logits.shape == (4, 3)
        assert not parts.network.pretrained

    def test_small_images(self) -> None:
        parts = build_parts(NetworkSettings(), (1, 16, 16), 3)
        assert parts.frozen is None
        assert parts.network(torch.randn(4, 1, 16, 16), Side.TARGET).logits.shape == (4, 3)
        assert sum(isinstance(layer, DomainBatchNorm) for layer in parts.network.modules()) == 4

    def test_a_frozen_backbone_is_apart_and_fixed(self) -> None:
        parts = build_parts(NetworkSettings(backbone="small-cnn", finetune="head", bottleneck=8), (1, 16, 16), 3)
        assert parts.frozen is not None
        assert not parts.frozen.training
        assert not any(parameter.requires_grad for parameter in parts.frozen.parameters())
        features = parts.frozen(torch.randn(4, 1, 16, 16))
        assert parts.network(features, Side.TARGET).logits.shape == (4, 3)
        assert not any(isinstance(layer, DomainBatchNorm) for layer in parts.frozen.modules())

    def test_channels_must_fit(self) -> None:
        with pytest.raises(UserError, match=r"small-cnn takes images with 1 channel.*have 3"):
            build_parts(NetworkSettings(backbone="small-cnn"), (3, 16, 16), 3)

    def test_the_layout_builds_the_same_without_weights(self) -> None:
        first = build_parts(NetworkSettings(), (1, 16, 16), 3)
        again = build_parts(first.settings, (1, 16, 16), 3, first.layout)
        again.network.load_state_dict(first.network.state_dict())
        x = torch.randn(4, 1, 16, 16)
        assert torch.equal(first.network.eval()(x, Side.TARGET).logits, again.network.eval()(x, Side.TARGET).logits)


class TestLearningRates:
    """methods.md 1.6: the base rate for pretrained layers, ten times that for new ones, weights and biases alike."""

    @staticmethod
    def rates(network: Network) -> dict[str, float]:
        method = METHODS["source-only"](network, METHODS["source-only"].Settings())
        (optimizer,) = build_optimizers(method, TrainingSettings(learning_rate=0.002, optimizer="sgd")).values()
        by_parameter = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert all(group["lr"] == group["initial_lr"] for group in optimizer.param_groups)
        assert all(group["momentum"] == 0.9 and not group["nesterov"] for group in optimizer.param_groups)
        assert all(group["weight_decay"] == 5e-4 for group in optimizer.param_groups)
        return {name: by_parameter[p] for name, p in network.named_parameters() if p in by_parameter}

    @staticmethod
    def over_resnet(head: Literal["linear", "bottleneck"] = "linear") -> Network:
        backbone = build_backbone("resnet18", pretrained=False)
        freeze_stem(backbone.model)
        return build_network(backbone, backbone.num_features, 3, NetworkSettings(head=head), pretrained=True)

    def test_a_bottleneck_over_pretrained_layers_is_new(self) -> None:
        rates = self.rates(self.over_resnet("bottleneck"))
        assert {rate for name, rate in rates.items() if name.startswith("backbone.layers.")} == {0.002}
        assert {rate for name, rate in rates.items() if name.startswith(("backbone.bottleneck.", "head."))} == {0.02}

    def test_a_network_that_was_not_pretrained_is_new_throughout(self, network: Network) -> None:
        rates = self.rates(network)
        assert set(rates) == {name for name, _ in network.named_parameters()}
        assert set(rates.values()) == {0.02}

    def test_a_pretrained_backbone_learns_slower_than_the_head(self) -> None:
        network = self.over_resnet()
        rates = self.rates(network)
        assert {name: rate for name, rate in rates.items() if name.startswith("head.")} == {
            "head.weight": 0.02,
            "head.bias": 0.02,
        }
        assert {rate for name, rate in rates.items() if name.startswith("backbone.")} == {0.002}

    def test_the_stem_of_a_pretrained_resnet_is_not_trained(self) -> None:
        network = self.over_resnet()
        stages = {name.split(".")[2] for name in self.rates(network) if name.startswith("backbone.")}
        assert stages == {"layer2", "layer3", "layer4"}

    @pytest.mark.parametrize("frozen", [True, False])
    def test_the_stem_is_trained_if_the_settings_say_so(self, tmp_path: Path, frozen: bool) -> None:
        weights = tmp_path / "resnet18.safetensors"
        save_file(build_backbone("resnet18", pretrained=False).model.state_dict(), weights)
        settings = NetworkSettings("resnet18", weights, "all", frozen_stem=frozen)
        network = build_parts(settings, (3, 64, 64), 3).network
        trained = {name.split(".")[2] for name in self.rates(network) if name.startswith("backbone.")}
        assert ("conv1" in trained, "bn1" in trained, "layer1" in trained) == (not frozen,) * 3

    def test_both_sides_of_a_norm_are_trained(self, network: Network) -> None:
        assert {f"backbone.norm.norms.{side}.weight" for side in Side} <= set(self.rates(network))


def test_select_side_reaches_every_depth() -> None:
    model = nn.Sequential(DomainBatchNorm(nn.BatchNorm1d(2)), nn.Sequential(DomainBatchNorm(nn.BatchNorm1d(2))))
    select_side(model, Side.TARGET)
    assert [model[0].side, model[1][0].side] == [Side.TARGET, Side.TARGET]
