"""README and docs keep their word: every block of code runs, in order, on files as the reader has them."""

import json
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import yaml

import candapt
from candapt.data.inputs import READERS
from candapt.evaluation.scores import SCORES
from candapt.methods import METHODS
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.docs.shell import Shell, check_install
from tests.docs.world import SMALL, provide_runs, shrink, write_world
from tests.tracing import trace_once


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's files, which every page gets a copy of, and a run in `first`."""
    folder = write_world(tmp_path_factory.mktemp("world"))
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        weights = folder / "resnet50.safetensors"
        photos = folder / "photos"
        named = {"weights": weights, "network.backbone": SMALL, "images.size": 32}  # which a server loads by itself
        candapt.adapt(photos / "catalogue", photos / "webcam", out=folder / "first", quiet=True, **named)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _traced_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        trace_once(patch)
        yield


@pytest.fixture
def desk(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with these files that is the current one; what a page registers is forgotten afterwards."""
    shutil.copytree(world, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("first"))
    monkeypatch.chdir(tmp_path)
    shrink(monkeypatch)
    with mock.patch.dict(METHODS), mock.patch.dict(READERS), mock.patch.dict(SCORES):
        yield tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_runs(page: Path, world: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one block makes, the next may use."""
    found = blocks(page.read_text(encoding="utf-8"))
    module = python_of(found, desk / "page.py")
    monkeypatch.setitem(sys.modules, "page", module)
    with Shell() as shell:
        for block in found:
            if block.is_code and not block.not_run and not block.run_by:
                provide_runs(block.text, lambda out: shutil.copytree(world / "first", out))
                run_block(block, module, shell, f"{page.name}, line {block.line}")


def run_block(block: Block, module: types.ModuleType, shell: Shell, where: str) -> None:
    """Run a block; an error says where it is."""
    try:
        if block.language in ("python", "py"):
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(module.__file__), "exec"), module.__dict__)
        elif block.language in ("sh", "bash", "shell"):
            for line in block.text.replace("\\\n", " ").splitlines():
                shell.run(line.removeprefix("$ "))
        elif block.language in ("yaml", "json"):
            assert (yaml.safe_load if block.language == "yaml" else json.loads)(block.text)
        else:
            pytest.fail(f"nothing runs {block.language!r}; say in a comment before it which test does")
    except BaseException as error:
        error.add_note(where)
        raise


def python_of(found: list[Block], path: Path) -> types.ModuleType:
    """A module with the Python blocks of a page, in a file at their lines: errors and `inspect` find them there."""
    lines: list[str] = []
    for block in found:
        if block.language in ("python", "py"):
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    module = types.ModuleType("page")
    module.__file__ = str(path)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_that_do_not_run_here_say_why(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        assert not block.is_disguised, f"line {block.line} is code: name its language"
        assert not block.not_run or len(block.not_run.split()) > 2, f"line {block.line} gives no reason"
        if block.run_by:
            test = ROOT / block.run_by.partition("::")[0]
            assert test.is_file(), f"line {block.line}: there is no {block.run_by}"
            assert page.name in test.read_text(encoding="utf-8"), f"{block.run_by} does not read {page.name}"


def test_blocks_are_found() -> None:
    text = "a\n\n```sh\nls\n```\n\n<!-- not run: it is slow -->\n```python\nx\n```\n\n  ```\n  y\n  ```\n"
    first, second, third = blocks(text)
    assert (first.language, first.text, first.line, first.not_run) == ("sh", "ls\n", 4, "")
    assert (second.language, second.not_run, second.line) == ("python", "it is slow", 9)
    assert (third.is_code, third.text) == (False, "y\n")
    assert blocks("```\ncandapt demo\n```\n")[0].is_disguised
    assert blocks("<!-- run by tests/a.py -->\n\n```js\n```\n")[0].run_by == "tests/a.py"


def test_only_extras_of_the_package_are_taken_as_installed() -> None:
    check_install(["candapt[tune]"])
    for words in (["candapt[nope]"], ["numpy"]):
        with pytest.raises(AssertionError):
            check_install(words)
