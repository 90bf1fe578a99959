"""Known labels: what is read, what is refused in one sentence, and how the same samples are found again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from candapt.data.domains import Domain, KnownLabels, LabeledDomain, Task
from candapt.data.known_labels import known_rows, read_known_labels, sample_digests, write_known_labels
from candapt.errors import UserError

TARGET = Domain(np.arange(12, dtype=np.float32).reshape(6, 2), ("a.png", "b.png", "sub/c.png", "d", "e", "f"))
CLASSES = ("cat", "dog", "zebra")


def read(folder: Path, text: str) -> KnownLabels:
    (folder / "known.csv").write_text(text, encoding="utf-8")
    return read_known_labels(folder / "known.csv", TARGET, CLASSES)


class TestReading:
    def test_rows_are_in_the_order_of_the_target(self, tmp_path: Path) -> None:
        known = read(tmp_path, "\ufeffpath,label,remark\nsub/c.png,zebra,x\na.png,dog,\n")
        assert known.rows.tolist() == [0, 2]
        assert known.labels.tolist() == [1, 2]

    def test_lines_without_a_label_are_passed_over(self, tmp_path: Path) -> None:
        assert read(tmp_path, "path,label\na.png,\nb.png, cat \n").rows.tolist() == [1]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("path,label\nb.pgn,cat\n", "did you mean 'b.png'"),
            ("path,label\nelsewhere/9.jpg,cat\n", "relative to TARGET"),
            ("path,label\na.png,zebar\n", "did you mean 'zebra'"),
            ("path,label\na.png,submarine\n", "choose among cat, dog, zebra"),
            ("path,label\na.png,cat\na.png,dog\n", "'a.png' as 'cat' and as 'dog'"),
            ("path,label\na.png,cat\na.png,cat\n", "'a.png' twice"),
            ("path,label\na.png,\n", "has no label"),
            ("path,label\n", "has no label"),
            ("name,class\na.png,cat\n", "columns path and label"),
            ("", "columns path and label"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path: Path, text: str, expected: str) -> None:
        with pytest.raises(UserError, match=r"known\.csv") as caught:
            read(tmp_path, text)
        assert expected in str(caught.value)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            read_known_labels(tmp_path / "none.csv", TARGET, CLASSES)


class TestSpread:
    @given(st.sets(st.integers(0, 19), min_size=1))
    def test_unknown_samples_have_minus_one(self, rows: set[int]) -> None:
        known = KnownLabels(torch.tensor(sorted(rows)), torch.arange(len(rows)))
        spread = known.spread(20)
        assert spread[known.rows].tolist() == list(range(len(rows)))
        assert int((spread >= 0).sum()) == len(rows)

    def test_a_task_without_any_has_none(self) -> None:
        source = LabeledDomain(np.zeros((2, 2)), (), torch.tensor([0, 1]), ("a", "b"))
        assert Task(source, TARGET).target_labels.tolist() == [-1] * 6


class TestSameContent:
    def test_samples_are_found_again_in_another_order(self, tmp_path: Path) -> None:
        known = KnownLabels(torch.tensor([1, 4]), torch.tensor([0, 2]))
        write_known_labels(tmp_path, known, TARGET, CLASSES)
        assert read_known_labels(tmp_path / "known_labels.csv", TARGET, CLASSES).labels.tolist() == [0, 2]
        other = Domain(np.array([[8, 9], [100, 101], [2, 3]], dtype=np.float32))
        assert known_rows(tmp_path, other) == [0, 2]

    def test_a_run_without_known_labels_has_none(self, tmp_path: Path) -> None:
        assert known_rows(tmp_path, TARGET) == []

    def test_digests_do_not_depend_on_the_chunk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = sample_digests(TARGET, range(6))
        monkeypatch.setattr("candapt.data.known_labels.CHUNK", 2)
        assert sample_digests(TARGET, range(6)) == whole
        assert len(set(whole)) == 6
