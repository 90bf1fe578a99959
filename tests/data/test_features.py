"""Feature files, good and bad."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from candapt.data.features import feature_domain, labeled_arrays, labeled_feature_domain
from candapt.errors import UserError

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([5, 2, 5, 2, 9, 9])


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features.npz"


class TestReading:
    def test_samples_are_named_by_row(self, path: Path) -> None:
        domain = feature_domain(save(path, x=X))
        assert torch.equal(domain.samples.read(torch.arange(6)), torch.as_tensor(X, dtype=torch.float32))
        assert list(domain.names) == ["0", "1", "2", "3", "4", "5"]

    def test_labels_of_a_target_are_not_read(self, path: Path) -> None:
        """They may even be of a kind that could not be read."""
        domain = feature_domain(save(path, x=X, y=np.array([{}] * 6, dtype=object)))
        assert not hasattr(domain, "labels")

    def test_any_integers_are_classes(self, path: Path) -> None:
        domain = labeled_feature_domain(save(path, x=X, y=Y))
        assert domain.classes == ("2", "5", "9")
        assert domain.labels.tolist() == [1, 0, 1, 0, 2, 2]
        assert domain.labels.dtype == torch.int64

    @pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64])
    def test_integers_of_any_size(self, path: Path, kind: type) -> None:
        assert labeled_feature_domain(save(path, x=X, y=Y.astype(kind))).labels.tolist() == [1, 0, 1, 0, 2, 2]

    def test_names_of_classes(self, path: Path) -> None:
        domain = labeled_feature_domain(save(path, x=X, y=[0, 1, 0, 1, 0, 1], classes=["Fahrrad", "bücher", "leer"]))
        assert domain.classes == ("Fahrrad", "bücher", "leer")  # a class without a sample stays a class
        assert domain.labels.tolist() == [0, 1, 0, 1, 0, 1]

    @pytest.mark.parametrize(
        ("shape", "expected"),
        [((6, 4), (4,)), ((6, 8, 9), (1, 8, 9)), ((6, 1, 8, 9), (1, 8, 9)), ((6, 3, 8, 8), (3, 8, 8))],
    )
    def test_gray_images_get_a_channel(self, path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        assert feature_domain(save(path, x=np.zeros(shape))).samples.shape == expected

    def test_half_precision_and_integers_are_numbers(self, path: Path) -> None:
        assert feature_domain(save(path, x=X.astype(np.float16))).samples.read(torch.tensor([1])).tolist() == [[2, 3]]
        assert feature_domain(save(path, x=X.astype(np.uint8))).samples.read(torch.tensor([1])).tolist() == [[2, 3]]

    def test_one_sample_can_be_predicted(self, path: Path) -> None:
        assert feature_domain(save(path, x=X[:1])).size == 1


WITH_NAN, WITH_INFINITY = X.copy(), X.copy()
WITH_NAN[4, 1], WITH_INFINITY[2, 0] = np.nan, -np.inf


class TestRefusal:
    @pytest.mark.parametrize(
        ("arrays", "sentence"),
        [
            ({"z": X}, "has no array x"),
            ({"x": X[0]}, r"is float64 of shape \(2,\)"),
            ({"x": np.float64(3)}, r"of shape \(\)"),
            ({"x": X.astype(str)}, r"is <U\d+ of shape"),
            ({"x": X > 3}, "is bool of shape"),
            ({"x": X + 1j}, "is complex128 of shape"),
            ({"x": X[:0]}, r"has shape \(0, 2\)"),
            ({"x": X[:, :0]}, r"has shape \(6, 0\)"),
            ({"x": WITH_NAN}, "NaN or infinite.*row 4"),
            ({"x": WITH_INFINITY}, "NaN or infinite.*row 2"),
            ({"x": X * 1e300}, "NaN or infinite in single precision, first in row 0"),
            ({"x": np.array([{}, {}], dtype=object)}, "holds Python objects"),
        ],
    )
    def test_samples(self, path: Path, arrays: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            feature_domain(save(path, **arrays))

    @pytest.mark.parametrize(
        ("arrays", "sentence"),
        [
            ({}, "has no array y"),
            ({"y": Y.astype(float)}, "not integers but float64"),
            ({"y": Y.astype(str)}, "not integers but <U"),
            ({"y": Y > 3}, "not integers but bool"),
            ({"y": Y[:4]}, r"6 rows of x but labels of shape \(4,\)"),
            ({"y": np.eye(6, dtype=int)}, r"labels of shape \(6, 6\)"),
            ({"y": 0 * Y + 7}, r"only one class \(7\)"),
            ({"y": Y, "classes": ["a", "b"]}, "names 2 classes but has labels from 2 to 9"),
            ({"y": [-1, 0, 1, 0, 1, 0], "classes": ["a", "b"]}, "labels from -1 to 1"),
            ({"y": Y, "classes": np.array(["a", None], dtype=object)}, "holds Python objects"),
        ],
    )
    def test_labels(self, path: Path, arrays: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            labeled_feature_domain(save(path, x=X, **arrays))

    def test_no_file(self, path: Path) -> None:
        with pytest.raises(UserError, match="There is no file"):
            feature_domain(path)

    @pytest.mark.parametrize("content", [b"", b"some text", b"PK\x03\x04" + b"\0" * 50, b"\x80\x04N."])
    def test_other_files(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"is not an \.npz file"):
            feature_domain(path)

    def test_a_single_array_under_that_name(self, path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, X)
        with pytest.raises(UserError, match=r"is not an \.npz file"):
            feature_domain(path)

    def test_a_folder_under_that_name(self, path: Path) -> None:
        path.mkdir()
        with pytest.raises(UserError, match=r"is not an \.npz file"):
            feature_domain(path)

    @pytest.mark.parametrize("compressed", [False, True])
    @pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.95])
    def test_damaged_files(self, path: Path, compressed: bool, share: float) -> None:
        """Both a file cut short and one with bytes overwritten make one clear error, whatever numpy raises."""
        (np.savez_compressed if compressed else np.savez)(path, x=np.random.default_rng(0).normal(size=(50, 20)))
        whole = path.read_bytes()
        place = int(share * len(whole))
        for damaged in (whole[:place], whole[:place] + b"\xff" * 40 + whole[place + 40 :]):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=r"numpy\.savez"):
                feature_domain(path)

    def test_a_member_that_is_no_array(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.npy", b"text")
        with pytest.raises(UserError):
            feature_domain(path)


def test_labeled_arrays_keep_the_numbers_as_names() -> None:
    domain = labeled_arrays(X, Y, where="here")
    assert [domain.classes[label] for label in domain.labels] == [str(number) for number in Y]
