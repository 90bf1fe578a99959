"""A run to review."""

from pathlib import Path

import pytest

from candapt.commands.main import main
from tests.toy import QUICK, Toy


@pytest.fixture(scope="session")
def trained(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which no test changes; its target's labels are beside it."""
    folder = toy.write(tmp_path_factory.mktemp("reviewed"))
    flags = [word for name, value in (QUICK | {"report": False}).items() for word in (f"--{name}", str(value))]
    paths = [str(folder / f"{side}.npz") for side in ("source", "target")]
    assert main(["adapt", *paths, "--out", str(folder / "run"), *flags]) == 0
    return folder / "run"
