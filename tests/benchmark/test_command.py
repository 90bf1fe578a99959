import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from candapt.commands.main import main

QUICK = ["--rounds", "1", "--training.steps", "2", "--network.bottleneck", "8"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command says when it refuses; one line."""
    assert main(["benchmark", *map(str, arguments)]) == 2
    text = capsys.readouterr().err.strip()
    assert text.startswith("candapt: ")
    assert "\n" not in text
    return text


def test_a_suite_from_the_command_line(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"method": "can", "seed": 7, "source": "x", "can": {"weight": 0.5}, "rounds": 9}))
    arguments: list[object] = ["--methods", "can-intra,can", "--seeds", "3", "--tasks", "A->W", "--config", config]
    arguments += ["--data", features, "--out", tmp_path / "out", *QUICK, "--can-intra.weight", "0.2"]
    assert main(["benchmark", "office31", *map(str, arguments)]) == 0
    printed = capsys.readouterr()
    assert "1/2 A→W can seed 3: last" in printed.err
    assert "94.5" in printed.out
    stored = json.loads((tmp_path / "out/cells/amazon-to-webcam/can/seed-3.json").read_text())
    assert stored["settings"]["rounds"] == 1  # a flag wins over the file
    assert stored["settings"]["can"]["weight"] == 0.5
    stored = json.loads((tmp_path / "out/cells/amazon-to-webcam/can-intra/seed-3.json").read_text())
    assert stored["settings"]["can-intra"]["weight"] == 0.2
    assert json.loads((tmp_path / "out/results.json").read_text())["seeds"] == [3]


def test_presets_and_suites_set_the_whole_family(features: Path, tmp_path: Path) -> None:
    arguments = ["--methods", "can-intra,can", "--seeds", "0", "--tasks", "A->W", "--preset", "official", *QUICK]
    assert main(["benchmark", "office31", "--data", str(features), *arguments, "--out", str(tmp_path / "out")]) == 0
    for method in ("can", "can-intra"):
        stored = json.loads((tmp_path / f"out/cells/amazon-to-webcam/{method}-official/seed-0.json").read_text())
        assert stored["settings"][method]["divisor"] == "task"
        assert stored["settings"]["training"]["schedule"] == "iteration"


def test_what_is_wrong_is_said_in_a_sentence(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", tmp_path / "out")
    office31 = ("office31", "--data", features, "--methods", "can")
    assert "There is no suite 'office': did you mean 'office31'?" in refusal(capsys, "office", *out)
    assert "SUITE is missing" in refusal(capsys, *out)
    assert "There is no method 'cann': did you mean 'can'?" in refusal(capsys, "office31", "--methods", "cann", *out)
    assert "--data is missing" in refusal(capsys, "office31", "--methods", "can", *out)
    assert "no task 'A->C'" in refusal(capsys, *office31, "--tasks", "A->C", *out)
    assert "--seeds is '0,x'" in refusal(capsys, *office31, "--seeds", "0,x", *out)
    assert "nothing to run" in refusal(capsys, *office31, "--seeds", ",", *out)
    assert "rounds is 0" in refusal(capsys, *office31, "--rounds", "0", *out)
    assert "nowhere" in refusal(capsys, "office31", "--data", tmp_path / "nowhere.npz", "--methods", "can", *out)
    assert "nowhere" in refusal(capsys, "digits", "--data", tmp_path / "nowhere", "--methods", "can", *out)
    assert "nowhere" in refusal(capsys, "folders", "--data", tmp_path / "nowhere", "--methods", "can", *out)
    assert "dslr" in refusal(capsys, "office31", "--data", tmp_path, "--methods", "can", "--tasks", "D->A", *out)
    assert "--can-intra.weight" in refusal(capsys, *office31, "--can-intra.weight", "1", *out)
    assert not (tmp_path / "out").exists()


def test_data_or_weights_that_do_not_fit_leave_nothing_behind(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros((4, 3)), y=np.arange(4))
    for data, reason in ((tmp_path / "other.npz", "has no array amazon_x"), (features, "bottleneck")):
        wide = ["--network.bottleneck", str(10**12)] if data == features else []
        words = ["office31", "--data", str(data), "--methods", "can", "--out", str(tmp_path / "out"), *wide]
        assert main(["benchmark", *words]) == 2
        assert reason in capsys.readouterr().err.splitlines()[-1]
        assert not (tmp_path / "out").exists()
