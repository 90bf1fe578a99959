"""A short turn of fuzzing for each reader; `python -m benchmarks.fuzz` takes minutes for each."""

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.fuzzing.readers import READERS
from benchmarks.fuzzing.trial import Hang, fuzz, limits

FILES = 60


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    *_, tally = islice(fuzz(READERS[name], tmp_path, seed=1), FILES)
    assert [what for what, _ in tally.failures] == []
    assert tally.outcomes["refused"] > 0


def spin() -> None:
    while True:
        pass


def test_a_hang_and_a_hunger_for_memory_are_noticed() -> None:
    with pytest.raises(Hang), limits(seconds=0.1):
        spin()
    with pytest.raises(MemoryError), limits(memory=2**20):
        bytearray(2**30)
