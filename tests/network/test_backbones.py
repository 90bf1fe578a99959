"""Backbones, their weights and where they can be cut."""

import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from candapt.data.decoding import read_image
from candapt.data.images import find_images
from candapt.data.torchvision_ops import OPERATORS, declare_missing_operators
from candapt.data.transforms import Views
from candapt.errors import UserError
from candapt.network import backbones
from candapt.network.backbones import Backbone, build_backbone, check_weights, input_settings, split
from candapt.network.weights import read_weights
from candapt.settings import ImageSettings

SHARED = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2].parent / "shared"))
FAMILIES = ["small-cnn", "resnet18", "convnext_atto", "tf_efficientnet_lite0", "vit_tiny_patch16_224"]


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    torch.manual_seed(0)
    return build_backbone(request.param, pretrained=False).eval()


def images(backbone: Backbone, size: int = 64) -> torch.Tensor:
    return torch.rand(2, backbone.expects.channels, size, size)


def test_missing_operators_are_declared_once() -> None:
    assert declare_missing_operators() == ()
    assert all(hasattr(torch.ops.torchvision, name) for name in OPERATORS)


class TestSplit:
    @torch.no_grad()
    def test_the_parts_make_the_whole(self, backbone: Backbone) -> None:
        x = images(backbone)
        whole = backbone(x)
        assert whole.shape == (2, backbone.num_features)
        for depth in ("all", "last-stage", "head"):
            prefix, suffix = split(backbone, depth)  # type: ignore[arg-type]
            assert torch.equal(suffix(prefix(x)), whole)

    def test_the_parts_share_everything_once(self, backbone: Backbone) -> None:
        prefix, suffix = split(backbone)
        whole, front, back = (dict(part.named_parameters()) for part in (backbone, prefix, suffix))
        assert front
        assert back
        assert not front.keys() & back.keys()
        for name, parameter in {**front, **back}.items():
            assert parameter is whole[name]
        assert front.keys() | back.keys() == whole.keys()
        assert prefix.state_dict().keys() | suffix.state_dict().keys() == backbone.state_dict().keys()

    def test_only_the_suffix_learns_when_the_prefix_is_frozen(self) -> None:
        backbone = build_backbone("small-cnn", pretrained=False)
        prefix, suffix = split(backbone)
        prefix.requires_grad_(False)
        suffix(prefix(torch.rand(4, 1, 16, 16))).sum().backward()
        assert all(parameter.grad is None for parameter in prefix.parameters())
        assert all(parameter.grad is not None for parameter in suffix.parameters())

    @torch.no_grad()
    def test_replaced_modules_are_seen(self) -> None:
        backbone = build_backbone("resnet18", pretrained=False).eval()
        backbone.model.bn1 = nn.Identity()
        x = images(backbone)
        prefix, suffix = split(backbone)
        assert torch.equal(suffix(prefix(x)), backbone(x))

    def test_other_families_are_refused(self) -> None:
        backbone = build_backbone("mobilenetv3_small_050", pretrained=False)
        assert backbone(torch.rand(2, 3, 32, 32)).shape == (2, backbone.num_features)
        with pytest.raises(UserError, match=r"mobilenetv3_small_050.*ResNets, ConvNeXts, EfficientNets and ViTs"):
            split(backbone)
        with pytest.raises(UserError, match="'middle'"):
            split(backbone, "middle")  # type: ignore[arg-type]


