"""`--more-sources` from the command line: data, configuration, resuming, and what the run says of each source."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from candapt.commands.main import main
from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Task
from candapt.data.inputs import Reading, read_domain, read_labeled_domain
from candapt.data.inventory import NamedSource, describe_data, sentences
from candapt.data.joining import join_sources
from candapt.settings import ImageSettings
from tests.faults.test_resume import FLAGS, interrupt
from tests.images import write_photos, write_weights
from tests.toy import Toy

BARE = ["--report", "false", "--baseline", "false"]


@pytest.fixture
def more(toy: Toy, files: Path) -> list[str]:
    """Two further sources: one with fewer classes, and one whose labels mean nothing."""
    kept = toy.source_y != 3
    np.savez(files / "few.npz", x=toy.source_x[kept] + 1, y=toy.source_y[kept])
    np.savez(files / "wrong.npz", x=toy.source_x, y=np.random.default_rng(0).permutation(toy.source_y))
    return [str(files / "few.npz"), str(files / "wrong.npz")]


def words(files: Path, out: Path) -> list[str]:
    data = [str(files / "source.npz"), str(files / "target.npz")]
    return [
        "adapt",
        *data,
        *FLAGS,
        "--rounds",
        "4",
        "--training.steps",
        "20",
        "--network.bottleneck",
        "64",
        "--out",
        str(out),
    ]


def test_a_run_names_its_sources_and_the_one_that_does_not_help(files: Path, more: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main([*words(files, out), "--more-sources", *more, "--target-labels", str(files / "labels.csv")]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert [each["name"] for each in summary["data"]["sources"]] == ["source", "few", "wrong"]
    assert {each["name"]: each["helps"] for each in summary["sources"]} == {"source": True, "few": True, "wrong": False}
    assert "'wrong' does not seem to help" in (out / "log.txt").read_text()
    assert "wrong" in (out / "report.html").read_text()
    assert yaml.safe_load((out / "config.yaml").read_text())["more_sources"] == [str(Path(each)) for each in more]
    again = tmp_path / "again"
    assert main(["adapt", "--config", str(out / "config.yaml"), "--out", str(again), *BARE]) == 0
    assert (again / "predictions.csv").read_text() == (out / "predictions.csv").read_text()


def test_a_source_that_changed_is_named_when_resuming(
    files: Path, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(files, tmp_path / "run", monkeypatch, "--more-sources", *more, *BARE)
    kept = dict(np.load(more[0]))
    np.savez(more[0], x=kept["x"] + 1, y=kept["y"])
    assert main(["adapt", "--out", str(tmp_path / "run"), "--resume"]) == 2
    assert "the data of source 2 changed" in capsys.readouterr().err
    np.savez(more[0], **kept)
    assert main(["adapt", "--out", str(tmp_path / "run"), "--resume"]) == 0


def test_other_features_are_one_sentence(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(files / "wide.npz", x=np.zeros((6, 3)), y=np.arange(6) % 2)
    assert main([*words(files, tmp_path / "run"), "--more-sources", str(files / "wide.npz")]) == 2
    assert "'wide'" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "expected"), [("target", "names the target"), ("source", "given twice")])
def test_the_target_and_a_source_again_are_refused(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, expected: str
) -> None:
    again = files / "." / f"../{files.name}/{name}.npz"
    assert main([*words(files, tmp_path / "run"), "--more-sources", str(again)]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_log_tells_of_classes_that_one_source_has_alone() -> None:
    def source(title: str, *classes: str) -> NamedSource:
        names = tuple(map(str, range(len(classes))))
        domain = LabeledDomain(ArraySamples(torch.zeros(len(classes), 2)), names, torch.arange(len(classes)), classes)
        return NamedSource(title, domain, None)

    sources = [source("one", "cup", "pen"), source("two", "Cup", "pen"), source("three", "key")]
    joined = join_sources([each.domain for each in sources], [each.title for each in sources])
    task = Task(joined, Domain(ArraySamples(torch.zeros(1, 2)), ("0",)))
    said = "\n".join(sentences(task, describe_data(task, sources, None)))
    assert "The source 'one' has classes of its own: 'cup';" in said
    assert "The source 'two' has classes of its own: 'Cup';" in said
    assert "The source 'three' has no class of the other sources;" in said


def test_images_of_any_source_that_are_in_the_target_are_counted(tmp_path: Path) -> None:
    folders = [write_photos(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))]
    (tmp_path / "target").mkdir()
    copied = next(path for path in sorted(folders[1].rglob("*")) if path.is_file())
    shutil.copy(copied, tmp_path / "target")
    (folders[1] / copied.parent.name / "broken.png").write_text("no image")
    reading = Reading(ImageSettings(), 1)
    sources = [NamedSource(each.name, *read_labeled_domain(each, reading)) for each in folders]
    target, check = read_domain(tmp_path / "target", reading)
    joined = join_sources([each.domain for each in sources], [each.title for each in sources])
    task = Task(joined, target)
    inventory = describe_data(task, sources, check)
    assert inventory["in_both"] == 1
    assert "1 image file(s) cannot be used" in "\n".join(sentences(task, inventory))


def test_image_folders_pass_the_cache_one_by_one(tmp_path: Path) -> None:
    """Frozen layers process each source by itself, so that another combination finds them in the cache."""
    folders = [str(write_photos(tmp_path / name, seed=seed)) for seed, name in enumerate(("one", "two", "target"))]
    weights = str(write_weights(tmp_path / "weights.safetensors", "test_resnet"))
    flags = ["--backbone", "test_resnet", "--weights", weights, "--finetune", "head", "--images.size", "32"]
    flags += ["--network.bottleneck", "8", "--rounds", "1", "--training.steps", "2", "--cache", str(tmp_path / "cache")]
    one, two, target = folders
    out = tmp_path / "run"
    assert main(["adapt", one, target, "--more-sources", two, *flags, "--out", str(out), *BARE]) == 0
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 3
    assert main(["adapt", one, target, *flags, "--out", str(tmp_path / "single"), *BARE]) == 0
    assert "has everything" in (tmp_path / "single" / "log.txt").read_text()
