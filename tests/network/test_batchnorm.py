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
from candapt.network.batchnorm import (
    DomainBatchNorm,
    Moments,
    convert_batchnorm,
    estimate_statistics,
    keep_side,
    keep_statistics,
    select_side,
    share_affine,
)


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


def test_keeping_a_side_of_a_bare_norm_copies_it() -> None:
    norm = convert_batchnorm(pretrained(nn.BatchNorm1d(3)))
    kept = keep_side(norm, Side.TARGET)
    before = state(norm)
    for tensor in kept.state_dict().values():
        tensor.zero_()
    assert same(state(norm), before)


def random_sides(model: nn.Module) -> nn.Module:
    """The model, converted, with statistics and affine maps that differ between the sides."""
    convert_batchnorm(model)
    for layer in domain_norms(model):
        for side, norm in zip(Side, layer.norms, strict=True):
            pretrained(norm, seed=1 + side)
    return model


class TestKeptStatistics:
    def test_a_norm_trains_by_default_and_one_that_keeps_its_statistics_does_not(self) -> None:
        model = random_sides(Block())
        assert all(not norm.training for layer in domain_norms(model.eval()) for norm in layer.norms)
        assert all(norm.training for layer in domain_norms(model.train()) for norm in layer.norms)
        for layer in domain_norms(model.eval()):
            assert layer.train() is layer
            assert all(norm.training for norm in layer.norms)
            assert not any(norm.training for norm in layer.train(False).norms)
        keep_statistics(model.train())
        assert not any(norm.training for layer in domain_norms(model) for norm in layer.norms)
        assert not any(norm.training for layer in domain_norms(model.train()) for norm in layer.norms)
        assert model.training  # the rest learns on

    @pytest.mark.parametrize("side", Side)
    def test_training_leaves_them_and_uses_them(self, side: Side) -> None:
        model = random_sides(Block())
        select_side(model.eval(), side)
        expected, before = model(images()), state(model)
        keep_statistics(model)
        made = model.train()(images())
        torch.testing.assert_close(made, expected)
        assert same(state(model), before)

    def test_whole_domains_do_not_change_them(self) -> None:
        model = random_sides(Block())
        keep_statistics(model.norm)
        before = state(model.norm)
        estimate_statistics(model, Side.TARGET, [images(seed=3)])
        assert same(state(model.norm), before)
        assert model.stages[0][1].norms[Side.TARGET].num_batches_tracked == 0  # the others did learn


def test_shared_affine_maps_are_those_of_the_source() -> None:
    model = random_sides(Block())
    before = [[state(norm) for norm in layer.norms] for layer in domain_norms(model)]
    share_affine(model)
    for layer, (source, target) in zip(domain_norms(model), before, strict=True):
        assert same(state(layer.norms[Side.SOURCE]), source)
        after = state(layer.norms[Side.TARGET])
        for name, value in after.items():
            assert torch.equal(value, (source if name in ("weight", "bias") else target)[name])
        assert not torch.equal(source["weight"], target["weight"])
        assert all(parameter.requires_grad for parameter in layer.parameters())


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

    def test_batches_are_not_counted(self) -> None:
        norms = [nn.BatchNorm1d(3), nn.BatchNorm1d(3)]
        for norm, batches in zip(norms, (1, 4), strict=True):
            norm.num_batches_tracked += 7
            estimate_statistics(model := convert_batchnorm(norm), Side.TARGET, torch.rand(4 * batches, 3).split(4))
            assert model.norms[Side.TARGET].num_batches_tracked == 0

    def test_half_precision_far_from_the_origin(self) -> None:
        domain = (1000 + torch.arange(64.0) % 4).half()[:, None]  # sums of squares overflow half precision
        model = convert_batchnorm(nn.BatchNorm1d(1))
        estimate_statistics(model, Side.SOURCE, domain.float().split(16))
        torch.testing.assert_close(model.norms[0].running_mean, torch.tensor([1001.5]))
        torch.testing.assert_close(model.norms[0].running_var, domain.float().var(0), rtol=1e-4, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_moments_of_half_precision(self, dtype: torch.dtype) -> None:
        x = (300 + 10 * torch.randn(50, 3, generator=torch.Generator().manual_seed(0))).to(dtype)
        moments = Moments()
        moments.add(x)
        count, total, squares = moments.sums
        exact = x.double()
        assert count.dtype == torch.float64
        assert count.tolist() == [50, 50, 50]
        torch.testing.assert_close(total, exact.sum(0), rtol=1e-6, atol=0)
        torch.testing.assert_close(squares, exact.square().sum(0), rtol=1e-6, atol=0)

    def test_a_constant_channel_has_no_variance(self) -> None:
        for value in torch.linspace(-1000, 1000, 41):
            model = convert_batchnorm(nn.BatchNorm1d(1))
            estimate_statistics(model, Side.TARGET, [torch.full((n, 1), float(value)) for n in (3, 5, 7)])
            assert 0 <= model.norms[Side.TARGET].running_var.item() < 1e-6
            assert model.norms[Side.TARGET].running_mean.item() == pytest.approx(float(value))

    def test_norms_without_running_statistics_stay_without(self) -> None:
        model = convert_batchnorm(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3)))
        estimate_statistics(model, Side.TARGET, [torch.rand(6, 3)])
        assert model[0].norms[Side.TARGET].running_mean is None
        assert not model[1].norms[Side.TARGET].running_mean.equal(torch.zeros(3))

    def test_no_gradient_is_recorded(self) -> None:
        model = convert_batchnorm(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
        outputs: list[Tensor] = []
        model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        estimate_statistics(model, Side.TARGET, [torch.rand(6, 3)])
        assert not outputs[0].requires_grad

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
