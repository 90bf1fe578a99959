"""The published settings under `configs/` are those of the paper's text."""

from pathlib import Path

import pytest

from candapt.commands.adapt import AdaptOptions
from candapt.commands.main import main
from candapt.presets import make_settings

CONFIGS = Path(__file__).parents[1] / "configs"
OFFICE31 = [
    *("amazon-webcam", "dslr-webcam", "webcam-dslr", "amazon-dslr", "dslr-amazon", "webcam-amazon"),
]
FILTERED = {"office31-amazon-webcam", "office31-amazon-dslr"}
"""Section 4.1: the only tasks on which target samples and classes are filtered."""


def parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> AdaptOptions:
    """What `candapt adapt` is asked to do with a configuration."""
    asked: list[AdaptOptions] = []
    monkeypatch.setattr("candapt.commands.adapt.run", asked.append)
    assert main(["adapt", "SOURCE", "TARGET", "--config", str(CONFIGS / f"{name}.yaml"), "--out", "RUN"]) == 0
    return asked[0]


def test_there_is_one_for_each_published_result() -> None:
    names = {path.stem for path in CONFIGS.iterdir()}
    assert names == {*(f"office31-{task}" for task in OFFICE31), "visda2017"}


@pytest.mark.parametrize("name", [*(f"office31-{task}" for task in OFFICE31), "visda2017"])
def test_values_are_the_papers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, visda = parsed(name, monkeypatch), name == "visda2017"
    training, can, network = options.settings.training, options.settings.method_settings, options.settings.network
    assert (options.source, options.target) == (Path("SOURCE"), Path("TARGET"))
    assert network.backbone == ("resnet101.tv_in1k" if visda else "resnet50.tv_in1k")
    assert network.finetune == "all"
    assert (training.learning_rate, training.learning_rate * training.new_layers) == (0.001, 0.01)
    assert (training.momentum, training.schedule, training.slope) == (0.9, "progress", 10)
    assert training.power == (2.25 if visda else 0.75)
    assert can.weight == 0.3
    assert (can.max_distance, can.min_samples) == ((0.05, 3) if name in FILTERED else (1, 0))
    assert can.min_samples_rule == "more-than"
    assert can.epoch_share == (0.2 if visda else 1)
    assert network.frozen_stem is False
    assert (can.classes, can.samples, training.batch_size) == ((6, 10, 30) if visda else (10, 3, 30))
    assert (options.images.resize, options.images.size, options.images.augmentation) == (256, 224, "paper")


@pytest.mark.parametrize("name", [f"office31-{task}" for task in OFFICE31])
def test_the_rest_is_the_preset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paper, made = make_settings("can", preset="paper"), parsed(name, monkeypatch).settings
    assert made.training == paper.training
    assert made.rounds == paper.rounds
    assert (made.method_settings.divisor, made.method_settings.unit_centers) == ("task", True)


def test_the_first_lines_say_how_it_is_used() -> None:
    for path in CONFIGS.iterdir():
        assert f"--config configs/{path.name}" in path.read_text(encoding="utf-8").splitlines()[1]
