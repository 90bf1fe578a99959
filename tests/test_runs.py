"""Run folders: claimed once, never overwritten, in open formats."""

import json
import math
from pathlib import Path

import pytest
import yaml

from candapt.errors import UserError
from candapt.presets import make_settings
from candapt.settings import NetworkSettings
from candapt.storage.files import plain, write_json
from candapt.storage.runs import RunFolder, describe_settings, versions, write_left_out
from tests.toy import quick_settings


def create(path: Path) -> RunFolder:
    """Claim a new folder."""
    with RunFolder.open(path) as run:
        return run


class TestClaim:
    @pytest.mark.parametrize("place", ["new", "a/b/new", "empty"])
    def test_new_and_empty_folders(self, tmp_path: Path, place: str) -> None:
        (tmp_path / "empty").mkdir()
        run = create(tmp_path / place)
        assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "log.txt"]

    def test_a_relative_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        create(Path("run"))
        assert (tmp_path / "run" / "log.txt").is_file()

    def test_checking_creates_nothing(self, tmp_path: Path) -> None:
        RunFolder.check(tmp_path / "a" / "b")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("content", ["config.yaml", ".hidden"])
    def test_a_folder_with_anything_in_it_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / content).write_text("mine")
        for claim in (RunFolder.check, create):
            with pytest.raises(UserError, match="already holds files"):
                claim(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [content]

    @pytest.mark.parametrize(
        ("place", "reason"),
        [("file", "is not a folder"), ("file/run", "cannot be written"), ("file/a/run", "cannot be written")],
    )
    def test_a_file_in_the_way(self, tmp_path: Path, place: str, reason: str) -> None:
        (tmp_path / "file").write_text("mine")
        for claim in (RunFolder.check, create):
            with pytest.raises(UserError, match=reason):
                claim(tmp_path / place)
        assert (tmp_path / "file").read_text() == "mine"

    def test_a_link_that_leads_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        with pytest.raises(UserError, match="cannot be written"):
            create(tmp_path / "link")

    def test_two_claims(self, tmp_path: Path) -> None:
        create(tmp_path / "run")
        with pytest.raises(UserError, match="already holds files"):
            create(tmp_path / "run")


class TestFiles:
    @pytest.fixture
    def run(self, tmp_path: Path) -> RunFolder:
        return create(tmp_path / "run")

    def test_config_reads_back(self, run: RunFolder) -> None:
        config = {"source": "/tmp/Bücher, neu", "odd": "caf\udce9\n", "training": {"steps": None, "slope": 1e-5}}
        run.write_config(config)
        assert yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8")) == config

    def test_metrics_are_one_line_a_round(self, run: RunFolder) -> None:
        records = [{"round": 0, "loss": 0.1 + 0.2}, {"round": 1, "loss": 1e-300}]
        for record in records:
            run.append_metrics(record)
        lines = (run.path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == records

    def test_files_left_out_are_listed_only_if_there_are_any(self, run: RunFolder) -> None:
        write_left_out(run.path, [])
        assert not (run.path / "left-out.csv").exists()
        write_left_out(run.path, [(Path("a,b.png"), "is empty"), (Path("caf\udce9.png"), "is no image")])
        lines = (run.path / "left-out.csv").read_bytes().splitlines()
        assert lines == [b"path,reason", b'"a,b.png",is empty', b"caf\xe9.png,is no image"]

    def test_json_carries_any_name(self, tmp_path: Path) -> None:
        content = {"caf\udce9": [1, "日本"], "number": 0.1}
        write_json(tmp_path / "a.json", content)
        assert json.loads((tmp_path / "a.json").read_text(encoding="ascii")) == content
        assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


class TestDescriptions:
    def test_settings_by_the_names_of_the_flags(self) -> None:
        described = describe_settings(quick_settings(can__weight=0.7))
        assert list(described) == ["method", "seed", "rounds", "select", "network", "training", "can"]
        assert described["can"]["weight"] == 0.7
        assert described["network"]["bottleneck"] == 16

    def test_they_make_the_same_settings_again(self) -> None:
        settings = quick_settings(can__weight=0.7, training__steps=None)
        described = describe_settings(settings)
        changes = {"rounds": described["rounds"]}
        for group in ("network", "training", "can"):
            changes |= {f"{group}.{name}": value for name, value in described[group].items()}
        assert make_settings("can", seed=described["seed"], changes=changes) == settings

    def test_a_methods_own_settings_stand_under_its_name(self) -> None:
        assert describe_settings(quick_settings("source-only"))["source-only"] == {"statistics": "auto"}

    def test_paths_become_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert plain(NetworkSettings(weights=Path("w.pth")))["weights"] == str(tmp_path / "w.pth")

    def test_plain_values(self) -> None:
        assert plain({"a": (1, (2.5,)), 3: None, "b": True}) == {"a": [1, [2.5]], "3": None, "b": True}
        assert math.isinf(plain(math.inf))

    def test_versions_of_what_decides_a_result(self) -> None:
        assert {"python", "candapt", "torch", "numpy"} <= versions().keys()
