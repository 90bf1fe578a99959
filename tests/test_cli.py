"""The command line from end to end, on files as people have them, good and bad."""

import csv
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from PIL import Image

import candapt
from candapt import DomainAdaptationClassifier
from candapt.benchmark.suites import SUITES
from candapt.commands import COMMANDS
from candapt.commands.adapt import AdaptOptions
from candapt.commands.adapt import parse as parse_adapt
from candapt.commands.main import main
from candapt.commands.parser import Parser, flags_of, parse_options, positional, required, switch
from candapt.data.domains import Domain
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.presets import PRESETS, make_settings
from candapt.settings import setting
from candapt.storage.runs import describe_settings
from tests.predictions import rows, without_confidence
from tests.toy import QUICK, Toy

FLAGS = [word for name, value in (QUICK | {"report": False}).items() for word in (f"--{name}", str(value))]
Refused = Callable[..., str]


def run(*words: object) -> None:
    """A command that must work."""
    assert main([str(word) for word in words]) == 0


def adapt(source: Path, target: Path, out: Path, *more: object) -> Path:
    run("adapt", source, target, "--out", out, *FLAGS, *more)
    return out


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, byte by byte."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def data(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy task in files; tests write elsewhere."""
    return toy.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder; tests do not write there."""
    folder = adapt(data / "source.npz", data / "target.npz", tmp_path_factory.mktemp("runs") / "run", "--report", True)
    logging.getLogger("candapt").handlers.clear()
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Run a command that must be refused in one sentence, with nothing created or changed; returns the sentence."""

    def check(*words: object) -> str:
        before = snapshot(tmp_path)
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 2
        assert out == ""
        assert err.startswith("candapt: ")
        assert err.count("\n") == 1
        assert err.endswith((".\n", "?\n", "…\n"))
        assert "Traceback" not in err
        assert snapshot(tmp_path) == before
        return err.removeprefix("candapt: ").strip()

    return check


