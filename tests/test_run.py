"""Runs in Python: the same as the command, and what one can do with them."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import candapt
from candapt import Domain, Run
from candapt.commands.main import main
from candapt.errors import UserError
from candapt.model import PredictionRow
from tests.images import write_photos, write_weights
from tests.toy import QUICK, Toy

KEYWORDS = {name.replace(".", "__"): value for name, value in QUICK.items()}
FLAGS = [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def data(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "first"
    return candapt.adapt(data / "source.npz", str(data / "target.npz"), out=out, **KEYWORDS)


class TestAdapt:
    def test_it_does_what_the_command_does(self, finished: Run, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "command"
        assert main(["adapt", str(data / "source.npz"), str(data / "target.npz"), "--out", str(out), *FLAGS]) == 0
        assert {path.name for path in out.iterdir()} == {path.name for path in finished.path.iterdir()}
        for name in ("predictions.csv", "config.yaml", "model.safetensors", "model.json"):
            assert (out / name).read_bytes() == (finished.path / name).read_bytes()

    def test_settings_by_any_of_their_names(self, data: Path, tmp_path: Path) -> None:
        given = KEYWORDS | {"report": False, "baseline": False, "heads": np.int64(2)} | {"can.weight": 0.5}
        run = candapt.adapt(data / "source.npz", data / "target.npz", out=tmp_path / "run", **given)
        assert run.config["can"]["weight"] == 0.5
        assert run.config["network"]["heads"] == 2
        assert run.config["training"]["steps"] == QUICK["training.steps"]

    def test_methods_whose_names_have_dashes(self, data: Path, tmp_path: Path) -> None:
        more: dict[str, Any] = {"self_ensembling__noise": 0.25, "report": False}
        settings: dict[str, Any] = KEYWORDS | more
        run = candapt.adapt(
            data / "source.npz", data / "target.npz", out=tmp_path / "run", method="self-ensembling", **settings
        )
        assert run.config["self-ensembling"]["noise"] == 0.25

    def test_a_new_folder(self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        run = candapt.adapt(data / "source.npz", data / "target.npz", **KEYWORDS | {"report": False})
        assert run.path.parent == Path("runs")

    def test_resuming_a_complete_run_changes_nothing(self, finished: Run) -> None:
        before = (finished.path / "summary.json").read_bytes()
        assert candapt.adapt(out=finished.path, resume=True).path == finished.path
        assert (finished.path / "summary.json").read_bytes() == before

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"round": 5}, "'round' is not an option: did you mean `rounds`?"),
            ({"can__wait": 1}, "'can.wait' is not an option: did you mean `can__weight`?"),
            ({"can.weigth": 1}, "'can.weigth' is not an option: did you mean `can__weight`?"),
            ({"wieghts": "x"}, "'wieghts' is not an option: did you mean `weights`?"),
            ({"rounds": "many"}, "rounds must be a whole number, not 'many'"),
            ({"rounds": 2.5}, "rounds must be a whole number, not '2.5'"),
            ({"training__steps": 0}, "training.steps is 0, but must be at least 1"),
            ({"method": "cam"}, "There is no method 'cam': did you mean 'can'"),
            ({"mcc__weight": 1}, "is a setting of mcc, but the method is can"),
        ],
    )
    def test_bad_settings(self, data: Path, tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError) as caught:
            candapt.adapt(data / "source.npz", data / "target.npz", out=tmp_path / "run", **settings)
        assert sentence in str(caught.value)
        assert not (tmp_path / "run").exists()

    def test_arrays_are_for_the_estimator(self, toy: Toy) -> None:
        with pytest.raises(UserError, match=r"target must be a path: .*DomainAdaptationClassifier"):
            candapt.adapt("source.npz", toy.target_x)  # type: ignore[arg-type]

    def test_missing_data(self, data: Path) -> None:
        with pytest.raises(UserError, match="TARGET is missing"):
            candapt.adapt(data / "source.npz")
        with pytest.raises(UserError, match="There is no file"):
            candapt.adapt(data / "nope.npz", data / "target.npz")


class TestLog:
    def test_the_file_is_complete_and_logging_stays_as_it_was(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        log = logging.getLogger("candapt")
        log.setLevel(logging.NOTSET)  # as in a program that has set up no logging
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        files, settings = (data / "source.npz", data / "target.npz"), KEYWORDS | {"report": False}
        for quiet in (True, False):
            run = candapt.adapt(*files, out=tmp_path / str(quiet), quiet=quiet, **settings)
            assert "can round 2/2" in (run.path / "log.txt").read_text()
            assert ("can round 2/2" in capsys.readouterr().err) is not quiet
            assert log.handlers == []
            assert log.level == logging.NOTSET

    def test_a_programs_own_logging_is_used(
        self, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        settings = KEYWORDS | {"report": False}
        candapt.adapt(data / "source.npz", data / "target.npz", out=tmp_path / "run", **settings)
        assert any("can round 2/2" in line for line in caplog.messages)
        assert "round" not in capsys.readouterr().err


class TestRun:
    def test_what_it_holds(self, finished: Run, toy: Toy) -> None:
        assert finished.report == finished.path / "report.html"
        assert finished.summary == json.loads((finished.path / "summary.json").read_text())
        assert finished.config["method"] == "can"
        assert finished.model.classes == ("0", "1", "2", "3")
        assert len(finished.predictions) == len(toy.target_y)
        assert repr(finished) == f"Run({str(finished.path)!r})"

    def test_a_run_of_the_command_line(self, finished: Run) -> None:
        loaded = candapt.load_run(str(finished.path))
        assert loaded.predictions == finished.predictions
        assert loaded.summary == finished.summary

    def test_predictions_are_a_table(self, finished: Run) -> None:
        table = pd.DataFrame(finished.predictions)
        assert tuple(table.columns) == PredictionRow._fields
        written = pd.read_csv(finished.path / "predictions.csv", dtype={"path": str, "label": str})
        assert table["label"].tolist() == written["label"].tolist()
        assert table["kept"].dtype == bool

    @pytest.mark.parametrize("kind", ["path", "array", "frame", "domain"])
    def test_other_samples(self, finished: Run, data: Path, toy: Toy, kind: str) -> None:
        x = toy.target_x
        given = {"path": data / "target.npz", "array": x, "frame": pd.DataFrame(x), "domain": Domain(x)}[kind]
        rows = finished.predict(given)
        assert [row.label for row in rows] == [row.label for row in finished.predictions]
        assert [row.path for row in rows] == list(map(str, range(len(x))))

    def test_samples_that_do_not_fit(self, finished: Run, toy: Toy) -> None:
        with pytest.raises(UserError, match="takes samples of shape"):
            finished.predict(toy.target_x[:, 1:])
        with pytest.raises(UserError, match="NaN"):
            finished.predict(toy.target_x * np.nan)
        with pytest.raises(UserError, match="does not exist"):
            finished.predict("nope")

    def test_no_finished_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds no finished run"):
            candapt.load_run(tmp_path)

    def test_without_a_page(self, data: Path, tmp_path: Path) -> None:
        settings = KEYWORDS | {"report": False}
        run = candapt.adapt(data / "source.npz", data / "target.npz", out=tmp_path / "run", **settings)
        with pytest.raises(UserError, match="has no page: make it by `candapt report"):
            _ = run.report

    def test_damaged_files(self, data: Path, tmp_path: Path) -> None:
        settings = KEYWORDS | {"report": False}
        run = candapt.adapt(data / "source.npz", data / "target.npz", out=tmp_path / "run", **settings)
        (run.path / "predictions.csv").write_text("path,label,confidence\n0,a,high\n")
        (run.path / "config.yaml").unlink()
        for name in ("predictions", "config"):
            with pytest.raises(UserError, match="cannot be read"):
                getattr(run, name)

    def test_predictions_of_version_0_1(self) -> None:
        folder = Path(__file__).parent / "fixtures" / "version_0_1" / "finished"
        rows = candapt.load_run(folder).predictions
        assert all(row.softmax == row.confidence for row in rows)


def test_images(tmp_path: Path) -> None:
    """Folders of images, and then a list of some."""
    source, target = write_photos(tmp_path / "source"), write_photos(tmp_path / "target", seed=1)
    weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
    settings = KEYWORDS | {"backbone": "test_resnet", "weights": weights, "images__size": 32}
    run = candapt.adapt(source, target, out=tmp_path / "run", **settings)
    some = [target / "dog" / "1.png", str(target / "cat" / "0.png")]
    rows, by_name = run.predict(some), {row.path: row for row in run.predictions}
    assert [row.path for row in rows] == [str(path) for path in some]
    assert [row.label for row in rows] == [by_name[name].label for name in ("dog/1.png", "cat/0.png")]
    assert [row.label for row in run.predict(target)] == [row.label for row in run.predictions]
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="1 of 2 image files in 'the list' cannot be used"):
        run.predict([some[0], tmp_path / "broken.png"])
