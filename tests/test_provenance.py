"""What a figure was measured with is stored truthfully, and missing tools never stop a measurement."""

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from candapt.storage import provenance
from candapt.storage.provenance import CHANGED, code_digest, command_line, commit_of, measured_with, processor


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one commit of one module."""
    folder = tmp_path / "clone"
    (folder / "package").mkdir(parents=True)
    (folder / "package/module.py").write_text("one = 1\n")
    for words in (["init"], ["add", "."], ["commit", "-m", "one"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)
    return folder


def test_the_six_entries() -> None:
    entries = measured_with()
    assert list(entries) == ["commit", "code", "threads", "processor", "command", "date"]
    assert entries["code"] == code_digest()
    assert entries["threads"] >= 1


def test_changes_to_python_files_mark_the_commit(clone: Path) -> None:
    commit = commit_of(clone / "package")
    assert commit is not None
    assert len(commit) == 40
    (clone / "notes.md").write_text("not code")
    assert commit_of(clone / "package") == commit
    (clone / "package/module.py").write_text("one = 2\n")
    assert commit_of(clone / "package") == commit + CHANGED


def test_a_new_python_file_marks_the_commit(clone: Path) -> None:
    (clone / "other.py").touch()
    assert str(commit_of(clone / "package")).endswith(CHANGED)


def test_outside_of_a_clone_or_without_git_there_is_no_commit(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = clone / ".venv/lib/package"  # inside of the clone, but not its code
    installed.mkdir(parents=True)
    (installed / "module.py").touch()
    assert commit_of(installed) is None
    assert commit_of(tmp_path) is None
    assert commit_of(tmp_path / "missing") is None
    monkeypatch.setenv("PATH", "")
    assert commit_of(clone / "package") is None


def test_a_hook_of_another_repository_does_not_mislead(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = commit_of(clone / "package")
    monkeypatch.setenv("GIT_DIR", os.devnull)
    assert commit_of(clone / "package") == commit


def test_a_machine_without_proc_has_a_processor_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(provenance.platform, "processor", lambda: "")
    assert processor.__wrapped__()


@pytest.mark.parametrize(
    ("program", "spec", "command"),
    [
        ("/opt/venv/bin/candapt", None, "candapt benchmark demo"),
        ("/src/candapt/__main__.py", None, "candapt benchmark demo"),  # a worker process of the next one
        ("/src/candapt/__main__.py", "candapt.__main__", "candapt benchmark demo"),
        ("/src/benchmarks/suites.py", "benchmarks.suites", "python -m benchmarks.suites benchmark demo"),
    ],
)
def test_the_command_is_what_one_types(
    program: str, spec: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec and ModuleSpec(spec, None))
    monkeypatch.setattr(sys, "argv", [program, "benchmark", "demo"])
    assert command_line() == command


def test_absolute_paths_stay_out_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    paths = [str(tmp_path / "shared/x.npz"), f"--out={tmp_path / 'clone/runs'}", "/far/away/y.npz", "A->W", "../z"]
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "argv", ["candapt", *paths])
    assert command_line() == "candapt ../shared/x.npz --out=runs y.npz 'A->W' ../z"


def test_nothing_raises_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr(sys, "argv", ["candapt", "/somewhere/x.npz"])
    assert measured_with()["command"].endswith("x.npz")
