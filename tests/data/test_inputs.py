"""From paths to domains, and the oracle's labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from candapt.data.domains import Domain, LabeledDomain
from candapt.data.inputs import (
    READERS,
    Reader,
    Reading,
    describe_inputs,
    domain_digest,
    is_feature_file,
    read_domain,
    read_labeled_domain,
    read_target_labels,
    reader_of,
)
from candapt.errors import UserError
from candapt.settings import ImageSettings

READING = Reading(ImageSettings(size=8, resize=8, mean=(0.5,), std=(0.5,), grey=True))
CLASSES = ("bike", "calculator", "mug")
TARGET = Domain(np.zeros((4, 2)), ("a.png", "b,1.png", "c\nd.png", "é.png"))  # type: ignore[arg-type]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b/2.png", "a/1.png", "a/3.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def features(tmp_path: Path) -> Path:
    np.savez(tmp_path / "features.NPZ.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    return tmp_path / "features.NPZ.npz"


class TestPaths:
    @pytest.mark.parametrize(("name", "expected"), [("a.npz", True), ("A.NPZ", True), ("a", False), ("a.npz.d", False)])
    def test_feature_files_are_known_by_their_ending(self, name: str, expected: bool) -> None:
        assert is_feature_file(Path(name)) is expected

    def test_folders(self, photos: Path) -> None:
        domain, check = read_domain(photos, READING)
        assert list(domain.names) == ["a/1.png", "a/3.png", "b/2.png"]
        assert check is not None
        labeled, _ = read_labeled_domain(photos, READING)
        assert labeled.classes == ("a", "b")
        assert labeled.labels.tolist() == [0, 0, 1]

    def test_files(self, features: Path) -> None:
        domain, check = read_domain(features, READING)
        assert (domain.size, check) == (4, None)
        labeled, check = read_labeled_domain(features, READING)
        assert (labeled.labels.tolist(), check) == ([0, 1, 0, 1], None)


class TestReaders:
    """Kinds of input are rows of a table, to which others can be added."""

    @staticmethod
    def table(path: Path) -> list[list[str]]:
        return [line.split(",") for line in path.read_text().splitlines()]

    @pytest.fixture
    def numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A table whose last column is the class, and a reader for it."""

        def read(path: Path, reading: Reading) -> tuple[Domain, None]:
            return Domain(np.array([row[:-1] for row in self.table(path)], dtype=float)), None

        def read_labeled(path: Path, reading: Reading) -> tuple[LabeledDomain, None]:
            classes = tuple(sorted({row[-1] for row in self.table(path)}))
            labels = torch.tensor([classes.index(row[-1]) for row in self.table(path)])
            return LabeledDomain(read(path, reading)[0].samples, (), labels, classes), None

        kind = Reader(
            ".csv file of numbers",
            ".csv file of numbers and a class",
            lambda path: path.suffix == ".csv",
            read,
            read_labeled,
        )
        monkeypatch.setitem(READERS, "table", kind)
        path = tmp_path / "numbers.csv"
        path.write_text("1,2,mug\n3,4,bike\n5,6,mug\n")
        return path

    def test_one_from_outside_reads_its_files(self, numbers: Path) -> None:
        assert reader_of(numbers) is READERS["table"]
        assert not reader_of(numbers).has_images
        domain, check = read_domain(numbers, READING)
        assert domain.samples.read(torch.arange(3)).tolist() == [[1, 2], [3, 4], [5, 6]]
        labeled, labeled_check = read_labeled_domain(numbers, READING)
        assert (labeled.classes, labeled.labels.tolist()) == (("bike", "mug"), [1, 0, 1])
        assert check is labeled_check is None
        assert domain_digest(labeled, None) != domain_digest(domain, None)

    @pytest.mark.usefixtures("numbers")
    def test_one_from_outside_is_named_in_the_help(self) -> None:
        assert describe_inputs(labeled=False).startswith(".csv file of numbers, folder of images")
        assert describe_inputs(labeled=True).startswith(".csv file of numbers and a class, folder with one subfolder")

    @pytest.mark.usefixtures("numbers")
    def test_the_others_read_on(self, photos: Path, features: Path) -> None:
        assert [reader_of(path) for path in (photos, features, photos / "list.txt", photos / "none")] == [
            READERS[kind] for kind in ("folder", "features", "list", "folder")
        ]

    def test_without_it_there_are_four_kinds(self) -> None:
        assert describe_inputs(labeled=True) == (
            "folder with one subfolder per class, .txt file that lists images and class numbers, .npz file with x "
            "and y or folder with x*.npy and y*.npy"
        )

    def test_which_are_image_files(self) -> None:
        assert {name: reader.has_images for name, reader in READERS.items()} == {
            "shards": False,
            "features": False,
            "list": True,
            "folder": True,
        }