class TestAdapt:
    def test_every_file_is_written(self, finished: Path) -> None:
        names = {path.name for path in finished.iterdir()}
        assert names == {
            *("config.yaml", "model.safetensors", "model.json", "confidence.safetensors", "metrics.jsonl"),
            *("predictions.csv", "summary.json", "checkpoints", "log.txt", "embedding.npz", "report.html"),
            "README.md",
        }
        assert all(path.stat().st_size > 0 for path in finished.iterdir())
        assert [path.name for path in sorted((finished / "checkpoints").iterdir())] == [
            "origin.json",
            "round-0001.safetensors",
            "round-0002.safetensors",
        ]

    def test_flags_may_stand_between_the_paths(self, data: Path, finished: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        run("adapt", data / "source.npz", "--out", out, data / "target.npz", *FLAGS)
        assert (out / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()

    def test_predictions(self, finished: Path, toy: Toy) -> None:
        table = rows(finished / "predictions.csv")
        columns = ["path", "label", "confidence", "softmax", "unknown", "cluster_label", "cluster_distance", "kept"]
        assert list(table[0]) == columns
        assert [row["path"] for row in table] == [str(row) for row in range(len(toy.target_y))]
        assert {row["label"] for row in table} <= {"0", "1", "2", "3"}

    def test_metrics_and_summary(self, finished: Path) -> None:
        records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
        assert [record["round"] for record in records] == [0, 1]
        summary = json.loads((finished / "summary.json").read_text())
        assert (summary["method"], summary["seed"], summary["rounds"]) == ("can", 0, 2)
        assert summary["data"] == {"source": 120, "target": 120, "source_classes": dict.fromkeys("0123", 30)}
        assert sum(summary["predicted_counts"].values()) == 120
        assert summary["versions"]["torch"]
        assert not any("oracle" in key for key in (*summary, *records[0]))

    def test_log(self, finished: Path) -> None:
        log = (finished / "log.txt").read_text()
        assert "Source: 120 samples of 4 classes; target: 120 samples without labels." in log
        assert log.count("can round ") == 2
        assert "Done in " in log

    def test_the_log_goes_to_standard_error_in_plain_lines(
        self, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        adapt(data / "source.npz", data / "target.npz", tmp_path / "run")
        out, err = capsys.readouterr()
        assert out == ""
        assert "can round 1/2: classification " in err
        assert "\x1b" not in err
        assert not any(line.endswith(" ") for line in err.splitlines())

    def test_the_model_predicts_as_the_run_did(self, finished: Path, toy: Toy) -> None:
        model = candapt.load(finished)
        predictions = model.predict(Domain(toy.target_x))
        labels = [row["label"] for row in rows(finished / "predictions.csv")]
        assert [model.classes[label] for label in predictions.labels] == labels

    def test_the_estimator_says_the_same(self, finished: Path, toy: Toy) -> None:
        model = DomainAdaptationClassifier(settings=QUICK).fit(toy.source_x, toy.source_y, target=toy.target_x)
        table = rows(finished / "predictions.csv")
        assert [str(label) for label in model.predict(toy.target_x)] == [row["label"] for row in table]
        confidence = model.predict_proba(toy.target_x).max(axis=1)
        assert [f"{value:.6f}" for value in confidence] == [row["softmax"] for row in table]

    def test_seeds(self, data: Path, finished: Path, tmp_path: Path) -> None:
        again, other = (
            adapt(data / "source.npz", data / "target.npz", tmp_path / f"{seed}", "--seed", seed) for seed in (0, 1)
        )
        assert (again / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()
        assert (again / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
        assert (other / "predictions.csv").read_bytes() != (finished / "predictions.csv").read_bytes()

    def test_flags_may_come_first(self, data: Path, finished: Path, tmp_path: Path) -> None:
        run("adapt", "--out", tmp_path / "run", *FLAGS, data / "source.npz", data / "target.npz")
        assert (tmp_path / "run" / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()

    def test_names_of_classes_travel(self, data: Path, toy: Toy, tmp_path: Path) -> None:
        names = np.array(["bike", "mug, blue", "Schlüssel", "zebra"])
        np.savez(tmp_path / "named.npz", x=toy.source_x, y=toy.source_y, classes=names)
        out = adapt(tmp_path / "named.npz", data / "target.npz", tmp_path / "run")
        assert candapt.load(out).classes == tuple(names)
        assert {row["label"] for row in rows(out / "predictions.csv")} <= set(names)

    def test_a_round_without_a_confident_class_is_reported(
        self, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = adapt(data / "source.npz", data / "target.npz", tmp_path / "run", "--can.max_distance", 1e-9)
        assert capsys.readouterr().err.count("No class was confident enough") >= 1
        assert "No class was confident enough" in (out / "log.txt").read_text()
        assert "discrepancy" not in json.loads((out / "metrics.jsonl").read_text().splitlines()[0])

    def test_small_images_in_a_file(self, tmp_path: Path) -> None:
        random = np.random.default_rng(0)
        np.savez(tmp_path / "source.npz", x=random.random((20, 12, 12)), y=np.arange(20) % 2)
        np.savez(tmp_path / "target.npz", x=random.random((15, 12, 12)))
        runs = [
            adapt(tmp_path / "source.npz", tmp_path / "target.npz", tmp_path / kind, "--images.augmentation", kind)
            for kind in ("paper", "none")
        ]
        tables = [(out / "predictions.csv").read_bytes() for out in runs]
        assert tables[0] != tables[1]  # the choice has an effect
        assert json.loads((runs[0] / "model.json").read_text())["network"]["backbone"] == "small-cnn"
        run("predict", runs[0], tmp_path / "target.npz", "--out", tmp_path / "again.csv")
        assert without_confidence(tmp_path / "again.csv") == without_confidence(runs[0] / "predictions.csv")


class TestConfiguration:
    def test_a_run_can_be_made_again(self, finished: Path, tmp_path: Path) -> None:
        run("adapt", "--config", finished / "config.yaml", "--out", tmp_path / "again")
        assert (tmp_path / "again" / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()
        configs = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in (finished, tmp_path / "again")]
        assert configs[0] == configs[1]

    @pytest.mark.parametrize("method", ["source-only", "can-intra"])
    def test_a_run_of_another_method_too(self, data: Path, tmp_path: Path, method: str) -> None:
        own = [] if method == "source-only" else [f"--{method}.weight", "0.77"]
        first = adapt(data / "source.npz", data / "target.npz", tmp_path / "first", "--method", method, *own)
        run("adapt", "--config", first / "config.yaml", "--out", tmp_path / "again")
        assert (tmp_path / "again" / "predictions.csv").read_bytes() == (first / "predictions.csv").read_bytes()
        config = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())
        assert config["method"] == method
        assert config.get(method, {}).get("weight") == (0.77 if own else None)

    def test_it_does_not_depend_on_where_it_is_called(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(data)
        run("adapt", "source.npz", "target.npz", "--out", tmp_path / "first", *FLAGS)
        monkeypatch.chdir(tmp_path)
        run("adapt", "--config", "first/config.yaml", "--out", "again")
        assert (tmp_path / "again" / "predictions.csv").is_file()

    @pytest.mark.parametrize("flags_first", [True, False])
    def test_flags_win_over_the_file(self, finished: Path, tmp_path: Path, flags_first: bool) -> None:
        flags, file = ["--rounds", "1", "--can.weight=0.9"], ["--config", finished / "config.yaml"]
        run("adapt", *(flags + file if flags_first else file + flags), "--out", tmp_path / "run")
        config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
        assert (config["rounds"], config["can"]["weight"], config["network"]["bottleneck"]) == (1, 0.9, 16)

    def test_paths_win_over_the_file(self, finished: Path, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        run("adapt", data / "labeled.npz", data / "source.npz", "--config", finished / "config.yaml", "--out", out)
        config = yaml.safe_load((out / "config.yaml").read_text())
        assert (config["source"], config["target"]) == (str(data / "labeled.npz"), str(data / "source.npz"))

    def test_the_method_can_be_changed(self, finished: Path, tmp_path: Path) -> None:
        run("adapt", "--config", finished / "config.yaml", "--method", "source-only", "--out", tmp_path / "run")
        config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
        assert config["method"] == "source-only"
        assert "can" not in config

    def test_a_file_may_hold_a_few_settings(self, data: Path, tmp_path: Path) -> None:
        (tmp_path / "few.yaml").write_text(
            "preset: paper\nrounds: 1\ntraining: {steps: 2}\nnetwork: {bottleneck: 16}\ncan: {weight: 0.5}\n"
        )
        run(
            *("adapt", data / "source.npz", data / "target.npz"),
            *("--config", tmp_path / "few.yaml", "--out", tmp_path / "run"),
        )
        config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
        assert (config["rounds"], config["training"]["steps"], config["can"]["weight"]) == (1, 2, 0.5)
        assert config["can"]["divisor"] == "task"  # the preset's

    @pytest.mark.parametrize("preset", PRESETS)
    @pytest.mark.parametrize("method", METHODS)
    def test_flags_and_python_have_the_same_defaults(
        self, monkeypatch: pytest.MonkeyPatch, preset: str, method: str
    ) -> None:
        asked: list[AdaptOptions] = []
        monkeypatch.setattr("candapt.commands.adapt.run", asked.append)
        run("adapt", "a.npz", "b.npz", "--method", method, "--preset", preset, "--out", "run")
        assert describe_settings(asked[0].settings) == describe_settings(make_settings(method, preset=preset))

    def test_flags_override_the_file_and_that_the_preset(self, tmp_path: Path) -> None:
        text = "preset: paper\nrounds: 7\ncan: {weight: 0.5, samples: 4}\n"
        (tmp_path / "config.yaml").write_text(text)
        words = ["a", "b", "--config", str(tmp_path / "config.yaml"), "--can.samples", "5"]
        settings = parse_adapt(words).settings
        own = settings.method_settings
        assert (settings.rounds, own.weight, own.samples) == (7, 0.5, 5)
        assert (own.unit_centers, settings.training.schedule) == (True, "progress")  # the paper's
        settings = parse_adapt([*words, "--preset", "official"]).settings
        own = settings.method_settings
        assert (settings.rounds, own.weight, own.samples) == (7, 0.5, 5)
        assert (own.unit_centers, settings.training.schedule) == (False, "iteration")  # the authors' code

    def test_settings_of_other_methods_in_a_file_are_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("can: {weight: 0.5}\ndan: {weight: 0.7}\nmcd:\n")
        words = ["a", "b", "--config", str(tmp_path / "config.yaml"), "--method"]
        assert [parse_adapt([*words, name]).settings.method_settings.weight for name in ("can", "dan")] == [0.5, 0.7]


class TestWithoutAFolder:
    """`candapt adapt SOURCE TARGET` chooses where to write."""

    def test_each_run_gets_a_new_folder(
        self, data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shown = []
        for _ in range(2):
            run("adapt", data / "source.npz", data / "target.npz", *FLAGS)
            shown += re.findall(r"^Run folder: (.+)$", capsys.readouterr().err, re.MULTILINE)
        assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]
        assert sorted(shown) == sorted(str(Path("runs", entry.name)) for entry in Path("runs").iterdir())
        assert len(set(shown)) == 2
        for folder in map(Path, shown):
            assert re.fullmatch(r"can-\d{8}-\d{6}(-\d)?", folder.name)
            assert (folder / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()
            assert f"Run folder: {folder}" in (folder / "log.txt").read_text()

    def test_the_method_is_in_its_name(self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        run("adapt", data / "source.npz", data / "target.npz", *FLAGS, "--method", "source-only")
        (folder,) = Path("runs").iterdir()
        assert folder.name.startswith("source-only-")

    def test_bad_input_creates_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
        monkeypatch.chdir(tmp_path)
        assert "There is no file 'a.npz'" in refused("adapt", "a.npz", "b.npz")

    def test_who_interrupts_it_learns_how_to_continue(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("candapt.commands.adapt._train", interrupt)
        assert main(["adapt", str(data / "source.npz"), str(data / "target.npz"), *FLAGS]) == 130
        (folder,) = Path("runs").iterdir()
        assert f"stopped; continue with: candapt adapt --out {folder} --resume." in capsys.readouterr().err


class TestOracle:
    """Target labels change nothing but what is marked oracle."""

    @pytest.mark.parametrize("method", ["can", "source-only"])
    @pytest.mark.parametrize("labels", ["labels.csv", "labeled.npz"])
    def test_predictions_are_the_same_without(self, data: Path, tmp_path: Path, method: str, labels: str) -> None:
        files = data / "source.npz", data / "target.npz"
        without = adapt(*files, tmp_path / "without", "--method", method)
        given = adapt(*files, tmp_path / "given", "--method", method, "--target-labels", data / labels)
        for name in ("predictions.csv", "model.safetensors", "model.json"):
            assert (given / name).read_bytes() == (without / name).read_bytes()
        for name in ("metrics.jsonl", "summary.json"):
            contents = [self.without_oracle(folder / name) for folder in (given, without)]
            assert contents[0] == contents[1]

    @classmethod
    def without_oracle(cls, path: Path) -> Any:
        text = path.read_text()
        return cls.cleaned(
            [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
        )

    @classmethod
    def cleaned(cls, content: Any) -> Any:
        if isinstance(content, list):
            return [cls.cleaned(item) for item in content]
        if isinstance(content, dict):
            return {k: cls.cleaned(v) for k, v in content.items() if "oracle" not in k and k != "seconds"}
        return content

    def test_its_figures_are_true(self, data: Path, toy: Toy, tmp_path: Path) -> None:
        out = adapt(data / "source.npz", data / "target.npz", tmp_path / "run", "--target-labels", data / "labels.csv")
        predicted = [int(row["label"]) for row in rows(out / "predictions.csv")]
        accuracy = float(np.mean(np.array(predicted) == toy.target_y))
        oracle = json.loads((out / "summary.json").read_text())["oracle"]
        assert oracle["accuracy"] == pytest.approx(accuracy)
        assert (oracle["samples"], oracle["left_out"]) == (120, 0)
        assert np.sum(oracle["confusion"]) == 120
        last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["oracle_accuracy"] == pytest.approx(accuracy)

    def test_labels_inside_the_target_are_not_read(self, data: Path, toy: Toy, finished: Path, tmp_path: Path) -> None:
        np.savez(tmp_path / "wrong.npz", x=toy.target_x, y=np.zeros(3))
        out = adapt(data / "source.npz", tmp_path / "wrong.npz", tmp_path / "run")
        assert (out / "predictions.csv").read_bytes() == (finished / "predictions.csv").read_bytes()


class TestPredict:
    def test_the_target_gets_the_same_table(self, data: Path, finished: Path, tmp_path: Path) -> None:
        run("predict", finished, data / "target.npz", "--out", tmp_path / "again.csv")
        assert without_confidence(tmp_path / "again.csv") == without_confidence(finished / "predictions.csv")
        again, before = (
            [float(row["confidence"]) for row in rows(path)]
            for path in (tmp_path / "again.csv", finished / "predictions.csv")
        )
        assert np.corrcoef(again, before)[0, 1] > 0.9  # sample by sample beside a small bank, not over the whole domain

    def test_one_row(self, finished: Path, toy: Toy, tmp_path: Path) -> None:
        np.savez(tmp_path / "one.npz", x=toy.target_x[:1])
        run("predict", finished, tmp_path / "one.npz", "--out", tmp_path / "one.csv")
        assert len(rows(tmp_path / "one.csv")) == 1

    def test_an_existing_file_is_kept(self, data: Path, finished: Path, tmp_path: Path, refused: Refused) -> None:
        (tmp_path / "mine.csv").write_text("mine")
        sentence = refused("predict", finished, data / "target.npz", "--out", tmp_path / "mine.csv")
        assert "exists already" in sentence

    @pytest.mark.parametrize("place", ["file/a.csv", "nowhere/a.csv"])
    def test_an_impossible_place(
        self, data: Path, finished: Path, tmp_path: Path, refused: Refused, place: str
    ) -> None:
        (tmp_path / "file").write_text("mine")
        assert "cannot be written" in refused("predict", finished, data / "target.npz", "--out", tmp_path / place)

    def test_other_features(self, finished: Path, tmp_path: Path, refused: Refused) -> None:
        np.savez(tmp_path / "wide.npz", x=np.zeros((3, 25)))
        sentence = refused("predict", finished, tmp_path / "wide.npz", "--out", tmp_path / "a.csv")
        assert sentence.startswith("The model takes samples of shape (24,), but these have (25,)")

    def test_no_run(self, data: Path, tmp_path: Path, refused: Refused) -> None:
        sentence = refused("predict", tmp_path, data / "target.npz", "--out", tmp_path / "a.csv")
        assert "holds no finished run" in sentence

    @pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
    @pytest.mark.parametrize("share", [0, 0.5, 0.99])
    def test_damaged_models(
        self, data: Path, finished: Path, tmp_path: Path, refused: Refused, name: str, share: float
    ) -> None:
        broken = tmp_path / "run"
        broken.mkdir()
        for file in ("model.json", "model.safetensors"):
            content = (finished / file).read_bytes()
            (broken / file).write_bytes(content[: int(share * len(content))] if file == name else content)
        assert "is damaged" in refused("predict", broken, data / "target.npz", "--out", tmp_path / "a.csv")


class TestEvaluate:
    def test_figures(
        self, data: Path, finished: Path, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("evaluate", finished, data / "labeled.npz", "--out", tmp_path / "figures.json")
        predicted = np.array([int(row["label"]) for row in rows(finished / "predictions.csv")])
        accuracy = float(np.mean(predicted == toy.target_y))
        printed = capsys.readouterr().out.splitlines()
        assert f"accuracy             {accuracy:.1%}" in printed
        assert "samples              120" in printed
        figures = json.loads((tmp_path / "figures.json").read_text())
        assert figures["accuracy"] == pytest.approx(accuracy)
        per_class = [np.mean(predicted[toy.target_y == label] == label) for label in range(4)]
        assert figures["mean_class_accuracy"] == pytest.approx(np.mean(per_class))
        assert figures["classes"] == ["0", "1", "2", "3"]

    def test_classes_are_matched_by_name(
        self, finished: Path, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The same labels in another order, and a class that the model does not know."""
        names = np.array(["3", "zebra", "1", "0", "2"])
        places = np.array([3, 2, 4, 0])[toy.target_y]
        places[:10] = 1
        np.savez(tmp_path / "other.npz", x=toy.target_x, y=places, classes=names)
        run("evaluate", finished, tmp_path / "other.npz", "--out", tmp_path / "figures.json")
        predicted = np.array([int(row["label"]) for row in rows(finished / "predictions.csv")])
        figures = json.loads((tmp_path / "figures.json").read_text())
        assert figures["accuracy"] == pytest.approx(np.mean(predicted[10:] == toy.target_y[10:]))
        assert figures["left_out"] == 10
        assert figures["called_unknown"] == {"left_out": 0, "counted": 0}  # it is of a known class in truth
        assert "left out             10 of classes that the model does not know" in capsys.readouterr().out

    def test_no_class_in_common(self, finished: Path, toy: Toy, tmp_path: Path, refused: Refused) -> None:
        np.savez(tmp_path / "other.npz", x=toy.target_x, y=toy.target_y + 10)
        assert "is one of the model's" in refused("evaluate", finished, tmp_path / "other.npz")

    def test_without_labels(self, finished: Path, data: Path, refused: Refused) -> None:
        assert "has no array y" in refused("evaluate", finished, data / "target.npz")

    def test_an_existing_file_is_kept(self, finished: Path, data: Path, tmp_path: Path, refused: Refused) -> None:
        (tmp_path / "mine.json").write_text("mine")
        assert "exists already" in refused("evaluate", finished, data / "labeled.npz", "--out", tmp_path / "mine.json")

    def test_an_impossible_place(
        self, finished: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place = tmp_path / "nowhere" / "a.json"
        assert main(["evaluate", str(finished), str(data / "labeled.npz"), "--out", str(place)]) == 2
        assert "cannot be written" in capsys.readouterr().err


class TestImages:
    """Folders of small gray images, with names that files may have."""

    NAMES = ("plain.png", "mit, Komma.png", "zwei\nZeilen.png", "日本/é.png", 'sub "q"/x.png', " space .png")

    @staticmethod
    def draw(path: Path, bright: bool, seed: int) -> None:
        """Light on the left or on the right."""
        values = np.random.default_rng(seed).integers(0, 60, (16, 16)).astype(np.uint8)
        values[:, :8] += np.uint8(190 * bright)
        values[:, 8:] += np.uint8(190 * (not bright))
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)

    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        for seed in range(8):
            self.draw(
                tmp_path / "source" / ("left, lit" if seed % 2 else "rechts ß") / f"{seed}.png", seed % 2 == 1, seed
            )
        for seed, name in enumerate(self.NAMES):
            self.draw(tmp_path / "target" / name, seed % 2 == 1, 100 + seed)
        return tmp_path

    def adapt(self, photos: Path, *more: object) -> Path:
        return adapt(
            *(photos / "source", photos / "target", photos / "run"),
            *("--network.backbone", "small-cnn", "--images.size", 16, "--training.batch_size", 4, *more),
        )

    def test_through_adapt_and_predict(self, photos: Path) -> None:
        out = self.adapt(photos)
        table = rows(out / "predictions.csv")
        assert [row["path"] for row in table] == sorted(self.NAMES)
        assert {row["label"] for row in table} <= {"left, lit", "rechts ß"}
        model = json.loads((out / "model.json").read_text())
        assert model["classes"] == ["left, lit", "rechts ß"]
        assert (model["images"]["size"], model["images"]["grey"]) == (16, True)
        run("predict", out, photos / "target", "--out", photos / "again.csv")
        assert without_confidence(photos / "again.csv") == without_confidence(out / "predictions.csv")
        run("evaluate", out, photos / "source")

    def test_a_run_can_be_made_again(self, photos: Path) -> None:
        out = self.adapt(photos)
        run("adapt", "--config", out / "config.yaml", "--out", photos / "again")
        assert (photos / "again" / "predictions.csv").read_bytes() == (out / "predictions.csv").read_bytes()

    def test_names_that_are_not_unicode(self, photos: Path) -> None:
        odd = os.fsdecode(b"caf\xe9.png")
        self.draw(photos / "target" / odd, True, 7)
        os.rename(photos / "source" / "rechts ß", photos / "source" / os.fsdecode(b"rechts \xdf"))
        out = self.adapt(photos)
        assert odd in [row["path"] for row in rows(out / "predictions.csv")]
        assert candapt.load(out).classes == ("left, lit", os.fsdecode(b"rechts \xdf"))
        run("predict", out, photos / "target", "--out", photos / "again.csv")
        assert without_confidence(photos / "again.csv") == without_confidence(out / "predictions.csv")

    def test_broken_images_are_left_out_and_listed(self, photos: Path) -> None:
        (photos / "target" / "broken.png").write_bytes(b"no image")
        out = self.adapt(photos)
        assert len(rows(out / "predictions.csv")) == len(self.NAMES)
        (left_out,) = rows(out / "left-out.csv")
        assert left_out["path"].endswith("broken.png")
        assert json.loads((out / "summary.json").read_text())["data"]["target_images"]["broken"] == 1

    def test_broken_images_can_be_refused(self, photos: Path, refused: Refused) -> None:
        (photos / "target" / "broken.png").write_bytes(b"no image")
        sentence = refused(
            *("adapt", photos / "source", photos / "target", "--out", photos / "run", "--strict", "true"),
            *("--network.backbone", "small-cnn"),
        )
        assert "1 of 7 image files" in sentence

    def test_labels_by_file_name(self, photos: Path) -> None:
        with (photos / "labels.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("path", "label"), *((name, "left, lit") for name in self.NAMES[:4])])
        out = self.adapt(photos, "--target-labels", photos / "labels.csv")
        oracle = json.loads((out / "summary.json").read_text())["oracle"]
        assert (oracle["samples"], oracle["left_out"]) == (4, 2)


X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12) % 3
WITH_NAN = np.where(np.arange(48).reshape(12, 4) == 13, np.nan, X)


class TestBadData:
    """Each one clear sentence, exit code 2, nothing created."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        arrays: dict[str, dict[str, Any]] = {
            "good": {"x": X, "y": Y},
            "target": {"x": X},
            "wide": {"x": np.zeros((12, 5))},
            "nan": {"x": WITH_NAN, "y": Y},
            "huge": {"x": X.astype(np.float64) * 1e60, "y": Y},
            "floats": {"x": X, "y": Y.astype(float)},
            "strings": {"x": X, "y": Y.astype(str)},
            "one-class": {"x": X, "y": 0 * Y},
            "fewer-labels": {"x": X, "y": Y[:5]},
            "pickled": {"x": X, "y": np.array([{}] * 12, dtype=object)},
            "one-row": {"x": X[:1]},
            "color": {"x": np.zeros((12, 3, 16, 16)), "y": Y},
            "grey": {"x": np.zeros((12, 16, 16)), "y": Y},
        }
        for name, content in arrays.items():
            np.savez(tmp_path / f"{name}.npz", **content)
        (tmp_path / "text.npz").write_text("text")
        (tmp_path / "cut.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:300])
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("mine")
        for name in ("single/only/1.png", "flat/1.png", "hollow/a/1.png"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(tmp_path / name)
        (tmp_path / "hollow" / "b").mkdir()
        return tmp_path

    @pytest.mark.parametrize(
        ("source", "target", "sentence"),
        [
            ("nowhere", "target.npz", "does not exist"),
            ("nowhere.npz", "target.npz", "There is no file"),
            ("good.npz", "nowhere", "does not exist"),
            ("good.npz", "nowhere.npz", "There is no file"),
            ("empty", "target.npz", "no class folders"),
            ("good.npz", "empty", "No image was found"),
            ("single", "target.npz", "only one class folder, 'only'"),
            ("flat", "flat", "no class folders"),
            ("hollow", "flat", "Only one class of"),
            ("file", "target.npz", "is not a folder"),
            ("good.npz", "wide.npz", "Source samples have shape (4,) but target samples (5,)"),
            ("grey.npz", "color.npz", "Source samples have shape (1, 16, 16) but target samples (3, 16, 16)"),
            ("good.npz", "flat", "Source samples have shape (4,) but target samples (3, 224, 224)"),
            ("nan.npz", "target.npz", "NaN or infinite in single precision, first in row 3"),
            ("good.npz", "nan.npz", "NaN or infinite in single precision, first in row 3"),
            ("huge.npz", "target.npz", "infinite in single precision, first in row 0"),
            ("floats.npz", "target.npz", "not integers but float64"),
            ("strings.npz", "target.npz", "not integers but <U"),
            ("target.npz", "target.npz", "has no array y"),
            ("one-class.npz", "target.npz", "only one class (0)"),
            ("fewer-labels.npz", "target.npz", "give one label per row"),
            ("pickled.npz", "target.npz", "cannot be read as an .npz file"),
            ("text.npz", "target.npz", "is not an .npz file"),
            ("cut.npz", "target.npz", "is not an .npz file"),
            ("good.npz", "one-row.npz", "fewer than two samples"),
        ],
    )
    def test_domains(self, files: Path, refused: Refused, source: str, target: str, sentence: str) -> None:
        words = refused("adapt", files / source, files / target, "--out", files / "run", *FLAGS)
        assert sentence in words

    @pytest.mark.parametrize(
        ("labels", "sentence"),
        [
            ("nowhere.csv", "cannot be read"),
            ("file", "columns path and label"),
            ("wide.npz", "must have an array y"),
            ("floats.npz", "No label in"),
        ],
    )
    def test_target_labels(self, files: Path, refused: Refused, labels: str, sentence: str) -> None:
        words = refused(
            *("adapt", files / "good.npz", files / "target.npz", "--out", files / "run"),
            *("--target-labels", files / labels, *FLAGS),
        )
        assert sentence in words

    @pytest.mark.parametrize(
        ("network", "sentence"),
        [
            (("--network.backbone", "nope"), "There is no backbone named 'nope'"),
            (("--backbone", "resnet5"), "There is no backbone named 'resnet5'"),
            (("--network.weights", "nowhere.pth"), "does not exist"),
            (("--network.backbone", "small-cnn"), "small-cnn takes images with 1 channel(s), but the samples have 3"),
        ],
    )
    def test_networks(self, files: Path, refused: Refused, network: tuple[str, str], sentence: str) -> None:
        words = refused("adapt", files / "color.npz", files / "color.npz", "--out", files / "run", *network)
        assert sentence in words

    @pytest.mark.parametrize(("name", "meant"), [("resnet5", "resnet50"), ("smal-cnn", "small-cnn")])
    def test_misspelled_backbones(self, files: Path, refused: Refused, name: str, meant: str) -> None:
        data = files / "color.npz", files / "color.npz"
        words = refused("adapt", *data, "--out", files / "run", "--backbone", name)
        assert "did you mean" in words
        assert meant in words.partition("did you mean")[2]

    @pytest.mark.parametrize(
        ("out", "sentence"),
        [
            ("file", "is not a folder"),
            ("file/run", "cannot be written below"),
            ("file/deep/run", "cannot be written below"),
            ("single", "already holds files"),
        ],
    )
    @pytest.mark.parametrize("command", ["adapt", "demo"])
    def test_places(self, files: Path, refused: Refused, command: str, out: str, sentence: str) -> None:
        data = (files / "good.npz", files / "target.npz") if command == "adapt" else ()
        assert sentence in refused(command, *data, "--out", files / out)

    @pytest.mark.skipif(os.geteuid() == 0, reason="this user may write everywhere")
    def test_a_place_that_is_protected(self, files: Path, refused: Refused) -> None:
        (files / "locked").mkdir(mode=0o500)
        words = refused("adapt", files / "good.npz", files / "target.npz", "--out", files / "locked" / "run")
        assert "cannot be written" in words

    def test_a_finished_run_is_kept(self, finished: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = snapshot(finished)
        assert main(["adapt", str(data / "source.npz"), str(data / "target.npz"), "--out", str(finished)]) == 2
        assert "already holds files" in capsys.readouterr().err
        assert snapshot(finished) == before


class TestBadWords:
    """Flags and configuration files."""

    @pytest.mark.parametrize(
        ("flags", "sentence"),
        [
            (("--method", "nope"), "There is no method 'nope': choose one of source-only, "),
            (("--method", "cann"), "There is no method 'cann': did you mean 'can'?"),
            (("--preset", "nope"), "There is no preset 'nope': choose one of default, paper, official."),
            (("--preset", "papr"), "There is no preset 'papr': did you mean 'paper'?"),
            (("--nope", "3"), "'--nope' is not an option"),
            (("--xyzzy", "3"), "'--xyzzy' is not an option: `candapt adapt --help` lists them."),
            (("--training.nope", "3"), "'--training.nope' is not an option"),
            (("--learning-rate", "3"), "'--learning-rate' is not an option: did you mean `--training.learning_rate`?"),
            (("--learning_rate=3",), "'--learning_rate' is not an option: did you mean `--training.learning_rate`?"),
            (("--weight", "3"), "did you mean `--can.weight`?"),
            (("--method", "dan", "--weigth", "3"), "did you mean `--dan.weight`?"),
            (("--can.weigth", "3"), "did you mean `--can.weight`?"),
            (("--metod", "can"), "did you mean `--method`?"),
            (("--backbon", "resnet50"), "did you mean `--backbone`?"),
            (("-rounds", "3"), "'-rounds' is not an option: did you mean `--rounds`?"),
            (("--no-report",), "'--no-report' is not an option: did you mean `--report`?"),
            (("--source", "a.npz"), "'--source' is not an option: give SOURCE without a flag before it."),
            (("more",), "'more' is one argument too many"),
            (("--rounds", "many"), "rounds must be a whole number, not 'many'."),
            (("--rounds", "1.5"), "rounds must be a whole number, not '1.5'."),
            (("--seed", ""), "seed must be a whole number, not ''."),
            (("--can.weight", "[1"), "can.weight must be a number, not '[1'."),
            (("--training.steps", "few"), "training.steps must be a whole number or null, not 'few'."),
            (("--training.nesterov", "3"), "training.nesterov must be true or false, not '3'."),
            (("--training.schedule", "x"), "training.schedule must be progress or iteration or constant, not 'x'."),
            (("--training.accelerator", "tpux"), "training.accelerator must be auto or cpu or cuda or mps"),
            (("--can.samples", "0"), "can.samples is 0, but must be at least 1."),
            (("--rounds", "0"), "rounds is 0, but must be at least 1."),
            (("--training.batch_size", "1"), "training.batch_size is 1, but must be at least 2."),
            (("--training.steps", "-1"), "training.steps is -1, but must be at least 1."),
            (("--method", "source-only", "--can.weight", "1"), "--can.weight is a setting of can, but the method is"),
            (("--can.weight", "1", "--method", "dan"), "--can.weight is a setting of can, but the method is dan"),
            (("--rounds",), "--rounds needs a value"),
            (("--config",), "--config needs a value"),
            (("--method",), "--method needs a value"),
            (("--rounds", "--method", "can"), "--rounds needs a value"),
            (("--cache", "--help"), "--cache needs a value"),
            (("--select", "entropy"), "select is 'entropy', a score that was removed: use information instead."),
            (("--checkpoint-minutes", "-1"), "--checkpoint-minutes is -1.0, but must be at least 0."),
            (("--config", "nowhere.yaml"), "The configuration 'nowhere.yaml' cannot be read"),
        ],
    )
    def test_flags(self, data: Path, tmp_path: Path, refused: Refused, flags: tuple[str, ...], sentence: str) -> None:
        words = refused("adapt", data / "source.npz", data / "target.npz", "--out", tmp_path / "run", *flags)
        assert sentence in words
        assert len(words) < 400

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("a: [1,\n b", "cannot be read"),
            ("a: b: c", "cannot be read"),
            ("- 1\n", "must hold settings by name"),
            ("", "must hold settings by name"),
            ("text", "must hold settings by name"),
            ("sourc: a.npz", "'sourc' in the configuration is not a setting"),
            ("training: {stepz: 3}", "'training.stepz' in the configuration is not a setting"),
            ("can: {nope: 3}", "'can.nope' in the configuration is not a setting"),
            ("method: nope", "There is no method 'nope'"),
            ("method: [can]", "There is no method \"['can']\""),
            ("method: 3", "There is no method '3'"),
            ("preset: {a: b}", "There is no preset \"{'a': 'b'}\""),
            ("rounds: many", "rounds must be a whole number, not 'many'."),
            ("training: {steps: [1, 2]}", "training.steps must be a whole number"),
            ("rounds: 2020-01-01", "rounds must be a whole number"),
            ("\x07: 3", "cannot be read"),
        ],
    )
    def test_configurations(self, data: Path, tmp_path: Path, refused: Refused, text: str, sentence: str) -> None:
        (tmp_path / "config.yaml").write_text(text)
        words = refused(
            *("adapt", data / "source.npz", data / "target.npz"),
            *("--config", tmp_path / "config.yaml", "--out", tmp_path / "run"),
        )
        assert sentence in words

    @pytest.mark.parametrize("command", ["adapt", "tune"])
    @pytest.mark.parametrize("name", ["config", "out", "cache", "resume", "force"])
    def test_a_configuration_cannot_choose_where_to_write(
        self, data: Path, tmp_path: Path, refused: Refused, name: str, command: str
    ) -> None:
        (tmp_path / "config.yaml").write_text(f"{name}: {tmp_path / 'elsewhere'}\n")
        words = refused(
            *(command, data / "source.npz", data / "target.npz"),
            *("--config", tmp_path / "config.yaml", "--out", tmp_path / "run"),
        )
        assert f"{name!r} is not for a configuration file: give it as a flag" in words

    def test_a_configuration_that_is_no_text(self, data: Path, tmp_path: Path, refused: Refused) -> None:
        (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00rounds")
        words = refused(
            *("adapt", data / "source.npz", data / "target.npz"),
            *("--config", tmp_path / "config.yaml", "--out", tmp_path / "run"),
        )
        assert "cannot be read" in words

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("adapt", "--out", "run"), "SOURCE is missing"),
            (("adapt", "a.npz", "--out", "run"), "TARGET is missing"),
            (("adapt", "--resume"), "--out is missing"),
            (("tune", "a.npz", "b.npz"), "--out is missing"),
            (("predict", "run"), "INPUT is missing"),
            (("predict", "run", "a.npz"), "--out is missing"),
            (("evaluate",), "RUN is missing"),
            (("report",), "RUNS is missing"),
            (("embed", "photos"), "--out is missing"),
            (("benchmark",), "SUITE is missing: give one of demo, "),
            (("benchmark", "office31"), "--out is missing"),
            (("nope",), "There is no command 'nope': choose one of demo, adapt, predict, evaluate"),
            (("--nope",), "There is no command '--nope'"),
            (("adpt",), "There is no command 'adpt': did you mean 'adapt'?"),
            (("Predict",), "There is no command 'Predict': did you mean 'predict'?"),
            (("benchmark", "ofice31"), "There is no suite 'ofice31': did you mean 'office31'?"),
            (("cache", "clean"), "There is no action 'clean': did you mean 'clear'?"),
        ],
    )
    def test_missing_words(self, refused: Refused, words: tuple[str, ...], sentence: str) -> None:
        assert sentence in refused(*words)

    def test_long_sentences_are_one_line(
        self, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        words = refused("adapt", tmp_path / ("long " * 40), "b.npz", "--out", tmp_path / "run")
        assert len(words) > 200

    def test_marks_in_a_name_are_no_markup(self, tmp_path: Path, refused: Refused) -> None:
        assert "[red]x[/red]" in refused("adapt", "[red]x[/red]", "b.npz", "--out", tmp_path / "run")


@dataclass(frozen=True)
class Options:
    """Options of a command that is not there."""

    first: Path = positional()
    """First path."""
    out: Path = required()
    """File to write."""
    second: Path | None = positional(None)
    """Second path."""
    count: int = 3
    """How many."""
    limit: int | None = None
    """How many at most."""
    rate: float = setting(0.5, alias="speed")
    """How fast."""
    kind: Literal["plain", "fancy"] = "plain"
    """How pretty."""
    label: str = "a-b"
    """What it is called."""
    place: Path | None = None
    """Where it is."""
    report_twice: bool = True
    """Say it again."""
    strict: bool = switch()
    """Stop at once."""


PARSER = Parser("predict", flags_of(Options))


class TestParser:
    """The arguments of a command, whatever it is."""

    @staticmethod
    def values(*words: str) -> dict[str, Any]:
        return PARSER.parse(["a", *words]).values

    def test_only_what_is_given_has_a_value(self) -> None:
        assert self.values() == {"first": Path("a")}
        assert self.values("--count", "3") == {"first": Path("a"), "count": 3}

    @pytest.mark.parametrize(
        ("words", "value"),
        [
            (("--strict",), True),
            (("--strict", "true"), True),
            (("--strict", "Yes"), True),
            (("--strict=true",), True),
            (("--strict", "false"), False),
            (("--strict", "no"), False),
            (("--strict=False",), False),
            (("--no-strict",), False),
            (("--no_strict",), False),
            (("--strict", "--no-strict"), False),
            (("--no-strict", "--strict"), True),
        ],
    )
    def test_switches(self, words: tuple[str, ...], value: bool) -> None:
        assert self.values(*words) == {"first": Path("a"), "strict": value}
        assert self.values(*words, "b") == {"first": Path("a"), "second": Path("b"), "strict": value}

    def test_a_path_is_not_the_value_of_a_switch(self) -> None:
        given = PARSER.parse(["--strict", "run", "photos"]).values
        assert given == {"first": Path("run"), "second": Path("photos"), "strict": True}

    @pytest.mark.parametrize(
        ("words", "name", "value"),
        [
            (("--count", "7"), "count", 7),
            (("--count=-7",), "count", -7),
            (("--count", "-7"), "count", -7),
            (("--limit", "7"), "limit", 7),
            (("--limit", "null"), "limit", None),
            (("--rate", "1e-3"), "rate", 0.001),
            (("--rate", "2"), "rate", 2.0),
            (("--rate", "-.5"), "rate", -0.5),
            (("--speed", "2"), "rate", 2.0),
            (("--speed=2",), "rate", 2.0),
            (("--kind", "fancy"), "kind", "fancy"),
            (("--label", "null"), "label", "null"),
            (("--label=",), "label", ""),
            (("--label=a=b",), "label", "a=b"),
            (("--label=--count",), "label", "--count"),
            (("--label", "-"), "label", "-"),
            (("--place", "null"), "place", None),
            (("--place", "./null"), "place", Path("null")),
            (("--place", "3"), "place", Path("3")),
            (("--out", "[a, b]: {c}"), "out", Path("[a, b]: {c}")),
            (("--report_twice", "false"), "report_twice", False),
            (("--report-twice", "yes"), "report_twice", True),
            (("--count", "1", "--count", "2"), "count", 2),
        ],
    )
    def test_values(self, words: tuple[str, ...], name: str, value: Any) -> None:
        given = self.values(*words)
        assert given == {"first": Path("a"), name: value}
        assert type(given[name]) is type(value)

    @pytest.mark.parametrize(
        "words",
        [
            ("a", "b", "--count", "3", "--strict"),
            ("--count", "3", "a", "--strict", "b"),
            ("a", "--strict", "--count=3", "b"),
            ("--strict", "a", "b", "--count", "3"),
        ],
    )
    def test_paths_may_stand_anywhere(self, words: tuple[str, ...]) -> None:
        assert PARSER.parse(words).values == {"first": Path("a"), "second": Path("b"), "count": 3, "strict": True}

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("--count", "many"), "--count must be a whole number, not 'many'."),
            (("--count", "1.0"), "--count must be a whole number, not '1.0'."),
            (("--count", ""), "--count must be a whole number, not ''."),
            (("--count", "null"), "--count must be a whole number, not 'null'."),
            (("--count", "9" * 20), f"--count must be a whole number, not '{'9' * 20}'."),
            (("--limit", "many"), "--limit must be a whole number or null, not 'many'."),
            (("--rate", "fast"), "--speed must be a number, not 'fast'."),
            (("--rate", "nan"), "--speed must be a number, not 'nan'."),
            (("--rate", "-inf"), "--speed must be a number, not '-inf'."),
            (("--kind", "Plain"), "--kind must be plain or fancy, not 'Plain'."),
            (("--report_twice", "3"), "--report-twice must be true or false, not '3'."),
            (("--strict=maybe",), "--strict must be true or false, not 'maybe'."),
            (("--count",), "--count needs a value; `candapt predict --help` explains it."),
            (("--count", "--strict"), "--count needs a value; `candapt predict --help` explains it."),
            (("--out", "--help"), "--out needs a value; `candapt predict --help` explains it."),
            (("--cuont", "3"), "'--cuont' is not an option: did you mean `--count`?"),
            (("--cuont=3",), "'--cuont' is not an option: did you mean `--count`?"),
            (("--report-twise", "3"), "'--report-twise' is not an option: did you mean `--report-twice`?"),
            (("--xyzzy",), "'--xyzzy' is not an option: `candapt predict --help` lists them."),
            (("-c", "3"), "'-c' is not an option: `candapt predict --help` lists them."),
            (("--",), "'--' is not an option: `candapt predict --help` lists them."),
            (("--no-count",), "'--no-count' is not an option: did you mean `--count`?"),
            (("--no-strict=true",), "'--no-strict' is not an option: did you mean `--strict`?"),
            (("--first", "b"), "'--first' is not an option: give FIRST without a flag before it."),
            (("b", "c"), "'c' is one argument too many: `candapt predict --help` lists them."),
        ],
    )
    def test_refusals(self, words: tuple[str, ...], sentence: str) -> None:
        with pytest.raises(UserError) as caught:
            self.values(*words)
        assert str(caught.value) == sentence

    def test_long_values_are_cut(self) -> None:
        for words in (("--count", "x" * 500), (f"--{'x' * 500}",), ("b", "x" * 500)):
            with pytest.raises(UserError) as caught:
                self.values(*words)
            assert len(str(caught.value)) < 200

    def test_what_is_required(self) -> None:
        with pytest.raises(UserError, match="FIRST is missing; `candapt predict --help` explains it"):
            PARSER.parse(["--count", "3"])
        with pytest.raises(UserError, match="--out is missing; `candapt predict --help` explains it"):
            parse_options(Options, "predict", ["a"])
        assert parse_options(Options, "predict", ["a", "--out", "b"]) == Options(Path("a"), out=Path("b"))

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ({"count": 5}, {"count": 5}),
            ({"count": "5"}, {"count": 5}),
            ({"limit": None}, {"limit": None}),
            ({"rate": 2}, {"rate": 2.0}),
            ({"rate": "1e-3"}, {"rate": 0.001}),  # a text by the rules of YAML
            ({"strict": True}, {"strict": True}),
            ({"place": "b.npz"}, {"place": Path("b.npz")}),
            ({"group": None}, {}),
            ({"mine": {"a": 3}, "out": 4}, {}),
        ],
    )
    def test_configurations(self, content: dict[str, Any], expected: dict[str, Any]) -> None:
        values = PARSER.from_config(content, lambda name: name in ("mine", "out"))
        assert values == expected
        assert all(type(values[name]) is type(expected[name]) for name in expected)

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            ({"count": 1.5}, "count must be a whole number, not '1.5'."),
            ({"count": True}, "count must be a whole number, not 'true'."),
            ({"count": None}, "count must be a whole number, not 'null'."),
            ({"count": [1]}, "count must be a whole number, not '[1]'."),
            ({"rate": float("nan")}, "rate must be a number, not 'nan'."),
            ({"place": 3}, "place must be a path or null, not '3'."),
            ({"label": 3}, "label must be text, not '3'."),
            ({"kind": "pretty"}, "kind must be plain or fancy, not 'pretty'."),
            ({"nope": 3}, "'nope' in the configuration is not a setting: `candapt predict --help` lists them."),
            (
                {"count": {"a": 3}},
                "'count.a' in the configuration is not a setting: `candapt predict --help` lists them.",
            ),
            ({"speed": 3}, "'speed' in the configuration is not a setting: `candapt predict --help` lists them."),
        ],
    )
    def test_bad_configurations(self, content: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError) as caught:
            PARSER.from_config(content, lambda name: False)
        assert str(caught.value) == sentence

    def test_help(self) -> None:
        assert PARSER.parse(["--count", "3", "-h", "a", "b", "c"]).wants_help
        text = PARSER.help({"count": 9}, lambda name: name == "label")
        assert text.startswith(f"usage: candapt predict FIRST [SECOND] [options]\n\n{COMMANDS['predict']}\n")
        entries = dict(re.findall(r"^  (\S.*)\n      (.*)$", text, re.MULTILINE))
        assert entries == {
            "FIRST": "First path.",
            "SECOND": "Second path.",
            "--out PATH": "File to write.",
            "--count NUMBER": "How many. (default: 9)",
            "--limit NUMBER": "How many at most.",
            "--speed, --rate NUMBER": "How fast. (default: 0.5)",
            "--kind {plain,fancy}": "How pretty. (default: plain)",
            "--place PATH": "Where it is.",
            "--report-twice true|false": "Say it again. (default: true)",
            "--strict": "Stop at once.",
            "--help": "Show this text.",
        }


class TestSpellings:
    """The flags of settings have short names, and dashes are as good as underscores."""

    @pytest.mark.parametrize(
        ("words", "name", "value"),
        [
            (("--backbone", "resnet18"), "network.backbone", "resnet18"),
            (("--network.backbone", "resnet18"), "network.backbone", "resnet18"),
            (("--weights=a.safetensors",), "network.weights", Path("a.safetensors")),
            (("--finetune", "last-stage"), "network.finetune", "last-stage"),
            (("--on-nonfinite", "skip"), "training.on_nonfinite", "skip"),
            (("--on_nonfinite=skip",), "training.on_nonfinite", "skip"),
            (("--training.on_nonfinite", "skip"), "training.on_nonfinite", "skip"),
            (("--training.learning-rate", "0.5"), "training.learning_rate", 0.5),
            (("--training.steps", "null"), "training.steps", None),
            (("--method", "can-intra", "--can-intra.weight", "0.5"), "can-intra.weight", 0.5),
            (("--method", "can-intra", "--can_intra.max_distance", "0.5"), "can-intra.max_distance", 0.5),
            (("--can.max_distance=0.5", "--method=can"), "can.max_distance", 0.5),
        ],
    )
    def test_settings(self, words: tuple[str, ...], name: str, value: Any) -> None:
        assert parse_adapt(["a", *words, "b"]).settings.value(name) == value

    def test_other_options(self) -> None:
        words = ["a", "b", "--target_labels", "c.csv", "--checkpoint-minutes", "0", "--no-strict", "--images.size=32"]
        options = parse_adapt([*words, "--baseline", "false", "--out", "run", "--seed", "7"])
        assert (options.source, options.target, options.out) == (Path("a"), Path("b"), Path("run"))
        assert (options.target_labels, options.checkpoint_minutes, options.images.size) == (Path("c.csv"), 0, 32)
        assert (options.strict, options.baseline, options.report, options.settings.seed) == (False, False, True, 7)
        assert parse_adapt(["a", "b"]).out is None


class TestHelp:
    @pytest.mark.parametrize("words", [(), ("-h",), ("--help",)])
    def test_overview(self, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        run(*words)
        assert "candapt COMMAND [options]" in capsys.readouterr().out

    @pytest.mark.parametrize("word", ["-V", "--version"])
    def test_version(self, word: str, capsys: pytest.CaptureFixture[str]) -> None:
        run(word)
        assert capsys.readouterr().out.startswith("candapt ")

    @staticmethod
    def help(capsys: pytest.CaptureFixture[str], *words: object) -> str:
        """What a command prints for --help, with single spaces."""
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            main([*map(str, words), "--help"])
        assert leaving.value.code == 0
        out, err = capsys.readouterr()
        assert err == ""
        return " ".join(out.split())

    @pytest.mark.parametrize(
        ("command", "flag"),
        [
            *((name, "--out PATH") for name in ("demo", "adapt", "predict", "evaluate", "report", "tune", "embed")),
            ("cache", "--cache PATH"),
            ("benchmark", "--out PATH"),
        ],
    )
    def test_commands(self, command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.help(capsys, command)
        assert text.startswith(f"usage: candapt {command} ")
        assert flag in text

    def test_settings_have_their_sentences(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.help(capsys, "adapt")
        assert "Weight of the discrepancy beside the source cross" in text
        assert "Initial learning rate of pretrained layers" in text

    def test_the_chosen_methods_flags_are_shown(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "config.yaml").write_text("method: mcd\n")
        for method, words in (
            ("can", ()),
            ("dan", ("--method", "dan")),
            ("mcd", ("--config", tmp_path / "config.yaml")),
        ):
            text = self.help(capsys, "adapt", *words)
            assert {name for name in METHODS if f"--{name}." in text} == {method}

    def test_the_presets_defaults_are_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        for preset, *figures in (("default", 20, 0.5, "auto"), ("paper", 50, 0.0, "running")):
            text = self.help(capsys, "adapt", "--preset", preset)
            assert f"--rounds NUMBER Maximum number of rounds. (default: {figures[0]})" in text
            for flag, value in zip(("--network.dropout", "--training.statistics"), figures[1:], strict=True):
                assert text.partition(f"{flag} ")[2].partition("(default: ")[2].startswith(f"{value})")

    def test_a_benchmark_lists_its_choices(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.help(capsys, "benchmark", "--methods", "dan,mcd")
        assert ", ".join(SUITES) in text
        assert ", ".join(METHODS) in text
        assert {name for name in METHODS if f"--{name}." in text} == {"dan", "mcd"}

    @pytest.mark.parametrize("words", [("--help",), ("--version",), ("cache", "--help"), ("adapt", "--help")])
    def test_a_reader_may_close_its_end(self, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """As `head` does."""

        class Closed(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError

        monkeypatch.setattr(sys, "stdout", Closed())
        try:
            code = main(words)
        except SystemExit as leaving:
            code = leaving.code
        assert code == 0

    def test_an_interruption_is_no_error_message(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(arguments: list[str]) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("candapt.commands.adapt.main", interrupt)
        assert main(["adapt"]) == 130
        assert capsys.readouterr().err == "candapt: stopped.\n"


@pytest.mark.slow
class TestOffice31:
    """Amazon → webcam from feature files with the default settings."""

    @pytest.fixture(scope="class")
    def folder(self, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("office31")
        with np.load(shared / "data" / "office31-resnet50-features.npz") as arrays:
            for name in ("amazon", "webcam"):
                x, y = arrays[f"{name}_x"], arrays[f"{name}_y"]
                np.savez(folder / f"{name}.npz", x=x, y=y, classes=arrays["classes"])
        return folder

    @pytest.mark.parametrize(("method", "least", "most"), [("source-only", 0.75, 0.79), ("can", 0.9, 1)])
    def test_accuracy(self, folder: Path, method: str, least: float, most: float) -> None:
        out = folder / method
        run(
            *("adapt", folder / "amazon.npz", folder / "webcam.npz", "--out", out, "--method", method),
            *("--target-labels", folder / "webcam.npz"),
        )
        assert least <= json.loads((out / "summary.json").read_text())["oracle"]["accuracy"] <= most


def test_unknown_objects_need_a_name_that_no_class_has(toy: Toy, data: Path, tmp_path: Path, refused: Refused) -> None:
    names = np.array(["cup", "unknown", "pen", "key"])
    np.savez(tmp_path / "named.npz", x=toy.source_x, y=toy.source_y, classes=names)
    words = ("adapt", tmp_path / "named.npz", data / "target.npz", "--out", tmp_path / "run", *FLAGS)
    assert "a class of the source has it" in refused(*words, "--unknown", "label")
