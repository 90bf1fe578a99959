"""Features that stay on disk."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from candapt.commands.main import main
from candapt.data import stored
from candapt.data.features import feature_domain, labeled_feature_domain
from candapt.data.inputs import Reading, domain_digest, read_domain, read_labeled_domain
from candapt.data.stored import StoredSamples, large_rows
from candapt.errors import UserError
from candapt.settings import ImageSettings
from tests.toy import Toy

X = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float16)
ROWS = torch.tensor([49, 3, 3, 17])


def as_bytes(array: np.ndarray) -> bytes:
    """What `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as large."""
    monkeypatch.setattr(stored, "LARGE", 1)


@pytest.mark.usefixtures("_small")
class TestFiles:
    def test_rows_are_those_of_the_array(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", other=np.arange(9), x=X)
        domain = feature_domain(tmp_path / "x.npz")
        assert isinstance(domain.samples, StoredSamples)
        assert (domain.size, domain.samples.shape) == (50, (6,))
        for rows in (ROWS, torch.arange(4, 9), torch.empty(0, dtype=torch.int64)):
            assert torch.equal(domain.samples.read(rows), torch.tensor(X).float()[rows])
        again = pickle.loads(pickle.dumps(domain.samples))
        assert torch.equal(again.read(ROWS), domain.samples.read(ROWS))

    def test_labels_come_with_them(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", x=X, y=np.arange(50) % 2, classes=["a", "b"])
        domain = labeled_feature_domain(tmp_path / "x.npz")
        assert isinstance(domain.samples, StoredSamples)
        assert (domain.classes, domain.labels.tolist()[:3]) == (("a", "b"), [0, 1, 0])

    def test_values_that_are_not_finite(self, tmp_path: Path) -> None:
        bad = X.copy()
        bad[31, 2] = np.nan
        np.savez(tmp_path / "x.npz", x=bad)
        with pytest.raises(UserError, match="first in row 31"):
            feature_domain(tmp_path / "x.npz")

    def test_other_files_are_read_as_before(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "small.npz", x=X)
        assert large_rows(tmp_path / "small.npz") is None
        np.savez(tmp_path / "whole.npz", x=np.arange(12).reshape(4, 3))
        assert large_rows(tmp_path / "whole.npz") is None
        (tmp_path / "cut.npz").write_bytes(b"PK nothing")
        assert large_rows(tmp_path / "cut.npz") is None

    def test_another_content_has_another_digest(self, tmp_path: Path) -> None:
        digests = []
        for name, x in (("a", X), ("b", X), ("c", X[::-1])):
            np.savez(tmp_path / f"{name}.npz", x=x)
            digests.append(domain_digest(feature_domain(tmp_path / f"{name}.npz"), None))
        assert digests[0] == digests[1] != digests[2]

    def test_a_file_that_is_cut_while_it_is_used(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", x=X)
        samples = feature_domain(tmp_path / "x.npz").samples
        with (tmp_path / "x.npz").open("rb+") as file:
            file.truncate(200)
        with pytest.raises(UserError, match="shorter"):
            samples.read(ROWS)

    def test_a_run_gives_what_it_gives_from_memory(
        self, toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = toy.write(tmp_path / "files")
        small = ["--rounds", "2", "--training.steps", "3", "--network.bottleneck", "8", "--report", "false"]
        words = [str(files / "source.npz"), str(files / "target.npz"), *small]
        assert main(["adapt", *words, "--out", str(tmp_path / "disk")]) == 0
        monkeypatch.setattr(stored, "LARGE", 2**28)
        assert main(["adapt", *words, "--out", str(tmp_path / "memory")]) == 0
        results = [(tmp_path / name / "predictions.csv").read_bytes() for name in ("disk", "memory")]
        assert results[0] == results[1]


class TestShards:
    def test_they_are_joined_in_order(self, tmp_path: Path) -> None:
        for number, rows in enumerate(np.array_split(np.arange(50), 3)):
            np.save(tmp_path / f"x-{number}.npy", X[rows])
            np.save(tmp_path / f"y-{number}.npy", rows % 2)
        reading = Reading(ImageSettings())
        domain, _ = read_domain(tmp_path, reading)
        assert torch.equal(domain.samples.read(ROWS), torch.tensor(X).float()[ROWS])
        labeled, _ = read_labeled_domain(tmp_path, reading)
        assert labeled.labels.tolist() == [row % 2 for row in range(50)]

    @pytest.mark.parametrize("other", [np.zeros((3, 5), np.float32), np.zeros(4), np.zeros((3, 6), int)])
    def test_shards_that_do_not_fit(self, other: np.ndarray, tmp_path: Path) -> None:
        np.save(tmp_path / "x-0.npy", X)
        np.save(tmp_path / "x-1.npy", other)
        with pytest.raises(UserError, match=r"x-1\.npy"):
            read_domain(tmp_path, Reading(ImageSettings()))

    def test_a_source_needs_labels(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x-0.npy", X)
        with pytest.raises(UserError, match=r"has no y\*.npy"):
            read_labeled_domain(tmp_path, Reading(ImageSettings()))

    def test_a_shard_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "x.npy").write_bytes(b"nothing")
        with pytest.raises(UserError, match="cannot be read"):
            read_domain(tmp_path, Reading(ImageSettings()))

    @pytest.mark.parametrize("form", ["cut", "by column", "empty"])
    def test_shards_that_are_not_whole_or_not_row_by_row(self, form: str, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", {"by column": np.asfortranarray(X), "empty": X[:0]}.get(form, X))
        if form == "cut":
            (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-8])
        with pytest.raises(UserError, match=r"all of them, at least one row, and row by row"):
            read_domain(tmp_path, Reading(ImageSettings()))

    def test_values_that_are_not_finite_are_named_by_file_and_row(self, tmp_path: Path) -> None:
        bad = X.copy()
        bad[31, 2] = np.inf
        np.save(tmp_path / "x-0.npy", X)
        np.save(tmp_path / "x-1.npy", bad)
        with pytest.raises(UserError, match=r"x-1\.npy holds values .* first in row 31"):
            read_domain(tmp_path, Reading(ImageSettings()))

    @pytest.mark.parametrize(
        ("labels", "reason"),
        [
            (as_bytes(np.stack([np.arange(25) % 2] * 2, 1)), "shape"),  # as many numbers as there are rows
            (as_bytes(np.arange(50) % 2)[:-8], "another size"),
            (as_bytes(np.arange(50) % 2).replace(b"(50,)", b"(99999999999999,)"), "another size"),
            (as_bytes(np.array(["2026-11-18"] * 50, "datetime64[D]")), "neither numbers nor text"),
            (as_bytes(np.array([0, None] * 25)), "Python objects"),
            (b"PK\x03\x04 an archive in place of an array", "magic"),
        ],
    )
    def test_labels_that_are_none(self, labels: bytes, reason: str, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", X)
        (tmp_path / "y.npy").write_bytes(labels)
        with pytest.raises(UserError, match=f"The y in .* cannot be read .*{reason}"):
            read_labeled_domain(tmp_path, Reading(ImageSettings()))

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        names = np.array(["a", "b"])
        names.view("u4")[1] = 2**31 - 1
        for name, array in (("x", X), ("y", np.arange(50)[:, None] % 2), ("classes", names)):
            np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(UserError, match=r"The classes in .* no letters"):
            read_labeled_domain(tmp_path, Reading(ImageSettings()))
