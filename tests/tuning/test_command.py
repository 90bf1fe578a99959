"""`candapt tune` from the words to the files."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.kills import finish, kill_and_resume
from candapt.commands.main import main
from candapt.errors import DivergedError
from candapt.training.loop import Training
from tests.images import write_photos, write_weights
from tests.toy import Toy, make_toy

FLAGS = ["--rounds", "4", "--network.bottleneck", "16", "--training.steps", "4", "--training.accelerator", "cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(classes=12, samples=10).write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def words(data: Path) -> list[object]:
    return ["tune", data / "source.npz", data / "target.npz", *FLAGS]


Tune = Callable[..., int]


@pytest.fixture
def tune(words: list[object], tmp_path: Path) -> Tune:
    """Run the command, with the folder `out`."""
    return lambda *more: main([str(word) for word in (*words, "--out", tmp_path / "out", *more)])


def outcome(out: Path) -> dict[str, Any]:
    """All that a search leaves and that is not time."""
    trials = json.loads((out / "trials.json").read_text())["trials"]
    for each in trials:
        del each["seconds"]
    return {"trials": trials, "config": (out / "config.yaml").read_text()}


@pytest.fixture(scope="module")
def undisturbed(words: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "out"
    assert main([*map(str, words), "--trials", "9", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def short(words: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first trials of that search, for tests that need none that is pruned."""
    out = tmp_path_factory.mktemp("tuned") / "short"
    assert main([*map(str, words), "--trials", "4", "--out", str(out)]) == 0
    return out


class TestResult:
    def test_the_first_trial_has_the_defaults_and_the_winner_is_no_worse(self, undisturbed: Path) -> None:
        trials = outcome(undisturbed)["trials"]
        assert [trial["number"] for trial in trials] == list(range(9))
        assert trials[0]["settings"] == {
            **{"can.weight": 0.3, "can.start_share": 0.2, "can.max_distance": 1.0, "can.min_samples": 3},
            **{"can.classes": 10, "can.samples": 3, "training.learning_rate": 0.001},
        }
        assert trials[0]["state"] == "complete"
        config = yaml.safe_load((undisturbed / "config.yaml").read_text())
        best = max((trial for trial in trials if trial["score"] is not None), key=lambda trial: trial["score"])
        assert best["score"] >= trials[0]["score"]
        assert config["can"]["weight"] == best["settings"]["can.weight"]
        assert config["training"]["learning_rate"] == best["settings"]["training.learning_rate"]
        assert config["training"]["steps"] == 4

    def test_labels_in_the_target_are_not_seen(self, short: Path, data: Path, tmp_path: Path) -> None:
        files = [str(data / "source.npz"), str(data / "labeled.npz")]
        assert main(["tune", *files, *FLAGS, "--trials", "4", "--out", str(tmp_path / "out")]) == 0
        assert outcome(tmp_path / "out")["trials"] == outcome(short)["trials"]

    def test_trials_are_pruned_early(self, undisturbed: Path) -> None:
        pruned = [trial for trial in outcome(undisturbed)["trials"] if trial["state"] == "pruned"]
        assert pruned
        assert all(len(trial["scores"]) < 4 and trial["score"] is None for trial in pruned)

    def test_adapt_takes_the_configuration_and_makes_the_very_training(
        self, undisturbed: Path, data: Path, tmp_path: Path
    ) -> None:
        words = ["adapt", data / "source.npz", data / "target.npz", "--config", undisturbed / "config.yaml"]
        run = tmp_path / "run"
        assert main([*map(str, words), "--out", str(run), "--report", "false", "--baseline", "false"]) == 0
        rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        trials = outcome(undisturbed)["trials"]
        assert rounds[-1]["score_neighbor_information"] == max(
            trial["score"] for trial in trials if trial["score"] is not None
        )

    def test_what_is_shown(self, tune: Tune, capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path) -> None:
        assert tune("--trials", 2) == 0
        printed = capsys.readouterr()
        assert "1/2 trial 0: neighbor_information 0." in printed.err
        assert printed.out.split()[:6] == ["neighbor", "start", "max", "min", "learning", "trial"]
        assert "Best by neighbor_information: trial " in printed.out
        paths = f"{data / 'source.npz'} {data / 'target.npz'} --config {tmp_path / 'out' / 'config.yaml'}"
        assert printed.out.splitlines()[-1] == f"Train with these settings: candapt adapt {paths} --out RUN"

    def test_lower_scores_may_be_better(self, tune: Tune, tmp_path: Path) -> None:
        assert tune("--trials", 3, "--score", "protocol", "--training.held_out", 0.2) == 0
        trials = outcome(tmp_path / "out")["trials"]
        best = min(trials, key=lambda trial: trial["score"])
        assert f"Trial {best['number']}, the best of 3 by protocol" in (tmp_path / "out/config.yaml").read_text()

    def test_the_score_is_that_of_the_round_that_is_kept(self, tune: Tune, tmp_path: Path) -> None:
        assert tune("--trials", 2, "--select", "information", "--score", "information") == 0
        for trial in outcome(tmp_path / "out")["trials"]:
            judged = [value for value in trial["scores"] if value is not None]
            assert trial["score"] == max(judged) == trial["scores"][trial["round"]]
        assert yaml.safe_load((tmp_path / "out/config.yaml").read_text())["select"] == "information"

    def test_images_go_through_frozen_layers_once(self, tmp_path: Path) -> None:
        write_photos(tmp_path / "source"), write_photos(tmp_path / "target", seed=1)
        (tmp_path / "target" / "broken.png").write_text("hello")
        weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
        words = [
            *(
                "tune",
                tmp_path / "source",
                tmp_path / "target",
                "--out",
                tmp_path / "out",
                "--cache",
                tmp_path / "cache",
            ),
            *("--backbone", "test_resnet", "--weights", weights, "--finetune", "head", "--images.size", 32),
            *("--images.resize", 36, "--trials", 2, "--rounds", 2, "--training.steps", 2, "--score", "information"),
        ]
        assert main([*map(str, words)]) == 0
        assert len(list((tmp_path / "cache").iterdir())) > 0
        assert "broken.png" in (tmp_path / "out/left-out.csv").read_text()
        run = ["adapt", "--config", tmp_path / "out/config.yaml", "--out", tmp_path / "run", "--report", "false"]
        assert main([*map(str, run), "--cache", str(tmp_path / "cache")]) == 0
        last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
        scores = [trial["score"] for trial in outcome(tmp_path / "out")["trials"]]
        assert last["score_information"] == max(scores)


