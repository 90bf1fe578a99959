"""What all tests share."""

import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.toy import Toy, make_toy


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests in several processes: what they print of strange file names must be text that can be sent to the first."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Results are compared bit by bit, and the tests' networks are too small for more."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _short_maps() -> Iterator[None]:
    """Maps take a few iterations of t-SNE instead of the 250 at least that it allows: most runs here take less time."""
    from candapt.report import domain_map

    class ShortTSNE(domain_map.TSNE):  # type: ignore[misc]
        _EXPLORATION_MAX_ITER = 10

        def _tsne(self, *arguments: Any, **options: Any) -> Any:
            self.max_iter = 20
            return super()._tsne(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain_map, "TSNE", ShortTSNE)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is written to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANDAPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _offline() -> Iterator[None]:
    """Nothing is downloaded, whether there is a network or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Commands send their log to the standard error of the moment, which pytest closes after a test."""
    yield
    logging.getLogger("candapt").handlers.clear()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with data sets and weights that lies beside the repository, if it does."""
    folder = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"there is no {folder} with data sets; CANDAPT_SHARED may name another place")
    return folder


@pytest.fixture(scope="session")
def toy() -> Toy:
    """A task that takes a fraction of a second to train."""
    return make_toy()


@pytest.fixture
def files(toy: Toy, tmp_path: Path) -> Path:
    """A folder with the toy task in files."""
    return toy.write(tmp_path / "files")