class TestTargetLabels:
    def labels(self, path: Path) -> list[int]:
        return list(read_target_labels(path, TARGET, CLASSES).tolist())

    def write(self, tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
        (tmp_path / "labels.csv").write_text(text, encoding=encoding)
        return tmp_path / "labels.csv"

    def test_a_table_in_any_order(self, tmp_path: Path) -> None:
        text = 'label,path,note\nmug,é.png,x\nbike,a.png,y\ncalculator,"b,1.png",z\nbike,"c\nd.png",\n'
        assert self.labels(self.write(tmp_path, text)) == [0, 1, 0, 2]

    def test_missing_rows_and_unknown_classes_are_minus_one(self, tmp_path: Path) -> None:
        text = "path,label\na.png,zebra\né.png,mug\nnot-there.png,mug\n"
        assert self.labels(self.write(tmp_path, text)) == [-1, -1, -1, 2]

    def test_an_empty_label_is_none(self, tmp_path: Path) -> None:
        """The answers of a review have one where nobody could say."""
        path = self.write(tmp_path, "path,label,answer\na.png,mug,right\né.png,,unsure\n")
        assert read_target_labels(path, TARGET, CLASSES, strict=True).tolist() == [2, -1, -1, -1]

    def test_a_byte_order_mark_is_no_part_of_a_name(self, tmp_path: Path) -> None:
        assert self.labels(self.write(tmp_path, "path,label\na.png,mug\n", "utf-8-sig")) == [2, -1, -1, -1]

    def test_numbers_of_an_array_are_class_names(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "y.npz", y=[2, 0, 5, 0])
        assert read_target_labels(tmp_path / "y.npz", TARGET, ("0", "2", "3")).tolist() == [1, 0, -1, 0]

    def test_an_array_with_names_has_its_own_order(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "y.npz", y=[0, 1, 2, 7], classes=["mug", "zebra", "bike"])
        assert self.labels(tmp_path / "y.npz") == [2, -1, 0, -1]

    def test_an_array_of_names(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "y.npz", y=["mug", "bike", "bike", "zebra"])
        assert self.labels(tmp_path / "y.npz") == [2, 0, 0, -1]

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("name,label\na.png,mug\n", "columns path and label"),
            ("", "columns path and label"),
            ("path,label\n", "names none of the 4 target samples"),
            ("path,label\nother.png,mug\n", "names none of the 4 target samples"),
            ("path,label\na.png,zebra\n", "No label in .* is one of the source's classes: bike, calculator, mug"),
        ],
    )
    def test_tables_that_do_not_fit(self, tmp_path: Path, text: str, sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            self.labels(self.write(tmp_path, text))

    def test_no_table(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            self.labels(tmp_path / "none.csv")

    @pytest.mark.parametrize("y", [[0, 1], [[0], [1], [0], [1]]])
    def test_arrays_that_do_not_fit(self, tmp_path: Path, y: list[int]) -> None:
        np.savez(tmp_path / "y.npz", y=y)
        with pytest.raises(UserError, match="one label for each of the 4"):
            self.labels(tmp_path / "y.npz")

    def test_arrays_without_a_known_class(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "y.npz", y=[0.5, 1.5, 0.5, 1.5])
        with pytest.raises(UserError, match="No label in"):
            self.labels(tmp_path / "y.npz")
