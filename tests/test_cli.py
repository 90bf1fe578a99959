"""The command line from end to end, on files as people have them, good and bad."""

import csv
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import candapt
from candapt import DomainAdaptationClassifier
from candapt.cli import main
from candapt.cli.entry import COMMANDS
from candapt.data.domains import Domain
from candapt.methods import METHODS
from candapt.presets import PRESETS, make_settings
from candapt.runs import describe_settings
from tests.toy import QUICK, Toy

FLAGS = [word for name, value in (QUICK | {"report": False}).items() for word in (f"--{name}", str(value))]
Refused = Callable[..., str]


def run(*words: object) -> None:
    """A command that must work."""
    assert main([str(word) for word in words]) == 0


def adapt(source: Path, target: Path, out: Path, *more: object) -> Path:
    run("adapt", source, target, "--out", out, *FLAGS, *more)
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


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
        assert err.endswith((".\n", "…\n"))
        assert "Traceback" not in err
        assert snapshot(tmp_path) == before
        return err.removeprefix("candapt: ").strip()

    return check


class TestAdapt:
    def test_every_file_is_written(self, finished: Path) -> None:
        names = {path.name for path in finished.iterdir()}
        assert names == {
            *("config.yaml", "model.safetensors", "model.json", "metrics.jsonl"),
            *("predictions.csv", "summary.json", "checkpoints", "log.txt", "embedding.npz", "report.html"),
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
        assert list(table[0]) == ["path", "label", "confidence", "cluster_label", "cluster_distance", "kept"]
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
        told = [row["label"] for row in rows(finished / "predictions.csv")]
        assert [model.classes[label] for label in predictions.labels] == told

    def test_the_estimator_says_the_same(self, finished: Path, toy: Toy) -> None:
        model = DomainAdaptationClassifier(settings=QUICK).fit(toy.source_x, toy.source_y, target=toy.target_x)
        table = rows(finished / "predictions.csv")
        assert [str(label) for label in model.predict(toy.target_x)] == [row["label"] for row in table]
        confidence = model.predict_proba(toy.target_x).max(axis=1)
        assert [f"{value:.6f}" for value in confidence] == [row["confidence"] for row in table]

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

    def test_a_round_without_a_confident_class_is_told(
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
        assert tables[0] != tables[1]  # the choice is heard
        assert json.loads((runs[0] / "model.json").read_text())["network"]["backbone"] == "small-cnn"
        run("predict", runs[0], tmp_path / "target.npz", "--out", tmp_path / "again.csv")
        assert (tmp_path / "again.csv").read_bytes() == tables[0]


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
        jobs: list[Any] = []
        monkeypatch.setattr("candapt.commands.adapt.adapt", lambda job, out, **_: jobs.append(job))
        run("adapt", "a.npz", "b.npz", "--method", method, "--preset", preset, "--out", "run")
        assert describe_settings(jobs[0].settings) == describe_settings(make_settings(method, preset=preset))


class TestOracle:
    """Target labels change nothing but what is marked oracle."""

    @pytest.mark.parametrize("method", ["can", "source-only"])
    @pytest.mark.parametrize("labels", ["labels.csv", "labeled.npz"])
    def test_predictions_are_the_same_without(self, data: Path, tmp_path: Path, method: str, labels: str) -> None:
        files = data / "source.npz", data / "target.npz"
        without = adapt(*files, tmp_path / "without", "--method", method)
        told = adapt(*files, tmp_path / "told", "--method", method, "--target-labels", data / labels)
        for name in ("predictions.csv", "model.safetensors", "model.json"):
            assert (told / name).read_bytes() == (without / name).read_bytes()
        for name in ("metrics.jsonl", "summary.json"):
            contents = [self.without_oracle(folder / name) for folder in (told, without)]
            assert contents[0] == contents[1]

    @classmethod
    def without_oracle(cls, path: Path) -> Any:
        text = path.read_text()
        return cls.cleaned(
            [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
        )

    @classmethod
    def cleaned(cls, told: Any) -> Any:
        if isinstance(told, list):
            return [cls.cleaned(item) for item in told]
        if isinstance(told, dict):
            return {k: cls.cleaned(v) for k, v in told.items() if "oracle" not in k and k != "seconds"}
        return told

    def test_what_it_tells_is_true(self, data: Path, toy: Toy, tmp_path: Path) -> None:
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
        assert (tmp_path / "again.csv").read_bytes() == (finished / "predictions.csv").read_bytes()

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
    """Folders of small grey images, with names that files may have."""

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
        assert (photos / "again.csv").read_bytes() == (out / "predictions.csv").read_bytes()
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
        assert (photos / "again.csv").read_bytes() == (out / "predictions.csv").read_bytes()

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
            (("--network.weights", "nowhere.pth"), "does not exist"),
            (("--network.backbone", "small-cnn"), "small-cnn takes images with 1 channel(s), but the samples have 3"),
        ],
    )
    def test_networks(self, files: Path, refused: Refused, network: tuple[str, str], sentence: str) -> None:
        words = refused("adapt", files / "color.npz", files / "color.npz", "--out", files / "run", *network)
        assert sentence in words

    @pytest.mark.parametrize(
        ("out", "sentence"),
        [
            ("file", "cannot be written"),
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
            (("--method", "nope"), "--method is 'nope', but must be one of source-only, "),
            (("--preset", "nope"), "--preset is 'nope', but must be one of default, paper, official."),
            (("--nope", "3"), "'--nope 3' is not understood"),
            (("--training.nope", "3"), "'--training.nope 3' is not understood"),
            (("more",), "'more' is not understood"),
            (("--rounds", "many"), "rounds must be a whole number, not 'many'."),
            (("--rounds", "1.5"), "rounds must be a whole number, not '1.5'."),
            (("--seed", ""), "seed must be a whole number, not ''."),
            (("--can.weight", "[1"), "can.weight must be a number, not '[1'."),
            (("--training.steps", "few"), "training.steps must be a whole number, not 'few'."),
            (("--training.nesterov", "3"), "training.nesterov must be true or false, not '3'."),
            (("--training.schedule", "x"), "training.schedule must be progress or iteration or constant, not 'x'."),
            (("--training.accelerator", "tpux"), "training.accelerator must be auto or cpu or cuda or mps"),
            (("--can.samples", "0"), "can.samples is 0, but must be at least 1."),
            (("--rounds", "0"), "rounds is 0, but must be at least 1."),
            (("--training.batch_size", "1"), "training.batch_size is 1, but must be at least 2."),
            (("--training.steps", "-1"), "training.steps is -1, but must be at least 1."),
            (("--method", "source-only", "--can.weight", "1"), "'--can.weight 1' is not understood"),
            (("--rounds",), "expected one argument"),
            (("--config",), "expected one argument"),
            (("--method",), "expected one argument"),
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
            ("sourc: a.npz", "'sourc' is not understood"),
            ("training: {stepz: 3}", "'training.stepz' is not understood"),
            ("can: {nope: 3}", "'can.nope' is not understood"),
            ("method: nope", "--method is 'nope'"),
            ("method: [can]", "--method is ['can']"),
            ("method: 3", "--method is 3"),
            ("preset: {a: b}", "--preset is {'a': 'b'}"),
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
            (("adapt", "a.npz", "b.npz"), "out"),
            (("predict", "run"), "input"),
            (("evaluate",), "run"),
            (("nope",), "There is no command 'nope': choose one of demo, adapt, predict, evaluate"),
            (("--nope",), "There is no command '--nope'"),
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


class TestHelp:
    @pytest.mark.parametrize("words", [(), ("-h",), ("--help",)])
    def test_overview(self, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        run(*words)
        assert "candapt COMMAND [options]" in capsys.readouterr().out

    @pytest.mark.parametrize("word", ["-V", "--version"])
    def test_version(self, word: str, capsys: pytest.CaptureFixture[str]) -> None:
        run(word)
        assert capsys.readouterr().out.startswith("candapt ")

    @pytest.mark.parametrize("command", ["demo", "adapt", "predict", "evaluate", "tune"])
    def test_commands(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as leaving:
            main([command, "--help"])
        assert leaving.value.code == 0
        assert "--out" in capsys.readouterr().out

    def test_settings_have_their_sentences(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["adapt", "--help"])
        told = " ".join(capsys.readouterr().out.split())
        assert "Weight of the discrepancy beside the source cross" in told
        assert "Initial learning rate of pretrained layers" in told

    def test_an_interruption_is_no_error_message(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(arguments: list[str]) -> None:
            raise KeyboardInterrupt

        monkeypatch.setitem(COMMANDS, "adapt", interrupt)
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