class TestFixed:
    @pytest.mark.parametrize("flag", [["--can.weight", "0.7"], ["--can.weight=0.7"], ["--can.weight", "0.3"]])
    def test_a_flag_takes_a_setting_out_of_the_search(self, flag: list[str], tune: Tune, tmp_path: Path) -> None:
        assert tune("--trials", 3, *flag) == 0
        assert all("can.weight" not in trial["settings"] for trial in outcome(tmp_path / "out")["trials"])
        config = yaml.safe_load((tmp_path / "out/config.yaml").read_text())
        assert config["can"]["weight"] == float(flag[-1].rpartition("=")[2])

    def test_a_configuration_is_what_the_search_starts_from(self, tune: Tune, tmp_path: Path) -> None:
        (tmp_path / "start.yaml").write_text("target_labels: nowhere.csv\nbaseline: false\ncan: {weight: 9.0}\n")
        assert tune("--trials", 2, "--config", tmp_path / "start.yaml", "--can.samples", 2) == 0
        first, second = outcome(tmp_path / "out")["trials"]
        assert first["settings"]["can.weight"] == 9.0 != second["settings"]["can.weight"]
        assert "can.samples" not in first["settings"]

    def test_another_method(self, tune: Tune, tmp_path: Path) -> None:
        assert tune("--trials", 2, "--method", "can-no-cas", "--can-no-cas.weight", 1) == 0
        assert list(outcome(tmp_path / "out")["trials"][0]["settings"]) == [
            *("can-no-cas.start_share", "can-no-cas.max_distance", "can-no-cas.min_samples", "can-no-cas.samples"),
            "training.learning_rate",
        ]
        assert yaml.safe_load((tmp_path / "out/config.yaml").read_text())["can-no-cas"]["weight"] == 1

    def test_nothing_left(self, tune: Tune, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert tune("--method", "source-only", "--training.learning_rate", 0.01) == 2
        assert "There is nothing to search" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


class KilledError(BaseException):
    """Ends a process in a test without any of its precautions."""


class TestResume:
    @pytest.mark.parametrize("after", [0, 111])  # before there is a trial, and in the seventh
    def test_killed_at_any_step(
        self, after: int, tune: Tune, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one_batch, made = Training.one_batch, 0

        def counted(self: Training, *arguments: Any) -> dict[str, float]:
            nonlocal made
            if made == after:
                raise KilledError
            made += 1
            return one_batch(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Training, "one_batch", counted)
            with pytest.raises(KilledError):
                tune("--trials", 9)
        assert tune("--trials", 9, "--resume") == 0
        assert outcome(tmp_path / "out") == outcome(undisturbed)

    @pytest.mark.parametrize("name", ["tuning.json", "trials.json", "trials.csv", "config.yaml"])
    def test_killed_before_a_file_has_its_name(
        self, name: str, tune: Tune, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename, seen = Path.replace, 0

        def killed(self: Path, target: Path) -> Path:
            nonlocal seen
            seen += Path(target).name == name
            if seen == (1 if name == "tuning.json" else 3):
                raise KilledError
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed)
            with pytest.raises(KilledError):
                tune("--trials", 4)
        assert tune("--trials", 4, "--resume") == 0
        assert outcome(tmp_path / "out") == outcome(short)

    def test_the_table_is_made_again(self, tune: Tune, tmp_path: Path) -> None:
        assert tune("--trials", 2) == 0
        whole = (tmp_path / "out/trials.csv").read_text()
        (tmp_path / "out/trials.csv").unlink()  # as after a kill in the last trial
        (tmp_path / "out/config.yaml").unlink()
        assert tune("--trials", 2, "--resume") == 0
        assert (tmp_path / "out/trials.csv").read_text() == whole
        assert (tmp_path / "out/config.yaml").exists()

    @pytest.mark.slow  # those above end a search without its precautions too, at steps and files that they choose
    def test_killed_with_sigkill(self, words: list[object], tmp_path: Path) -> None:
        longer, out = [*words, "--trials", "8", "--training.steps", "30"], tmp_path / "out"
        seconds = finish(*longer, "--out", tmp_path / "undisturbed")
        assert kill_and_resume(longer, out, [share * seconds for share in (0.4, 0.5)]) > 0
        assert outcome(out) == outcome(tmp_path / "undisturbed")

    def test_more_trials_later(self, tune: Tune, undisturbed: Path, tmp_path: Path) -> None:
        assert tune("--trials", 4) == 0
        assert tune("--trials", 9, "--resume") == 0
        assert outcome(tmp_path / "out") == outcome(undisturbed)
        assert tune("--trials", 2, "--resume") == 0  # there are more already
        assert outcome(tmp_path / "out") == outcome(undisturbed)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_tells_how_to_continue(
        self,
        number: signal.Signals,
        code: int,
        words: list[object],
        short: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        one_batch, made, out = Training.one_batch, 0, tmp_path / "my search"

        def interrupted(self: Training, *arguments: Any) -> dict[str, float]:
            nonlocal made
            made += 1
            if made == 20:
                os.kill(os.getpid(), number)
            return one_batch(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Training, "one_batch", interrupted)
            assert main([*map(str, words), "--out", str(out), "--trials", "4"]) == code
        last = capsys.readouterr().err.splitlines()[-1]
        start, command = last.removesuffix(".").split("continue with: candapt ")
        assert start == "candapt: stopped; "
        assert (out / "config.yaml").exists()  # the best so far
        assert main(shlex.split(command)) == 0
        assert outcome(out) == outcome(short)

    def test_changes_are_refused(
        self, tune: Tune, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tune("--trials", 2) == 0
        before = outcome(tmp_path / "out")
        for more, change in (
            (["--rounds", 5], "rounds was 4 and is 5"),
            (["--seed", 1], "seed was 0 and is 1"),
            (["--score", "snd"], "score was neighbor_information and is snd"),
            (["--can.weight", 0.3], "searched.can.weight was [0.03, 3, True] and is None"),
        ):
            assert tune("--resume", *more) == 2
            assert change in capsys.readouterr().err.splitlines()[-1]
        other = toy.write(tmp_path / "other")
        assert main(["tune", str(other / "source.npz"), *sys_words(tmp_path / "out", other)]) == 2
        assert "was started with something else" in capsys.readouterr().err
        assert outcome(tmp_path / "out") == before
        assert tune("--trials", 3, "--resume", "--force", "--rounds", 5) == 0
        assert "Continuing with something else than at the start: rounds was 4 and is 5" in capsys.readouterr().err

    def test_one_writer_at_a_time(
        self, tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        one_batch, seen = Training.one_batch, list[str]()

        def interfered(self: Training, *arguments: Any) -> dict[str, float]:
            if not seen and (tmp_path / "out" / "trials.json").exists():
                for more in ([], ["--resume"]):
                    assert tune(*more) == 2
                    seen.append(capsys.readouterr().err.splitlines()[-1])
            return one_batch(self, *arguments)

        monkeypatch.setattr(Training, "one_batch", interfered)
        assert tune("--trials", 2) == 0
        assert len(seen) == 2
        assert all(f"is being written by process {os.getpid()} on " in sentence for sentence in seen)


def sys_words(out: Path, data: Path) -> list[str]:
    return [str(data / "target.npz"), *FLAGS, "--out", str(out), "--resume"]


class TestRefusals:
    def test_a_folder_with_trials(self, tune: Tune, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert tune("--trials", 1) == 0
        assert tune("--trials", 1) == 2
        assert "already holds a search: give --resume to continue it" in capsys.readouterr().err
        run = ["adapt", "--out", str(tmp_path / "out")]
        for more, reason in (
            ([], "already holds files: give another folder"),
            (["--resume"], "of `candapt tune` and no run"),
        ):
            assert main([*run, "a.npz", "b.npz", *more]) == 2
            assert reason in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            (["--trials", "0"], "--trials is 0, but must be at least 1."),
            (["--score", "accuracy"], "no score for --score named 'accuracy': choose one of neighbor_information, "),
            (["--score", "label_change"], "a score that was removed: use neighbor_information instead."),
            (["--score", "first_agreement"], "Settings cannot be compared by first_agreement, since a training that"),
            (["--score", "dev"], "give --training.held_out 0.1, or another --score."),
            (["--target-labels", "labels.csv"], "'--target-labels' is not an option"),
            (["--training.steps", "0"], "training.steps is 0, but must be at least 1."),
            (["--resume"], "There is nothing to resume in "),
        ],
    )
    def test_one_sentence(
        self, more: list[str], reason: str, tune: Tune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tune(*more) == 2
        printed = capsys.readouterr().err.splitlines()
        assert len(printed) == 1
        assert reason in printed[0]
        assert not (tmp_path / "out").exists()

    def test_damaged_trials(self, tune: Tune, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert tune("--trials", 1) == 0
        for name in ("trials.json", "tuning.json"):
            whole = (tmp_path / "out" / name).read_bytes()
            (tmp_path / "out" / name).write_bytes(whole[: len(whole) // 2])
            capsys.readouterr()
            assert tune("--trials", 2, "--resume") == 2
            assert f"{name}' is not what a tuning writes (" in capsys.readouterr().err.splitlines()[-1]
            (tmp_path / "out" / name).write_bytes(whole)

    def test_without_optuna(
        self, tune: Tune, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, "candapt.commands.tune", raising=False)
        monkeypatch.delattr("candapt.commands.tune", raising=False)
        assert tune() == 2
        assert capsys.readouterr().err == (
            "candapt: `candapt tune` needs Optuna: install it with: pip install 'candapt[tune]'.\n"
        )
        assert not (tmp_path / "out").exists()

    def test_numbers_that_go_wrong_fail_a_trial_and_not_the_search(
        self, tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        one_batch = Training.one_batch

        def diverging(self: Training, *arguments: Any) -> dict[str, float]:
            if self.settings.method_settings.weight != 0.3:
                raise DivergedError("In round 1, step 1 the loss is no longer finite.")
            return one_batch(self, *arguments)

        monkeypatch.setattr(Training, "one_batch", diverging)
        assert tune("--trials", 3) == 0
        trials = outcome(tmp_path / "out")["trials"]
        assert [trial["state"] for trial in trials] == ["complete", "failed", "failed"]
        assert "step 1 the loss is no longer finite" in trials[1]["reason"]
        assert "trial 1: failed after 0 rounds, 0 s. In round 1, step 1 the loss" in capsys.readouterr().err
        assert tune("--trials", 4, "--resume") == 0

    def test_a_start_that_fails_ends_the_search(
        self, tune: Tune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tune("--trials", 3, "--training.learning_rate", 1e30) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("candapt: The training with the settings to start from failed: In round 1, step ")
        assert not (tmp_path / "out" / "trials.json").exists()
