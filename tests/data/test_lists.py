"""List files: paths, with class numbers or without."""

import os
import sys
from pathlib import Path

import pytest

from candapt.data.lists import ImageList, labeled_list_domain, list_domain, read_image_list
from candapt.errors import UserError
from tests.data.test_images import SMALL, save, truncated_jpeg


def write(folder: Path, *lines: str) -> Path:
    """A list file, with the images that it names."""
    for line in lines:
        save(folder / line.rpartition(" ")[0] if line[-1].isdigit() else folder / line)
    file = folder / "image_list.txt"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


class TestReading:
    def test_paths_and_numbers(self, tmp_path: Path) -> None:
        file = tmp_path / "list.txt"
        file.write_bytes("\ufeffa b/c 1.png 3\r\n\r\nü.png  12\n".encode())
        assert read_image_list(file) == ImageList(file, ("a b/c 1.png", "ü.png"), (3, 12))

    def test_paths_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "list.txt"
        file.write_text("b.png\n/abs/a 7.png")
        assert read_image_list(file) == ImageList(file, ("b.png", "/abs/a 7.png"), None)
        assert read_image_list(file).paths == [tmp_path / "b.png", Path("/abs/a 7.png")]

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux allows any bytes in a name")
    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        file = tmp_path / "list.txt"
        file.write_bytes(b"caf\xe9.png\n")
        assert read_image_list(file).names == (os.fsdecode(b"caf\xe9.png"),)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [("", "is empty"), ("\n \n", "is empty"), ("a.png 1\nb.png\n", "not in 'b.png'"), (None, "cannot be read")],
    )
    def test_what_is_wrong_is_one_sentence(self, tmp_path: Path, text: str | None, sentence: str) -> None:
        file = tmp_path / "list.txt"
        if text is not None:
            file.write_text(text)
        with pytest.raises(UserError, match=sentence):
            read_image_list(file)


class TestDomains:
    def test_the_order_is_the_lists(self, tmp_path: Path) -> None:
        file = write(tmp_path, "z.png", "a.png", "m/x.png")
        save(tmp_path / "unlisted.png")
        domain, check = list_domain(file, SMALL)
        assert domain.names == ("z.png", "a.png", "m/x.png")
        assert [path.name for path in check.paths] == ["z.png", "a.png", "x.png"]

    def test_classes_are_called_like_folders_in_the_order_of_numbers(self, tmp_path: Path) -> None:
        file = write(tmp_path, "zebra/1.png 0", "ant/2.png 1", "zebra/3.png 0")
        domain, _ = labeled_list_domain(file, SMALL)
        assert domain.classes == ("zebra", "ant")
        assert domain.labels.tolist() == [0, 1, 0]

    def test_folders_that_do_not_tell_classes_apart(self, tmp_path: Path) -> None:
        file = write(tmp_path, "trunk00/1.png 5", "trunk01/2.png 5", "trunk01/3.png 2")
        assert labeled_list_domain(file, SMALL)[0].classes == ("2", "5")
        names = ["a", "b", "c", "d", "e", "f"]
        domain, _ = labeled_list_domain(file, SMALL, classes=names)
        assert domain.classes == ("c", "f")
        assert domain.labels.tolist() == [1, 1, 0]
        with pytest.raises(UserError, match=r"class number 5.*last known one is 1"):
            labeled_list_domain(file, SMALL, classes=names[:2])

    def test_labels_are_not_looked_at_without_need(self, tmp_path: Path) -> None:
        file = write(tmp_path, "a.png 0", "b.png 1")
        assert list_domain(file, SMALL)[0].names == ("a.png", "b.png")

    def test_broken_files_keep_labels_in_step(self, tmp_path: Path) -> None:
        file = write(tmp_path, "a/1.png 0", "a/2.jpg 0", "b/3.png 1", "b/4.png 1")
        truncated_jpeg(tmp_path / "a" / "2.jpg")
        (tmp_path / "b" / "3.png").unlink()
        domain, check = labeled_list_domain(file, SMALL, workers=2)
        assert domain.names == ("a/1.png", "b/4.png")
        assert domain.labels.tolist() == [0, 1]
        assert len(check.broken) == 2
        with pytest.raises(UserError, match=r"2 of 4 image files .*2\.jpg"):
            list_domain(file, SMALL, strict=True)

    def test_one_class_or_no_labels(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="only one class, 'a'"):
            labeled_list_domain(write(tmp_path, "a/1.png 0", "a/2.png 0"), SMALL)
        with pytest.raises(UserError, match="has no labels"):
            labeled_list_domain(write(tmp_path, "a/1.png"), SMALL)
