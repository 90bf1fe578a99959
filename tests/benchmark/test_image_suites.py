"""Office-31 and VisDA-2017 as they are downloaded, in miniature, from end to end."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from candapt.benchmark.collections import ListedCollection
from candapt.commands.main import main
from candapt.data.visda import CLASSES
from candapt.network.backbones import build_backbone
from candapt.settings import ImageSettings
from tests.benchmark.conftest import write_images
from tests.images import write_visda

CONFIG = Path(__file__).parents[2] / "configs" / "visda2017.yaml"
QUICK = ("--rounds", 1, "--training.steps", 2, "--training.batch_size", 12, "--network.bottleneck", 8)


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Flags for a tiny ResNet with weights in a file."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    safetensors.torch.save_file(build_backbone("test_resnet", pretrained=False).model.state_dict(), file)
    return ("--network.backbone", "test_resnet", "--network.weights", file, "--images.size", 32)


class TestOffice31:
    DOMAINS = ("amazon", "dslr", "webcam")

    @pytest.mark.parametrize("below_images", [True, False])
    def test_with_and_without_a_folder_called_images(
        self, tmp_path: Path, network: tuple[object, ...], below_images: bool
    ) -> None:
        for domain in self.DOMAINS:
            inside = Path(domain, "images") if below_images else Path(domain)
            write_images(tmp_path / "data", (str(inside),), ("bike", "mug", "pen"), count=3)
            (tmp_path / "data" / domain / "README.txt").write_text("not an image")
        data = ("--data", tmp_path / "data", "--out", tmp_path / "out")
        run("benchmark", "office31", *data, "--methods", "can", "--seeds", 0, "--tasks", "A->W,D->A", *network, *QUICK)
        results = json.loads((tmp_path / "out" / "results.json").read_text())
        assert [(task["name"], task["samples"]["measured"]) for task in results["tasks"]] == [("A→W", 9), ("D→A", 9)]


@pytest.fixture(scope="module")
def visda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The challenge's folders: labeled lists in train and validation, a list of shuffled paths in test."""
    return write_visda(tmp_path_factory.mktemp("visda"))


@pytest.fixture(scope="module")
def adapted(visda: Path, network: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run adapted to the test images, without labels, with the published settings but for the size of it all."""
    out = tmp_path_factory.mktemp("runs") / "run"
    run(
        *("adapt", visda / "train", visda / "test", "--config", CONFIG, "--out", out),
        *(*network, *QUICK, "--network.finetune", "head"),
    )
    return out


class TestVisda2017:
    def test_benchmark(self, visda: Path, tmp_path: Path, network: tuple[object, ...]) -> None:
        out = ("--data", visda, "--config", CONFIG, "--out", tmp_path / "out", "--methods", "source-only,can")
        run("benchmark", "visda2017", *out, "--seeds", 0, *network, *QUICK, "--network.finetune", "head")
        results = json.loads((tmp_path / "out" / "results.json").read_text())
        assert results["columns"] == [*CLASSES, "Average"]
        (task,) = results["tasks"]
        assert task["samples"] == {"source": 24, "target": 24, "measured": 24}
        can = next(row for row in results["rows"] if row["name"] == "can (paper)")
        assert (can["settings"]["can"]["classes"], can["settings"]["can"]["samples"]) == (6, 10)
        assert can["settings"]["training"]["power"] == 2.25
        assert can["settings"]["can"]["divisor"] == "task"  # of the preset that the configuration names
        assert can["paper"]["Average"]["mean"] == 87.2
        assert "aeroplane" in (tmp_path / "out" / "results.md").read_text(encoding="utf-8")

    def test_lists_count_where_there_are_any(self, visda: Path, tmp_path: Path) -> None:
        with_lists = ListedCollection(visda, ImageSettings(16, 16)).domain("train")
        assert with_lists.classes == CLASSES
        first = (visda / "train" / "image_list.txt").read_text().splitlines()[0]
        assert with_lists.names[0] == first.split()[0]
        for split in ("train", "validation"):
            write_images(tmp_path, (split,), CLASSES, count=1)
        without = ListedCollection(tmp_path, ImageSettings(16, 16))
        assert without.domain("train").classes == CLASSES  # the challenge numbers them in the order of the alphabet
        before = without.fingerprint("train")
        (tmp_path / "train" / "image_list.txt").write_text("bus/0.png 2\ncar/0.png 3\n")
        assert without.fingerprint("train") != before

    @pytest.mark.parametrize("place", ["test", "test/image_list.txt"])
    def test_submission(self, visda: Path, adapted: Path, tmp_path: Path, place: str) -> None:
        run("predict", adapted, visda / place, "--format", "visda", "--out", tmp_path / "adaptation_results.txt")
        numbers = (tmp_path / "adaptation_results.txt").read_text().splitlines()
        rows = (adapted / "predictions.csv").read_text().splitlines()[1:]
        predicted = {row.split(",")[0]: row.split(",")[1] for row in rows}
        listed = (visda / "test" / "image_list.txt").read_text().splitlines()
        assert numbers == [str(CLASSES.index(predicted[path])) for path in listed]

    def test_published_test_labels(
        self, visda: Path, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The list in the challenge's repository has class numbers, and folders that tell nothing of classes."""
        paths = (visda / "test" / "image_list.txt").read_text().splitlines()
        lines = [f"{visda / 'test' / path} {int(Path(path).stem)}\n" for path in paths]
        (tmp_path / "labels.txt").write_text("".join(lines))
        run("evaluate", adapted, tmp_path / "labels.txt", "--out", tmp_path / "figures.json")
        assert json.loads((tmp_path / "figures.json").read_text())["samples"] == 24
        assert "left out" not in capsys.readouterr().out

    def test_adapting_by_lists(self, visda: Path, network: tuple[object, ...], tmp_path: Path) -> None:
        lists = (visda / "train" / "image_list.txt", visda / "test" / "image_list.txt")
        run("adapt", *lists, "--out", tmp_path / "run", *network, *QUICK)
        assert json.loads((tmp_path / "run" / "model.json").read_text())["classes"] == list(CLASSES)
        rows = (tmp_path / "run" / "predictions.csv").read_text().splitlines()[1:]
        assert [row.split(",")[0] for row in rows] == lists[1].read_text().splitlines()

    def test_every_image_must_be_predicted(
        self, visda: Path, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "image_list.txt").write_text(f"{visda / 'test' / 'trunk00' / '00.jpg'}\ngone.jpg\n")
        words = ["predict", str(adapted), str(tmp_path), "--format", "visda", "--out", str(tmp_path / "results.txt")]
        assert main(words) == 2
        assert "gone.jpg' does not exist" in capsys.readouterr().err
        assert not (tmp_path / "results.txt").exists()

    def test_what_is_no_submission(
        self, visda: Path, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["predict", str(adapted), str(tmp_path), "--format", "visda", "--out", str(tmp_path / "results.txt")]
        assert main(words) == 2
        assert "There is no list" in capsys.readouterr().err
        description = json.loads((adapted / "model.json").read_text())
        other = tmp_path / "other"
        other.mkdir()
        (other / "model.json").write_text(json.dumps(description | {"classes": ["mug", *CLASSES[1:]]}))
        (other / "model.safetensors").write_bytes((adapted / "model.safetensors").read_bytes())
        words[1:3] = [str(other), str(visda / "test")]
        assert main(words) == 2
        assert "class 'mug' is none of the challenge's" in capsys.readouterr().err
