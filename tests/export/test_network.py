"""What is exported computes what `Model.predict` computes, for every method and kind of network."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import candapt
from candapt.adaptation import adapt
from candapt.assessment import assess, with_confidence
from candapt.data.domains import ArraySamples, Domain, Side
from candapt.errors import UserError
from candapt.evaluation.confidence import SampleConfidence
from candapt.export import network as export_network
from candapt.export.exporting import describe
from candapt.export.folding import NORM, fold_batch_norms
from candapt.export.formats import Traced, to_onnx, to_program_file, trace
from candapt.export.metadata import OUTPUTS, SIMILAR
from candapt.export.network import TargetNetwork, confidence_kind, without_large_bank
from candapt.methods import METHODS
from candapt.model import Model, Predictions
from candapt.network.batchnorm import DomainBatchNorm
from candapt.network.build import build_parts
from candapt.settings import NetworkSettings
from tests.toy import Toy, quick_settings

CLOSE = {"atol": 1e-5, "rtol": 0}


def outputs_of(model: Model) -> tuple[Traced, dict[str, Tensor]]:
    """The traced network, and what it says of noise."""
    traced = trace(model)
    return traced, traced.program.module()(noise(model))


def noise(model: Model, count: int = 9) -> Tensor:
    return torch.randn(count, *model.shape, generator=torch.Generator().manual_seed(0))


def expected(model: Model, samples: Tensor) -> Predictions:
    return model.predict(Domain(ArraySamples(samples)))


def assert_same(outputs: dict[str, Tensor], predictions: Predictions) -> None:
    assert tuple(outputs)[: len(OUTPUTS)] == OUTPUTS
    assert tuple(outputs)[len(OUTPUTS) :] in ((), SIMILAR)  # a model with stored samples names those that are like it
    if predictions.unknown is not None:
        torch.testing.assert_close(outputs["unknown"], predictions.unknown, **CLOSE)
    torch.testing.assert_close(outputs["probabilities"], predictions.probabilities, **CLOSE)
    torch.testing.assert_close(outputs["confidence"], predictions.confidence, **CLOSE)
    assert torch.equal(outputs["label"], predictions.labels)


def has_no_norm(traced: Traced) -> bool:
    return not any(node.target is NORM for node in traced.program.graph.nodes)


class TestMethods:
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_over_features(self, toy: Toy, method: str) -> None:
        """Also those whose network is a teacher, has two classifiers, or treats the target like the source."""
        model = adapt(toy.task, quick_settings(method, rounds=1, training__steps=2)).model
        traced, outputs = outputs_of(model)
        assert_same(outputs, expected(model, noise(model)))
        assert has_no_norm(traced)
        assert not any("student" in name for name in traced.program.state_dict)

    @pytest.mark.parametrize("method", ["can", "self-ensembling", "mcd"])
    def test_through_onnx(self, toy: Toy, method: str) -> None:
        model = adapt(toy.task, quick_settings(method, rounds=1, training__steps=2)).model
        session = onnxruntime.InferenceSession(to_onnx(trace(model)).SerializeToString())
        for count in (1, 9):
            samples = noise(model, count)
            made = map(torch.from_numpy, session.run(None, {"input": samples.numpy()}))
            assert_same(dict(zip(OUTPUTS, made, strict=True)), expected(model, samples))

    @pytest.mark.parametrize("method", ["can", "source-only"])
    @pytest.mark.parametrize("bottleneck", [16, None])
    def test_the_sides_differ(self, toy: Toy, method: str, bottleneck: int | None) -> None:
        """Otherwise the tests above would not notice the wrong one."""
        settings = quick_settings(method, rounds=1, training__steps=2, network__bottleneck=bottleneck)
        model = adapt(toy.task, settings).model
        traced, outputs = outputs_of(model)
        other = model.predict(Domain(ArraySamples(noise(model))), Side.SOURCE)
        assert not torch.allclose(outputs["probabilities"], other.probabilities, **CLOSE)
        assert_same(outputs, expected(model, noise(model)))
        assert has_no_norm(traced)


class TestRuns:
    @pytest.mark.parametrize("name", ["feature_run", "photo_run", "gray_run"])
    def test_runs_from_files(self, name: str, request: pytest.FixtureRequest) -> None:
        model = candapt.load(request.getfixturevalue(name))
        traced, outputs = outputs_of(model)
        assert_same(outputs, expected(model, noise(model)))
        assert has_no_norm(traced)

    def test_what_each_is_there_for(self, feature_run: Path, photo_run: Path, gray_run: Path) -> None:
        features, photos, gray = (candapt.load(run) for run in (feature_run, photo_run, gray_run))
        assert features.parts.settings.heads == 3
        assert photos.parts.frozen is not None
        assert [confidence_kind(model) for model in (features, photos, gray)] == ["neighbors", "neighbors", "class"]

    def test_rounding_after_frozen_layers_is_part_of_it(self, photo_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = candapt.load(photo_run)
        exact = expected(model, noise(model)).probabilities
        with_rounding = TargetNetwork(model)(noise(model))["probabilities"]
        monkeypatch.setattr(export_network, "rounded", lambda values: values)
        without = TargetNetwork(model)(noise(model))["probabilities"]
        assert (with_rounding - exact).abs().max() < (without - exact).abs().max()

    def test_any_batch_and_a_stored_program(self, feature_run: Path) -> None:
        model = candapt.load(feature_run)
        content = to_program_file(trace(model), describe(model, "torch"))
        program = torch.export.load(io.BytesIO(content)).module()
        for count in (1, 2, 70):
            assert_same(program(noise(model, count)), expected(model, noise(model, count)))


class TestFamilies:
    """Networks as they start, with batch norms of their own for each domain."""

    @staticmethod
    def model(backbone: str, finetune: str) -> Model:
        torch.manual_seed(0)
        settings = NetworkSettings(backbone=backbone, finetune=finetune, bottleneck=16)  # type: ignore[arg-type]
        parts = build_parts(settings, (3, 32, 32), 3, {"bottleneck_stride": "3x3"})
        for layer in parts.network.modules():
            if isinstance(layer, DomainBatchNorm):
                layer.norms[Side.TARGET].running_mean.normal_()
                layer.norms[Side.TARGET].running_var.uniform_(0.5, 2)
        method = METHODS["can"](parts.network, METHODS["can"].Settings()).eval()
        centers = torch.zeros(3, parts.network.num_features)
        return Model(method, "can", parts, ("a", "b", "c"), (3, 32, 32), None, 8, centers, torch.zeros(3))

    @pytest.mark.parametrize(
        ("backbone", "finetune"),
        [
            ("test_resnet", "all"),
            ("test_resnet", "last-stage"),
            ("test_efficientnet", "all"),  # its batch norms apply an activation too
            ("test_convnext", "last-stage"),
            ("test_vit", "last-stage"),
            ("test_vit", "all"),
        ],
    )
    def test_every_family(self, backbone: str, finetune: str) -> None:
        model = self.model(backbone, finetune)
        traced, outputs = outputs_of(model)
        assert has_no_norm(traced)
        assert_same(outputs, expected(model, noise(model)))
        assert_same(traced.program.module()(noise(model, 1)), expected(model, noise(model, 1)))

    def test_what_cannot_be_traced_is_one_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TargetNetwork, "forward", lambda self, x: {"n": x * len(x)})
        with pytest.raises(UserError, match="torch cannot trace 'test_resnet' for batches of any size"):
            trace(self.model("test_resnet", "all"))


class TestConfidence:
    def test_the_bank_as_a_graph_is_the_bank(self, toy: Toy) -> None:
        """On samples of the target, whose neighbors and classes vary."""
        result = adapt(toy.task, quick_settings())
        model = with_confidence(result, assess(result)).model
        samples = torch.from_numpy(toy.target_x)
        assert_same(TargetNetwork(model)(samples), expected(model, samples))
        assert len(expected(model, samples).confidence.unique()) > 10

    def test_a_bank_that_is_too_large_is_left_out(self, feature_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = candapt.load(feature_run)
        assert without_large_bank(model) is model
        monkeypatch.setattr(export_network, "MAX_BANK", export_network.bank_size(model) - 1)
        smaller = without_large_bank(model)
        assert confidence_kind(smaller) == "class"
        assert_same(TargetNetwork(smaller)(noise(model)), expected(smaller, noise(model)))
        assert export_network.bank_size(smaller) == 0

    def test_without_a_calibrator_it_is_the_softmax(self, feature_run: Path) -> None:
        model = replace(candapt.load(feature_run), calibrator=None)
        outputs = TargetNetwork(model)(noise(model))
        assert confidence_kind(model) == "softmax"
        assert torch.equal(outputs["confidence"], outputs["probabilities"].amax(1))

    def test_a_bank_smaller_than_the_number_of_neighbors(self, feature_run: Path) -> None:
        model = candapt.load(feature_run)
        calibrator = model.calibrator
        assert calibrator is not None
        assert calibrator.reference is not None
        assert calibrator.bank_labels is not None
        few = SampleConfidence(
            calibrator.kind,
            calibrator.class_confidence,
            replace(calibrator.reference.reduced(8), target_rows=torch.arange(4)),
            calibrator.bank_labels[:4],
            calibrator.means,
        )
        smaller = replace(model, calibrator=few)
        assert_same(TargetNetwork(smaller)(noise(model)), expected(smaller, noise(model)))


class TestFolding:
    """Small networks with batch norms in every place; what is left is the same function without them."""

    @staticmethod
    def folded(module: nn.Module, example: Tensor) -> tuple[torch.fx.GraphModule, Tensor]:
        random = torch.Generator().manual_seed(1)
        for layer in module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
                    if tensor is not None:
                        tensor.data.copy_(torch.rand(tensor.shape, generator=random) + 0.5)
        module.eval()
        made = fold_batch_norms(torch.export.export(module, (example,)).module(check_guards=False))
        torch.testing.assert_close(made(example), module(example), atol=1e-5, rtol=1e-5)
        assert not any(node.target is NORM for node in made.graph.nodes)
        return made, example

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("affine", [True, False])
    def test_after_a_layer(self, bias: bool, affine: bool) -> None:
        layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, bias=bias, padding="same"),
            nn.BatchNorm2d(6, affine=affine),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, groups=2, bias=bias),
            nn.BatchNorm2d(8, affine=affine),
            nn.Flatten(),
            nn.Linear(8 * 16, 5, bias=bias),
            nn.BatchNorm1d(5, affine=affine),
        )
        made, _ = self.folded(layers, torch.randn(2, 3, 6, 6))
        assert not [node for node in made.graph.nodes if node.target is torch.ops.aten.mul.Tensor]
        assert len(dict(made.named_buffers())) == 6  # weight and bias of each layer, and nothing else

    def test_where_no_layer_precedes(self) -> None:
        made, _ = self.folded(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3)), torch.randn(2, 3, 4, 4))
        assert len([node for node in made.graph.nodes if node.target is torch.ops.aten.mul.Tensor]) == 2

    def test_a_layer_whose_output_or_weights_others_use_stays(self) -> None:
        class Shared(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.norm, self.other = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)

            def forward(self, x: Tensor) -> Tensor:
                y = self.layer(x)
                return self.norm(y) + y + self.other(self.layer(x + 1))

        self.folded(Shared(), torch.randn(3, 4))

    def test_a_change_of_the_memory_layout_between_the_two(self) -> None:
        class Between(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(self.layer(x).contiguous(memory_format=torch.channels_last))

        made, _ = self.folded(Between(), torch.randn(2, 3, 4, 4))
        assert not [node for node in made.graph.nodes if node.target is torch.ops.aten.mul.Tensor]

    def test_extreme_statistics(self) -> None:
        """A channel that never varies has a variance of zero."""
        layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
        layers[1].running_var.zero_()
        made = fold_batch_norms(torch.export.export(layers, (torch.randn(3, 4),)).module(check_guards=False))
        x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
        torch.testing.assert_close(made(x), layers(x), atol=1e-3, rtol=1e-4)

    def test_in_training_is_an_error(self) -> None:
        layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        with pytest.raises(ValueError, match="in training"):
            fold_batch_norms(torch.export.export(layers, (torch.randn(3, 4),)).module(check_guards=False))
