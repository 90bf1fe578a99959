"""What a run leaves to the data and the machine: decided once, stored with it, the same when it is resumed."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from candapt.commands.adapt import parse
from candapt.commands.decisions import as_recorded
from candapt.commands.main import main
from candapt.network import backbones
from candapt.presets import make_settings
from candapt.settings import ImageChoice
from candapt.training import precision
from tests.images import DRAWN, write_drawings, write_photos, write_weights
from tests.predictions import rows, without_confidence

BARE = ("--baseline", "false", "--report", "false")
FAST = ("--rounds", "2", "--training.steps", "10", "--network.bottleneck", "64", "--training.accelerator", "cpu")


@dataclass
class Drawings:
    """Two folders of drawings, and runs from one to the other by the installed network."""

    folder: Path
    runs: dict[str, Path] = field(default_factory=dict)

    def adapt(self, name: str, *words: str) -> Path:
        """A run with these flags besides the fast ones; each is made once."""
        if name not in self.runs:
            self.runs[name] = self.folder / name
            paths = [str(self.folder / "source"), str(self.folder / "target")]
            flags = ["--out", str(self.runs[name]), "--cache", str(self.folder / "cache"), *FAST, *words]
            assert main(["adapt", *paths, *flags]) == 0
        return self.runs[name]


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Drawings:
    folder = tmp_path_factory.mktemp("drawings")
    write_drawings(folder / "source", filled=False, per_class=10)
    write_drawings(folder / "target", filled=True, per_class=8, seed=1)
    return Drawings(folder)


@pytest.fixture(autouse=True)
def _no_weights_of_resnet50(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "_can_be_had", lambda name: False)


def config_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return content


def decisions_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())["decisions"]
    return content


class TestStraightAfterInstallation:
    """Two folders and no other word about the network: a pretrained one is there."""

    def test_it_learns(self, drawings: Drawings) -> None:
        table = rows(drawings.adapt("plain") / "predictions.csv")
        right = [row["label"] == row["path"].partition("/")[0] for row in table]
        assert len(right) == 8 * len(DRAWN)
        assert sum(right) >= 0.75 * len(right)  # of five classes

    def test_it_says_which_backbone_and_why(self, drawings: Drawings) -> None:
        run = drawings.adapt("plain")
        log = (run / "log.txt").read_text()
        assert "The backbone is EfficientNet-Lite0, whose weights are installed, since no --weights are given" in log
        assert "Network: tf_efficientnet_lite0.in1k, fine-tuning head" in log
        assert config_of(run)["network"]["backbone"] == "tf_efficientnet_lite0.in1k"

    def test_predict_reproduces_the_predictions(self, drawings: Drawings, tmp_path: Path) -> None:
        run, again = drawings.adapt("plain"), tmp_path / "again.csv"
        assert main(["predict", str(run), str(drawings.folder / "target"), "--out", str(again)]) == 0
        assert without_confidence(again) == without_confidence(run / "predictions.csv")

    def test_the_same_in_other_views(self, drawings: Drawings, tmp_path: Path) -> None:
        run, again = drawings.adapt("mirrored", "--size", "96", "--mirror", *BARE), tmp_path / "again.csv"
        model = json.loads((run / "model.json").read_text())
        assert (model["images"]["size"], model["images"]["resize"], model["network"]["mirror"]) == (96, 108, True)
        assert main(["predict", str(run), str(drawings.folder / "target"), "--out", str(again)]) == 0
        assert without_confidence(again) == without_confidence(run / "predictions.csv")


class TestViews:
    def test_the_choice_is_told_and_stored(self, drawings: Drawings) -> None:
        run = drawings.adapt("plain")
        config, decisions = config_of(run), decisions_of(run)
        assert decisions["views"]["compared"] == 50
        assert decisions["views"]["reason"] in (run / "log.txt").read_text()
        chosen = (288, 328, True) if decisions["views"]["gain"] > 2 * decisions["views"]["error"] else (224, 256, False)
        assert (config["images"]["size"], config["images"]["resize"], config["network"]["mirror"]) == chosen
        assert (decisions["size"], decisions["mirror"]) == (chosen[0], chosen[2])

    def test_the_configuration_does_not_choose_again(self, drawings: Drawings) -> None:
        first = drawings.adapt("plain")
        again = drawings.adapt("again", "--config", str(first / "config.yaml"))
        assert "views" not in decisions_of(again)
        assert (again / "predictions.csv").read_bytes() == (first / "predictions.csv").read_bytes()

    @pytest.mark.parametrize(("size", "expected"), [("64", 64), ("null", 224)])
    def test_a_choice_of_the_user_is_kept(self, drawings: Drawings, size: str, expected: int) -> None:
        run = drawings.adapt(f"size-{size}", "--size", size, *BARE)
        assert "views" not in decisions_of(run)
        assert (decisions_of(run)["size"], decisions_of(run)["mirror"]) == (expected, False)

    def test_published_settings_keep_the_papers_views(self) -> None:
        assert parse(["a", "b"]).images.size == "auto"
        assert parse(["a", "b", "--preset", "paper"]).images.size is None
        assert parse(["a", "b", "--preset", "official", "--size", "auto"]).images.size == "auto"

    def test_mirrors_need_a_frozen_backbone(self, drawings: Drawings, capsys: pytest.CaptureFixture[str]) -> None:
        paths = [str(drawings.folder / "source"), str(drawings.folder / "target")]
        words = ["--out", str(drawings.folder / "none"), "--mirror", "--finetune", "last-stage"]
        assert main(["adapt", *paths, *words]) == 2
        assert "network.mirror is for a head" in capsys.readouterr().err


class TestResuming:
    @pytest.fixture
    def words(self, tmp_path: Path) -> list[str]:
        """An adaptation of the last stage to photographs."""
        weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
        photos = (write_photos(tmp_path / "source"), write_photos(tmp_path / "target", seed=1))
        flags = [*("--backbone", "test_resnet", "--weights", weights, "--size", 32, "--finetune", "last-stage")]
        flags += [*("--cache", tmp_path / "cache", "--training.batch_size", 4, "--training.head_rounds", 1, *FAST)]
        return [str(word) for word in ("adapt", *photos, "--out", tmp_path / "run", *flags, "--report", False)]

    def test_the_precision_stays_on_another_processor(
        self, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(precision, "processor_has_bf16", lambda: True)
        assert main(words) == 0
        run = tmp_path / "run"
        assert config_of(run)["training"]["precision"] == "bf16-mixed"
        assert decisions_of(run)["precision"] == "bf16-mixed"
        before = (run / "predictions.csv").read_bytes()
        for name in ("summary.json", "predictions.csv", "checkpoints/round-0002.safetensors"):
            (run / name).unlink()
        monkeypatch.setattr(precision, "processor_has_bf16", lambda: False)
        assert main([*words, "--training.precision", "auto", "--resume"]) == 0
        assert config_of(run)["training"]["precision"] == "bf16-mixed"
        assert (run / "predictions.csv").read_bytes() == before

    def test_views_and_backbone_stay_with_a_network_at_hand(
        self, drawings: Drawings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = drawings.adapt("resumed", *BARE)
        before, decisions = (run / "predictions.csv").read_bytes(), decisions_of(run)
        for name in ("summary.json", "predictions.csv", "checkpoints/round-0002.safetensors"):
            (run / name).unlink()
        monkeypatch.setattr(backbones, "_can_be_had", lambda name: True)
        assert main(["adapt", "--out", str(run), "--resume", "--cache", str(drawings.folder / "cache")]) == 0
        assert (run / "predictions.csv").read_bytes() == before
        assert decisions_of(run) == decisions


class TestAsRecorded:
    RECORDED = {  # noqa: RUF012
        **{"images.size": 288, "images.resize": 328, "network.mirror": True, "network.backbone": "resnet101"},
        **{"network.finetune": "head", "training.precision": "bf16-mixed"},
    }

    def test_what_is_open_is_taken(self) -> None:
        settings, images = as_recorded(make_settings(), ImageChoice(), self.RECORDED)
        assert (images.size, images.resize, settings.network.mirror) == (288, 328, True)
        assert (settings.network.backbone, settings.network.finetune) == ("resnet101", "head")
        assert settings.training.precision == "bf16-mixed"

    def test_what_is_not_stays(self) -> None:
        changes = {"network.backbone": "resnet50", "network.finetune": "all", "training.precision": "32-true"}
        given = make_settings(changes=changes), ImageChoice(size=None)
        assert as_recorded(*given, self.RECORDED) == given
        assert as_recorded(*given, None) == given
        open_ = make_settings(), ImageChoice()
        assert as_recorded(*open_, {"images.size": None, "training.precision": "auto"}) == open_
