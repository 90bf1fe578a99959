"""The number format that `auto` means."""

import pytest
import torch

from candapt.adaptation import adapt
from candapt.network.build import decide
from candapt.settings import NetworkSettings, TrainingSettings
from candapt.training import precision
from candapt.training.batches import make_fabric
from candapt.training.precision import decide_precision, processor_has_bf16
from tests.toy import Toy, quick_settings

AUTO = TrainingSettings(accelerator="cpu")


def decided(finetune: str, backbone: str = "resnet50", training: TrainingSettings = AUTO) -> str:
    network = decide(NetworkSettings(backbone, finetune=finetune), (3, 224, 224))  # type: ignore[arg-type]
    return decide_precision(training, network).precision


@pytest.mark.parametrize("has", [True, False])
class TestAuto:
    @pytest.fixture(autouse=True)
    def processor(self, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(precision, "processor_has_bf16", lambda: has)

    def test_heavy_trainings_follow_the_processor(self, has: bool) -> None:
        for finetune in ("all", "last-stage"):
            assert decided(finetune) == ("bf16-mixed" if has else "32-true")

    def test_light_ones_do_not(self, has: bool) -> None:
        assert decided("head") == decided("all", "small-cnn") == decided("last-stage", "small-cnn") == "32-true"
        features = decide(NetworkSettings(finetune="all"), (2048,))
        assert decide_precision(AUTO, features).precision == "32-true"

    def test_a_choice_is_kept(self, has: bool) -> None:
        assert decided("head", training=TrainingSettings(precision="bf16-mixed")) == "bf16-mixed"
        assert decided("all", training=TrainingSettings(precision="32-true")) == "32-true"


def test_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "processor_has_bf16", lambda: True)
    assert decided("all", training=TrainingSettings(accelerator="mps")) == "32-true"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported, expected in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, value=supported: value)
        assert decided("all", training=TrainingSettings(accelerator="auto")) == expected
        assert decided("all", training=TrainingSettings(accelerator="cpu")) == "bf16-mixed"


class TestProcessor:
    @pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16"])
    def test_by_torch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        for value in (True, False):
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda value=value: {name: value}, raising=False)
            assert processor_has_bf16() is value

    @pytest.mark.parametrize(("flags", "expected"), [("fpu avx512_bf16 sse", True), ("fpu avx512f", False)])
    def test_by_the_system(self, monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool) -> None:
        """Older versions of torch do not say."""
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
        monkeypatch.setattr(precision.Path, "read_text", lambda *_, **__: f"model name\t: X\nflags\t\t: {flags}\n")
        assert processor_has_bf16() is expected

    def test_where_nobody_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def absent(*_: object, **__: object) -> str:
            raise FileNotFoundError

        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
        monkeypatch.setattr(precision.Path, "read_text", absent)
        assert not processor_has_bf16()


def test_a_device_can_be_had_before_the_precision_is_decided() -> None:
    assert make_fabric(AUTO).strategy.precision.precision == "32-true"


def test_over_features_auto_changes_no_bit(toy: Toy) -> None:
    results = [adapt(toy.task, quick_settings(training__precision=each)) for each in ("auto", "32-true")]
    assert results[0].settings.training.precision == "32-true"
    assert torch.equal(results[0].predictions.probabilities, results[1].predictions.probabilities)
