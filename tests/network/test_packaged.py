"""EfficientNet-Lite from packages: the right file, under the right names, with the input that it was trained on."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import candapt
from candapt.data.decoding import read_image
from candapt.data.images import find_images
from candapt.data.transforms import Views
from candapt.errors import UserError
from candapt.network import backbones, packaged
from candapt.network.backbones import build_backbone, check_weights, default_backbone, input_settings
from candapt.network.build import decide, expected_images
from candapt.network.packaged import ALIASES, CLASSIFIER, LITE, PACKAGED, Packaged, full_name, packaged_weights
from candapt.network.weights import read_weights
from candapt.settings import ImageChoice, NetworkSettings

NAMES = list(PACKAGED)
MISSING = Packaged("no_such_package", "weights.pth", "", "lite")
IMAGENET = {"mouse": {673}, "mug": {504}, "monitor": {664, 782, 527}, "back_pack": {414}, "bike": {444, 671}}
"""Classes of ImageNet by those of Office-31."""


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, and nothing that was downloaded before."""
    monkeypatch.setattr(backbones, "_hub_answers", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


def test_names() -> None:
    assert full_name("efficientnet-lite0") == full_name("tf_efficientnet_lite0") == full_name(LITE) == LITE
    assert [full_name(name) for name in ALIASES] == NAMES
    assert full_name("resnet50") == "resnet50"
    assert [input_settings(name).size for name in ALIASES] == [224, 240, 260]
    assert input_settings("efficientnet-lite0").mean == (0.5, 0.5, 0.5)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_the_package(name: str) -> None:
    if PACKAGED[name].path is None:
        pytest.skip(f"{PACKAGED[name].package} is not installed")
    backbone = build_backbone(name.removesuffix(".in1k"))
    assert backbone.name == name
    state, _ = read_weights(PACKAGED[name].require())
    values = [value for key, value in state.items() if not key.startswith(CLASSIFIER)]
    assert all(map(torch.equal, backbone.model.state_dict().values(), values))


def test_they_need_no_import() -> None:
    assert PACKAGED[LITE].path is not None
    assert not any(module.startswith("efficientnet_lite0") for module in sys.modules)


def test_features_of_a_drawing_stay_the_same() -> None:
    """Padding, activation and batch norm are what the weights were trained with; see the photographs below."""
    backbone = build_backbone(LITE).eval()
    ramp = torch.linspace(-1, 1, 224)
    image = torch.stack([ramp.expand(224, -1), ramp[:, None].expand(-1, 224), torch.outer(ramp, ramp)])
    with torch.no_grad():
        features = backbone(image[None])[0]
    assert features.shape == (1280,)
    assert features.min() >= 0
    assert [features.mean().item(), features.max().item()] == pytest.approx([0.0864, 4.630], abs=1e-3)


def test_photographs_are_recognized(shared: Path) -> None:
    images = Views(expected_images(NetworkSettings(LITE), ImageChoice()))
    backbone, (state, _) = build_backbone(LITE).eval(), read_weights(PACKAGED[LITE].require())
    right = []
    for name, numbers in IMAGENET.items():
        paths = find_images(shared / "data" / "office31" / "dslr" / "images" / name)[:4]
        with torch.no_grad():
            features = backbone(torch.stack([images.evaluation(read_image(path)) for path in paths]))
        predicted = (features @ state["_fc.weight"].T + state["_fc.bias"]).argmax(1)
        right += [number in numbers for number in predicted.tolist()]
    assert sum(right) >= 0.8 * len(right)


class TestWhatIsRefused:
    def test_another_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "lite_with_other_weights").mkdir()
        (tmp_path / "lite_with_other_weights" / "a.pth").write_bytes(b"other")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(PACKAGED, LITE, Packaged("lite_with_other_weights", "a.pth", "0" * 64))
        importlib.invalidate_caches()
        with pytest.raises(UserError, match="install lite_with_other_weights again"):
            packaged_weights(LITE)

    def test_no_package(self) -> None:
        assert MISSING.path is None
        with pytest.raises(UserError, match=r"no_such_package is not installed: pip install 'candapt\[lite\]'"):
            MISSING.require()

    def test_weights_of_a_sister(self) -> None:
        with pytest.raises(UserError, match=r"another EfficientNet-Lite than 'tf_efficientnet_lite1\.in1k'"):
            check_weights("efficientnet-lite1", PACKAGED[LITE].require())

    @pytest.mark.usefixtures("offline")
    def test_neither_package_nor_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PACKAGED, LITE, replace(MISSING, extra=""))
        assert default_backbone() == ("resnet50.tv_in1k", "")
        for name in ("efficientnet-lite0", "resnet50.tv_in1k"):
            with pytest.raises(UserError, match=r"no network.*or install .*: pip install no_such_package\.$"):
                build_backbone(name)


class TestDefault:
    @pytest.mark.usefixtures("offline")
    def test_without_a_network(self) -> None:
        name, reason = default_backbone()
        assert name == LITE
        assert reason.startswith("The backbone is EfficientNet-Lite0")
        assert decide(NetworkSettings(), (3, 224, 224)).backbone == LITE
        assert decide(NetworkSettings(weights=Path("w.safetensors")), (3, 224, 224)).backbone == "resnet50.tv_in1k"
        assert decide(NetworkSettings(), (1, 28, 28)).backbone == "small-cnn"

    @pytest.mark.usefixtures("offline")
    def test_an_earlier_download_is_preferred(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").touch()
        found = str(tmp_path / "model.safetensors")
        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: found)
        assert default_backbone() == ("resnet50.tv_in1k", "")

    def test_with_a_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backbones, "_hub_answers", lambda: True)
        assert default_backbone() == ("resnet50.tv_in1k", "")


def test_a_model_is_rebuilt_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from candapt.adaptation import adapt
    from tests.images import photo_task
    from tests.toy import quick_settings

    task = photo_task(tmp_path)
    settings = quick_settings(network__backbone="efficientnet-lite0", network__mirror=True, network__bottleneck=8)
    result = adapt(task, settings)
    result.model.save(tmp_path)
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None)
    model = candapt.load(tmp_path)
    assert model.parts.settings.backbone == LITE
    assert model.parts.settings.mirror
    assert torch.equal(model.predict(task.target).probabilities, result.predictions.probabilities)
