"""Trials, and the folder that keeps them."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from candapt.errors import UserError
from candapt.presets import make_settings
from candapt.settings import Range
from candapt.storage.safe_reading import MAX_JSON
from candapt.tuning.folder import TRIALS, Trial, TuningFolder, best_of
from candapt.tuning.search import Search, propose

SPACE = {"can.weight": Range(0.03, 3, log=True), "can.samples": Range(2, 6, whole=True)}
SEARCH = Search(make_settings("can", changes={"rounds": 4}), SPACE, "class_ami")


def trial(number: int, score: float | None, state: Any = "complete", **changes: Any) -> Trial:
    values = {"can.weight": 0.1 * (number + 1), "can.samples": 2 + number % 4}
    own = Trial(number, state, values, (None, 0.1 * number, 0.2), 1.5, score, None if score is None else 2)
    return replace(own, **changes)


TRIALS_MADE = [trial(0, 0.5), trial(1, 0.7), trial(2, None, "pruned"), trial(3, None, "failed", reason="no numbers")]


class TestBest:
    def test_the_best_complete_one(self) -> None:
        assert best_of(TRIALS_MADE, "class_ami") == TRIALS_MADE[1]
        assert best_of(TRIALS_MADE, "dev") == TRIALS_MADE[0]

    def test_of_equals_the_first(self) -> None:
        for score in ("class_ami", "dev"):  # of which more is better, or less
            assert best_of([trial(0, 0.5), trial(1, 0.5)], score) == trial(0, 0.5)

    def test_none_of_none(self) -> None:
        assert best_of([], "class_ami") is None
        assert best_of(TRIALS_MADE[2:], "class_ami") is None


class TestPropose:
    def test_the_start_comes_first(self) -> None:
        assert propose(SEARCH, []).params == {"can.weight": 0.3, "can.samples": 3} == SEARCH.start

    def test_proposals_depend_on_seed_number_and_trials_alone(self) -> None:
        made = [trial(number, 0.1 * number) for number in range(8)]
        first, again = (propose(SEARCH, made).params for _ in range(2))
        assert first == again
        assert all(SPACE[name].holds(value) for name, value in first.items())
        assert propose(replace(SEARCH, settings=replace(SEARCH.settings, seed=1)), made).params != first
        assert propose(SEARCH, made[:7]).params != first

    def test_a_trial_that_does_worse_than_most_is_pruned(self) -> None:
        made = [trial(number, 0.5, scores=(0.5, 0.5, 0.5, 0.5)) for number in range(5)]
        for value, pruned in ((0.4, True), (0.6, False)):
            proposed = propose(SEARCH, made)
            proposed.report(value, 0)
            assert not proposed.should_prune()  # the first third of the rounds tells nothing
            proposed.report(value, 1)
            assert bool(proposed.should_prune()) is pruned
        proposed = propose(SEARCH, made[:4])
        proposed.report(0, 1)
        assert not proposed.should_prune()  # there are too few to compare with


class TestFolder:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        folder = TuningFolder(tmp_path)
        assert folder.read_trials(SPACE) == []
        folder.write_trials(TRIALS_MADE)
        assert folder.read_trials(SPACE) == TRIALS_MADE
        lines = (tmp_path / "trials.csv").read_text().splitlines()
        assert lines[0] == "trial,state,score,round,rounds,seconds,can.weight,can.samples"
        assert lines[1] == "0,complete,0.5,2,3,1.5,0.1,2"
        assert len(lines) == 5

    @pytest.mark.parametrize(
        "damage",
        [
            lambda trials: trials[0].pop("state"),
            lambda trials: trials[0].update(state="won"),
            lambda trials: trials[0].update(state="pruned", score=None),
            lambda trials: trials[1].update(number=7),
            lambda trials: trials[1].update(score=None),
            lambda trials: trials[1].update(score="0.9"),
            lambda trials: trials[2].update(score=0.9),
            lambda trials: trials[1].update(score=float("nan")),
            lambda trials: trials[1].update(surprise=1),
            lambda trials: trials[1].update(scores={"a": 1}),
            lambda trials: trials[1].update(settings=[]),
            lambda trials: trials[1]["settings"].pop("can.weight"),
            lambda trials: trials[1]["settings"].update({"network.weights": "/etc/passwd"}),
            lambda trials: trials[1]["settings"].update({"can.weight": 1e9}),
            lambda trials: trials[1]["settings"].update({"can.weight": "0.3"}),
            lambda trials: trials[1]["settings"].update({"can.samples": 2.5}),
            lambda trials: trials.append(None),
        ],
    )
    def test_trials_that_it_cannot_have_made(self, damage: Callable[[Any], object], tmp_path: Path) -> None:
        entries = [asdict(each) for each in TRIALS_MADE]
        damage(entries)
        (tmp_path / TRIALS).write_text(json.dumps({"trials": entries}))
        with pytest.raises(UserError, match=r"trials.json' is not what a tuning writes \(.+\): give another folder"):
            TuningFolder(tmp_path).read_trials(SPACE)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"trials": 3}', b"\xff\xfe", b"[" * 10000])
    def test_damaged_files(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / TRIALS).write_bytes(content)
        with pytest.raises(UserError, match=r"trials.json' is not what a tuning writes \("):
            TuningFolder(tmp_path).read_trials(SPACE)

    def test_files_are_bounded(self, tmp_path: Path) -> None:
        with (tmp_path / TRIALS).open("wb") as file:
            file.truncate(MAX_JSON + 1)
        with pytest.raises(UserError, match=r"is larger than the 16 MiB that such a file may have"):
            TuningFolder(tmp_path).read_trials(SPACE)

    @pytest.mark.parametrize("resume", [False, True])
    def test_foreign_files_are_left_alone(self, resume: bool, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("hello")
        with pytest.raises(UserError, match=r"holds 'thesis.txt', which no tuning made"):
            TuningFolder.check(tmp_path, resume=resume)

    def test_links_and_pipes_are_refused(self, tmp_path: Path) -> None:
        for name, make in ((TRIALS, lambda path: path.symlink_to("/etc/passwd")), ("config.yaml", os.mkfifo)):
            make(tmp_path / name)  # type: ignore[no-untyped-call]
            with pytest.raises(UserError, match="which candapt never makes: remove it"):
                TuningFolder.check(tmp_path, resume=True)
            (tmp_path / name).unlink()

    def test_what_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="is not a folder"):
            TuningFolder.check(tmp_path / "file", resume=False)
        with pytest.raises(UserError, match="There is nothing to resume in"):
            TuningFolder.check(tmp_path / "new", resume=True)
