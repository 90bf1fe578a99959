"""Domain-specific batch norm against plain batch norms."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from candapt.data.domains import Side
from candapt.network.backbones import build_backbone
from candapt.network.batchnorm import DomainBatchNorm, convert_batchnorm, estimate_statistics, keep_side, select_side


class Block(nn.Module):
    """A norm as an attribute, one in a list and one in a sequence, at different depths."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.stages = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.2), nn.ReLU())])
        self.head = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4 * 36, 5), nn.BatchNorm1d(5)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.head(x)
        return out


def pretrained(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with batch norms that tell a history: random statistics and affine maps."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if isinstance(norm, _BatchNorm):
            for tensor in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.eval()


def images(count: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def domain_norms(model: nn.Module) -> list[DomainBatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, DomainBatchNorm)]


def state(norm: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in norm.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class TestConversion:
    def test_every_norm_becomes_two_that_start_from_it(self) -> None:
        model = pretrained(Block())
        before = [state(norm) for norm in model.modules() if isinstance(norm, _BatchNorm)]
        converted = convert_batchnorm(model)
        assert converted is model
        assert len(domain_norms(model)) == len(before) == 3
        for layer, pretrained_state in zip(domain_norms(model), before, strict=True):
            assert [same(state(norm), pretrained_state) for norm in layer.norms] == [True, True]

    @pytest.mark.parametrize("side", Side)
    def test_outputs_are_those_of_the_pretrained_model(self, side: Side) -> None:
        model = pretrained(Block())
        expected = model(images())
        select_side(convert_batchnorm(model), side)
        assert torch.equal(model(images()), expected)

    # The second one has norms with an activation inside, a class of timm's own.
    @pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050"])
    @torch.no_grad()
    def test_models_of_timm(self, name: str) -> None:
        torch.manual_seed(0)
        model = pretrained(build_backbone(name, pretrained=False))
        x = torch.randn(2, 3, 32, 32)
        expected, norms = model(x), sum(isinstance(layer, _BatchNorm) for layer in model.modules())
        convert_batchnorm(model)
        assert len(domain_norms(model)) == norms > 10
        assert torch.equal(model(x), expected)

    def test_sides_share_no_tensor(self) -> None:
        original = pretrained(Block())
        model = convert_batchnorm(copy.deepcopy(original))
        for layer in domain_norms(model):
            places = [{tensor.data_ptr() for tensor in norm.state_dict().values()} for norm in layer.norms]
            assert not places[0] & places[1]
        norm = nn.BatchNorm1d(3)
        assert not {t.data_ptr() for t in norm.state_dict().values()} & {
            t.data_ptr() for t in convert_batchnorm(norm).state_dict().values()
        }

    def test_a_model_without_batch_norm_stays_as_it_is(self) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Sequential(nn.GroupNorm(2, 4)))
        modules, before = list(model.modules()), state(model)
        assert convert_batchnorm(model) is model
        assert all(now is then for now, then in zip(model.modules(), modules, strict=True))
        assert same(state(model), before)

    def test_a_second_conversion_changes_nothing(self) -> None:
        model = convert_batchnorm(pretrained(Block()))
        before, modules = state(model), list(model.modules())
        convert_batchnorm(model)
        assert same(state(model), before)
        assert list(model.modules()) == modules

    def test_a_bare_norm_is_converted_too(self) -> None:
        assert isinstance(convert_batchnorm(nn.BatchNorm1d(4)), DomainBatchNorm)


class TestSides:
    @pytest.mark.parametrize("side", Side)
    def test_only_the_selected_side_learns(self, side: Side) -> None:
        model = convert_batchnorm(pretrained(Block()))
        before = [[state(norm) for norm in layer.norms] for layer in domain_norms(model)]
        select_side(model.train(), side)
        model(images()).square().sum().backward()
        for layer, (source, target) in zip(domain_norms(model), before, strict=True):
            unchanged = [same(state(norm), then) for norm, then in zip(layer.norms, (source, target), strict=True)]
            assert unchanged == [side != Side.SOURCE, side != Side.TARGET]
            assert [norm.weight.grad is None for norm in layer.norms] == unchanged

    @pytest.mark.parametrize("side", Side)
    @torch.no_grad()
    def test_training_is_that_of_a_plain_model(self, side: Side) -> None:
        plain = pretrained(Block()).train()
        model = convert_batchnorm(copy.deepcopy(plain)).train()
        select_side(model, side)
        for seed in range(3):
            assert torch.equal(model(images(seed=seed)), plain(images(seed=seed)))
        assert same(state(keep_side(model, side)), state(plain))

    @pytest.mark.parametrize("side", Side)
    @torch.no_grad()
    def test_keeping_a_side_gives_a_plain_model_with_its_outputs(self, side: Side) -> None:
        model = convert_batchnorm(pretrained(Block())).train()
        for each in Side:  # so that the sides differ
            select_side(model, each)
            model(images(seed=each) + 3 * each)
        model.eval()
        select_side(model, side)
        before = state(model)
        plain = keep_side(model, side)
        assert not domain_norms(plain)
        assert [name for name, _ in plain.named_modules()] == [name for name, _ in Block().named_modules()]
        assert torch.equal(plain(images(seed=5)), model(images(seed=5)))
        assert same(state(model), before)
        plain.norm.running_mean.zero_()  # a copy: the model is not touched by what happens to it
        assert same(state(model), before)


class TestStatistics:
    """The running statistics of one side are taken from a whole domain."""

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.integers(2, 9), min_size=1, max_size=5), st.booleans(), st.integers(0, 2**31))
    def test_the_first_norm_gets_mean_and_variance_of_the_whole(
        self, sizes: list[int], in_order: bool, seed: int
    ) -> None:
        domain = 3 + 2 * torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(seed))
        if in_order:  # as when a folder is sorted by class
            domain = domain.sort(dim=0).values
        model = convert_batchnorm(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3)))
        estimate_statistics(model, Side.TARGET, domain.split(sizes))
        norm = model[0].norms[Side.TARGET]
        torch.testing.assert_close(norm.running_mean, domain.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var, domain.var(0), rtol=1e-4, atol=1e-5)

    @torch.no_grad()
    def test_images_are_averaged_over_places_too(self) -> None:
        model = convert_batchnorm(pretrained(Block()))
        domain = 2 + images(20)
        estimate_statistics(model, Side.SOURCE, domain.split(7))
        norm = model.norm.norms[Side.SOURCE]
        torch.testing.assert_close(norm.running_mean, domain.mean((0, 2, 3)))
        torch.testing.assert_close(norm.running_var, domain.var((0, 2, 3)))

    @torch.no_grad()
    def test_one_batch_normalizes_every_layer_as_training_would(self) -> None:
        model = convert_batchnorm(pretrained(Block()))
        domain = images(300)
        estimate_statistics(model, Side.TARGET, [domain])
        by_domain = model(domain)
        in_training = model.train()(domain)
        torch.testing.assert_close(by_domain, in_training, rtol=1e-2, atol=1e-2)  # variances: n - 1 against n

    @pytest.mark.parametrize("side", Side)
    def test_the_rest_is_left_alone(self, side: Side) -> None:
        model = convert_batchnorm(pretrained(Block())).train()
        before = [[state(norm) for norm in layer.norms] for layer in domain_norms(model)]
        momenta = [[norm.momentum for norm in layer.norms] for layer in domain_norms(model)]
        estimate_statistics(model, side, [images(seed=1), images(seed=2)])
        other = Side(1 - side)
        for layer, states in zip(domain_norms(model), before, strict=True):
            assert same(state(layer.norms[other]), states[other])
            assert torch.equal(layer.norms[side].weight, states[side]["weight"])
            assert not torch.equal(layer.norms[side].running_mean, states[side]["running_mean"])
        assert [[norm.momentum for norm in layer.norms] for layer in domain_norms(model)] == momenta
        assert not any(module.training for module in model.modules())
        assert not any(module._forward_pre_hooks for module in model.modules())

    def test_an_error_on_the_way_leaves_the_norms_usable(self) -> None:
        model = convert_batchnorm(pretrained(Block()))
        before = model.norm.norms[Side.TARGET].weight.clone()
        with pytest.raises(RuntimeError):
            estimate_statistics(model, Side.TARGET, [torch.zeros(2, 5, 8, 8)])
        assert not any(module.training for module in model.modules())
        assert torch.equal(model.norm.norms[Side.TARGET].weight, before)

    def test_a_model_without_batch_norm_is_only_run(self) -> None:
        model = nn.Sequential(nn.Linear(3, 2))
        before = state(model)
        estimate_statistics(model, Side.TARGET, [torch.zeros(2, 3)])
        assert same(state(model), before)