class TestBuild:
    def test_vits_take_other_sizes(self) -> None:
        backbone = build_backbone("vit_tiny_patch16_224", pretrained=False)
        assert backbone(torch.rand(1, 3, 96, 96)).shape == (1, 192)

    def test_expected_input(self) -> None:
        backbone = build_backbone("vit_tiny_patch16_224", pretrained=False)
        assert backbone.expects == input_settings("vit_tiny_patch16_224")
        assert (backbone.expects.size, backbone.expects.mean) == (224, (0.5, 0.5, 0.5))
        assert input_settings("resnet50.tv_in1k").mean == (0.485, 0.456, 0.406)
        assert input_settings("small-cnn").size == 28

    def test_unknown_names(self) -> None:
        with pytest.raises(UserError, match=r"no backbone named 'resnet5'.*resnet50"):
            build_backbone("resnet5")
        with pytest.raises(UserError, match="no such weights"):
            build_backbone("resnet18.nonsense")

    def test_without_a_network_it_says_how_to_get_weights(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(backbones, "_hub_answers", lambda: False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(UserError, match=r"'resnet18'.*no network.*--network.weights FILE"):
            build_backbone("resnet18")

    def test_without_a_network_an_earlier_download_is_used(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        made = build_backbone("resnet18", pretrained=False)
        state = {**made.model.state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
        safetensors.torch.save_file(state, tmp_path / "model.safetensors")
        monkeypatch.setattr(backbones, "_hub_answers", lambda: False)
        monkeypatch.setattr(
            "huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(tmp_path / "model.safetensors")
        )
        loaded = build_backbone("resnet18")
        assert torch.equal(loaded.model.conv1.weight, made.model.conv1.weight)

    def test_a_model_without_weights_does_not_start_at_random(self) -> None:
        with pytest.raises(UserError, match=r"--network\.weights FILE"):
            build_backbone(_untrained()[0])

    def test_the_probe_fails_fast_and_leaves_proxies_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setattr("urllib.request.getproxies", dict)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        assert not backbones._hub_answers()
        monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy"})
        assert backbones._hub_answers()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not backbones._hub_answers()

    def test_the_probe_finds_a_host_that_answers(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert backbones._answers(*server.getsockname())

    def test_the_probe_waits_for_no_name_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, answered = threading.Event(), threading.Event()

        def hangs(*_: object) -> None:
            asked.set()
            answered.wait(60)
            raise OSError

        monkeypatch.setattr(backbones, "PROBE_SECONDS", 0.01)
        monkeypatch.setattr("socket.create_connection", hangs)
        assert not backbones._answers("no-name-server.test", 443)
        assert asked.wait(60)
        answered.set()


def _untrained() -> list[str]:
    import timm

    return [name for name in timm.list_models("*resnet*") if not timm.models.get_pretrained_cfg(name).has_weights]


@pytest.fixture(scope="module")
def made() -> Backbone:
    torch.manual_seed(1)
    return build_backbone("resnet18", pretrained=False)


class TestWeights:
    @pytest.mark.parametrize("kind", ["plain.safetensors", "half.safetensors", "plain.pth", "wrapped.pt"])
    def test_round_trip(self, made: Backbone, tmp_path: Path, kind: str) -> None:
        path = tmp_path / kind
        state = {**made.model.state_dict(), "fc.weight": torch.zeros(7, 512), "fc.bias": torch.zeros(7)}
        if kind.startswith("half"):
            state = {key: value.half() if value.ndim == 4 else value for key, value in state.items()}
        if kind.startswith("wrapped"):
            torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, path)
        elif path.suffix == ".safetensors":
            safetensors.torch.save_file(state, path)
        else:
            torch.save(state, path)
        loaded = build_backbone("resnet18", weights=path)
        for name, value in loaded.model.state_dict().items():
            assert value.dtype in (torch.float32, torch.int64)
            assert torch.allclose(value, made.model.state_dict()[name], atol=1e-3)

    @pytest.mark.parametrize("family", ["small-cnn", "convnext_atto", "vit_tiny_patch16_224"])
    def test_other_families(self, tmp_path: Path, family: str) -> None:
        made = build_backbone(family, pretrained=False)
        safetensors.torch.save_file(made.model.state_dict(), tmp_path / "a.safetensors")
        check_weights(family, tmp_path / "a.safetensors")
        loaded = build_backbone(family, weights=tmp_path / "a.safetensors")
        assert all(map(torch.equal, loaded.state_dict().values(), made.state_dict().values()))

    def test_counters_of_batches_may_be_missing(self, made: Backbone, tmp_path: Path) -> None:
        state = {key: value for key, value in made.model.state_dict().items() if "num_batches" not in key}
        safetensors.torch.save_file(state, tmp_path / "a.safetensors")
        build_backbone("resnet18", weights=tmp_path / "a.safetensors")

    def test_they_can_be_checked_without_building_the_network(self, made: Backbone, tmp_path: Path) -> None:
        path, state = tmp_path / "a.safetensors", made.model.state_dict()
        safetensors.torch.save_file(state, path)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        check_weights("resnet18", path)
        assert torch.equal(torch.get_rng_state(), before)
        safetensors.torch.save_file({key: value for key, value in state.items() if "layer3" not in key}, path)
        with pytest.raises(UserError, match=r"not of 'resnet18': without layer3\.0.*more"):
            check_weights("resnet18", path)
        safetensors.torch.save_file({**state, "conv1.weight": torch.zeros(64, 1, 7, 7)}, path)
        with pytest.raises(UserError, match=r"do not fit 'resnet18': size mismatch for conv1\.weight"):
            check_weights("resnet18", path)
        with pytest.raises(UserError, match="no backbone named 'resnet5'"):
            check_weights("resnet5", path)

    def test_what_does_not_fit_is_named(self, made: Backbone, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        state = made.model.state_dict()
        safetensors.torch.save_file({key: value for key, value in state.items() if "layer3" not in key}, path)
        with pytest.raises(UserError, match=r"not of 'resnet18': without layer3\.0.*more"):
            build_backbone("resnet18", weights=path)
        safetensors.torch.save_file({**state, "layer9.weight": torch.zeros(1)}, path)
        with pytest.raises(UserError, match=r"with layer9\.weight"):
            build_backbone("resnet18", weights=path)
        safetensors.torch.save_file({**state, "conv1.weight": torch.zeros(64, 1, 7, 7)}, path)
        with pytest.raises(UserError, match=r"do not fit 'resnet18': size mismatch for conv1\.weight") as caught:
            build_backbone("resnet18", weights=path)
        assert "\n" not in str(caught.value)

    def test_unreadable_files(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="does not exist"):
            read_weights(tmp_path / "none.pth")
        for name in ("a.safetensors", "a.pth", "a.pt"):
            (tmp_path / name).write_text("hello")
            with pytest.raises(UserError, match="plain tensors"):
                read_weights(tmp_path / name)
        (tmp_path / "a.npz").write_text("hello")
        with pytest.raises(UserError, match=r"must end in one of \.safetensors, \.pth, \.pt"):
            read_weights(tmp_path / "a.npz")

    def test_no_pickle_is_run(self, tmp_path: Path) -> None:
        torch.save({"a": torch.zeros(1), "evil": Path("x")}, tmp_path / "a.pth")
        with pytest.raises(UserError, match="plain tensors"):
            read_weights(tmp_path / "a.pth")
        torch.save([1, 2], tmp_path / "b.pth")
        with pytest.raises(UserError, match="named tensors"):
            read_weights(tmp_path / "b.pth")


@pytest.fixture(scope="module")
def plain() -> Backbone:
    torch.manual_seed(2)
    backbone = build_backbone("resnet26", pretrained=False).eval()
    for name, parameter in backbone.named_parameters():
        if name.endswith("bn3.weight"):  # starts at zero, which would hide the bottleneck
            nn.init.ones_(parameter)
    return backbone


class TestBottleneckStride:
    @torch.no_grad()
    def test_the_layout_is_read_from_the_file(self, plain: Backbone, tmp_path: Path) -> None:
        path, x = tmp_path / "a.safetensors", images(plain)
        safetensors.torch.save_file(plain.model.state_dict(), path, metadata={"bottleneck_stride": "1x1"})
        loaded = build_backbone("resnet26", weights=path).eval()
        assert (plain.bottleneck_stride, loaded.bottleneck_stride) == ("3x3", "1x1")
        strides = [
            (stage[0].conv1.stride, stage[0].conv2.stride)
            for stage in (loaded.model.layer1, loaded.model.layer2, loaded.model.layer3, loaded.model.layer4)
        ]
        assert strides == [((1, 1), (1, 1))] + 3 * [((2, 2), (1, 1))]
        assert loaded(x).shape == plain(x).shape
        assert not torch.allclose(loaded(x), plain(x))

        # Built again without the file, as a saved run is, it is the same network.
        rebuilt = build_backbone("resnet26", pretrained=False, bottleneck_stride="1x1").eval()
        rebuilt.load_state_dict(loaded.state_dict())
        assert torch.equal(rebuilt(x), loaded(x))

    def test_unknown_or_impossible_layouts(self, plain: Backbone, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        safetensors.torch.save_file(plain.model.state_dict(), path, metadata={"bottleneck_stride": "2x2"})
        with pytest.raises(UserError, match="'2x2'"):
            build_backbone("resnet26", weights=path)
        for name in ("resnet18", "convnext_atto"):
            with pytest.raises(UserError, match=f"1x1 .*{name}"):
                build_backbone(name, pretrained=False, bottleneck_stride="1x1")

    @torch.no_grad()
    def test_features_of_office31(self) -> None:
        weights = SHARED / "weights" / "resnet50-imagenet.safetensors"
        features = SHARED / "data" / "office31-resnet50-features.npz"
        if not (weights.is_file() and features.is_file()):
            pytest.skip(f"needs the weights and features in {SHARED}")
        backbone = build_backbone("resnet50", weights=weights).eval()
        views = Views(ImageSettings())
        with np.load(features) as known:
            for domain in ("amazon", "dslr", "webcam"):
                paths = find_images(SHARED / "data" / "office31" / domain)
                rows = [0, len(paths) // 2]
                decoded = [read_image(paths[row], min_size=views.settings.min_size) for row in rows]
                made = backbone(torch.stack([views.evaluation(image) for image in decoded]))
                expected = torch.from_numpy(known[f"{domain}_x"][rows]).float()
                assert torch.cosine_similarity(made, expected).min() > 0.999
