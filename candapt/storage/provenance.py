"""Provenance: what a run was started with, so that it resumes with the same data, settings and code or not at all.

And what a recorded figure was measured with, so that a reader can repeat it.
"""

import hashlib
import logging
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from candapt import processes
from candapt.errors import UserError
from candapt.storage.files import flatten
from candapt.storage.runs import versions

log = logging.getLogger(__name__)

MAX_NAMED = 3  # changes that an error names before it only counts
CHANGED = "-dirty"  # ends the commit of a clone whose Python files have uncommitted changes
PACKAGE = Path(__file__).parents[1]

Provenance = dict[str, Any]  # what a run was started with, as JSON: settings, versions, digests of data, weights, code

_DIGESTS = {
    "code": "the code of candapt",
    "data.source": "the data of the source",
    "data.target": "the data of the target",
    "data.target_labels": "the labels for the oracle",
    "data.known_labels": "the known labels",
    "weights": "the weights that the network starts from",
}  # what each digest is of


def provenance_of(settings: Mapping[str, Any], data: Mapping[str, str | None], weights: str) -> Provenance:
    """The provenance of a run that is about to start, from the content of its `config.yaml` and from digests."""
    return {
        "settings": dict(settings),
        "versions": versions(),
        "code": code_digest(),
        "data": dict(data),
        "weights": weights,
        "machine": {"threads": torch.get_num_threads(), "gpu": torch.cuda.is_available(), **_processes()},
    }


def _processes() -> dict[str, int]:
    """The number of processes, if there are several."""
    return {"processes": processes.count()} if processes.count() > 1 else {}


def code_digest() -> str:
    """A digest of the sources of this package."""
    hasher = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        hasher.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode() + path.read_bytes())
    return hasher.hexdigest()


def measured_with() -> dict[str, Any]:
    """What a figure is measured with, to be stored beside it. Call it when the measurement starts."""
    commit, code = _sources()
    return {
        "commit": commit,
        "code": code,
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "command": command_line(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


@cache
def _sources() -> tuple[str | None, str]:
    """Commit and digest of the code, read once: edits do not change what a process has already imported."""
    return commit_of(PACKAGE), code_digest()


def commit_of(folder: Path) -> str | None:
    """The checked out commit, with a mark if Python files were changed since; None if git does not track the folder."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit or not _git(folder, "ls-files", "--", "*.py"):  # the second: a package installed inside of a clone
        return None
    return commit + CHANGED * bool(_git(folder, "status", "--porcelain", "--", ":/*.py"))


def _git(folder: Path, *arguments: str) -> str:
    """What a git command prints; empty if it fails or there is no git."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # set by hooks
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.decode(errors="replace").strip() if run.returncode == 0 else ""


@cache
def processor() -> str:
    """The model of the processor, or its architecture where the system names no model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine() or "unknown"


def command_line() -> str:
    """The command of this process as one would type it, without the machine's absolute paths."""
    program, *arguments = getattr(sys, "argv", None) or [""]
    path, spec = Path(program), getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name if spec is not None else path.parent.name if path.stem == "__main__" else path.stem
    name = name.removesuffix(".__main__")
    words = [name] if name == "candapt" else ["python", "-m", name] if name not in ("", "-c") else ["python"]
    return shlex.join([*words, *map(without_machine_paths, arguments)])


def without_machine_paths(argument: str) -> str:
    """An argument; an absolute path in it is made relative, or cut to its last part if it is far away."""
    flag, equals, path = argument.rpartition("=") if argument.startswith("-") else ("", "", argument)
    if not os.path.isabs(path):
        return argument
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return flag + equals + Path(path).name
    near = here.parent if here.parent.parent != here.parent else here  # siblings too, unless that is everything
    is_near = Path(path).is_relative_to(near)
    return flag + equals + (Path(os.path.relpath(path, here)).as_posix() if is_near else Path(path).name)


def require_same(folder: Path, before: Mapping[str, Any] | None, now: Mapping[str, Any], *, force: bool) -> None:
    """Raise a `UserError` if a run would resume with something else than it was started with; `force` only logs it."""
    if before is None:  # the run was stopped before its provenance was written
        return
    changes = differences(before, now)
    if changes and not force:
        more = f" (and {len(changes) - MAX_NAMED} more)" if len(changes) > MAX_NAMED else ""
        raise UserError(
            f"{str(folder)!r} was started with something else: {', '.join(changes[:MAX_NAMED])}{more}; restore it, or "
            "give --force to continue with what is there now; nothing was changed."
        )
    for change in changes:
        log.warning("Continuing with something else than at the start: %s.", change)
    if "machine" not in now or before.get("machine") == now["machine"]:
        return
    then, today = (each.get("machine", {}).get("processes", 1) for each in (before, now))
    if then != today:
        log.warning(
            "The run was started with %d process%s and continues with %d: the same samples are drawn, but sums are "
            "added in another order, so that the last digits may differ; with --sync-batchnorm false or "
            "--global-losses false batch norms and losses see other shares of a batch, and results differ more.",
            *(then, "" if then == 1 else "es", today),
        )
    else:
        log.warning("The number of threads or the device differs from the start: the last digits may differ.")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed, each in a few words; the machine may differ, and what was decided needs its reasons no more."""
    free = ("machine", "reasons")
    then, today = (flatten({name: part for name, part in each.items() if name not in free}) for each in (before, now))
    changes = []
    for name in sorted(then.keys() | today.keys()):
        old, new = then.get(name), today.get(name)
        if old != new:
            short = name.removeprefix("settings.").removeprefix("versions.")
            source = re.fullmatch(r"data\.source_(\d+)", name)
            what = f"the data of source {source[1]}" if source else _DIGESTS.get(name)
            changes.append(f"{what} changed" if what else f"{short} was {old} and is {new}")
    return changes
