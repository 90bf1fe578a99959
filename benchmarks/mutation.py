"""Mutation testing: small faults are put into a module one at a time, and its tests must notice each of them.

`python -m benchmarks.mutation` tries every fault in `MODULES` and records the scores; repeat the command to resume it.
`python -m benchmarks.mutation candapt/clustering.py` tries one module without a record. The faults are those of
mutmut's operators. Its own runner leaves out decorated functions and whatever is not inside a function; this one leaves
out type annotations alone. A fault that survives needs a reason in `mutation_survivors.yaml`.
"""

import argparse
import atexit
import difflib
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import hypothesis
import libcst
import pytest
import torch
import yaml
from hypothesis import strategies as st
from mutmut.mutation.mutators import mutation_operators

from benchmarks.record import record

ROOT = Path(__file__).parents[1]
REASONS = Path(__file__).with_name("mutation_survivors.yaml")
JOURNAL = ROOT / "runs" / "mutation.jsonl"
LOSSES = "candapt/losses"
MODULES: dict[str, Sequence[str]] = {
    f"{LOSSES}/__init__.py": ("tests/losses/test_names.py",),
    f"{LOSSES}/adversarial.py": ("tests/losses/test_predictions.py", "tests/methods/test_adversarial.py"),
    f"{LOSSES}/cdd.py": ("tests/losses/test_cdd.py",),
    f"{LOSSES}/kernels.py": (
        "tests/losses/test_kernels.py",
        "tests/losses/test_cdd.py",
        "tests/losses/test_mmd.py",
        "tests/losses/test_predictions.py",
    ),
    f"{LOSSES}/mmd.py": ("tests/losses/test_mmd.py",),
    f"{LOSSES}/predictions.py": ("tests/losses/test_predictions.py",),
    "candapt/clustering.py": ("tests/test_clustering.py",),
    "candapt/data/sampling.py": ("tests/data/test_sampling.py",),
    "candapt/network/batchnorm.py": ("tests/network/test_batchnorm.py",),
    "candapt/evaluation/scores.py": ("tests/evaluation/test_selection.py", "tests/evaluation/test_scores.py"),
}
"""The tests that concern each module, beside its own doctests."""

SECONDS = 10.0
"""Processor time that the tests of a mutant may take, or five times that of the tests without a fault."""
PATIENCE = 300
"""A mutant that waits for something is ended after this many times its processor time; a busy machine takes long."""
MEMORY = 4 * 2**30
"""Bytes that a mutant may allocate."""

Outcome = Literal["killed", "survived", "timeout"]


@dataclass(frozen=True)
class Mutant:
    """A module with one fault."""

    source: str
    line: int
    diff: str  # the changed lines, before and after

    @property
    def digest(self) -> str:
        """Name of the mutant in the journal."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Remaining:
    """A fault that the tests did not notice in time."""

    line: int
    outcome: Outcome
    diff: str


def mutants_of(source: str) -> list[Mutant]:
    """Every fault that mutmut knows for this source, in order of the lines."""
    module = libcst.parse_module(source)
    found: dict[str, Mutant] = {}
    for node, replacement in _replacements(module):
        changed = module.deep_replace(node, replacement)
        assert isinstance(changed, libcst.Module)
        if changed.code != source and _compiles(changed.code):
            found.setdefault(changed.code, _describe(source, changed.code))
    return sorted(found.values(), key=lambda mutant: mutant.line)


def _replacements(node: libcst.CSTNode) -> Iterator[tuple[libcst.CSTNode, libcst.CSTNode]]:
    """Nodes below this one, each with a faulty version of it."""
    if isinstance(node, libcst.Annotation):  # nothing reads them when the program runs
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            yield from ((node, replacement) for replacement in operator(node))
    for child in node.children:
        yield from _replacements(child)


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _describe(before: str, after: str) -> Mutant:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    number = int(lines[0].split()[1].lstrip("-").partition(",")[0])
    changed = [f"{line[0]} {line[1:].strip()}" for line in lines if not line.startswith("@@")]
    return Mutant(after, number, "\n".join(changed))


class _Replacer(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from a source text in place of its file."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = ROOT / path, source
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module to replace, and no other."""
        if fullname != self.name:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=str(self.path), is_package=self.is_package(fullname)
        )
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(self.path.parent))
        return spec

    def is_package(self, fullname: str) -> bool:
        """Whether modules lie below this one."""
        return self.path.name == "__init__.py"

    def get_source(self, fullname: str) -> str:
        """The text to import."""
        return self.source


class Journal:
    """The outcomes so far, on disk, so that a run that was interrupted resumes."""

    def __init__(self, tests: Sequence[str], *, earlier: bool) -> None:
        """Read the outcomes with these tests and, with `earlier`, what other versions of them killed."""
        self._tests, self._earlier, self.taken_from_earlier = _digest(tests), earlier, 0
        self._known: dict[tuple[str, str], Outcome] = {}
        self._killed: set[str] = set()
        for line in JOURNAL.read_text(encoding="utf-8").splitlines() if JOURNAL.exists() else ():
            entry = json.loads(line)
            self._known[entry["tests"], entry["mutant"]] = entry["outcome"]
            if entry["outcome"] == "killed":
                self._killed.add(entry["mutant"])

    def outcome(self, mutant: Mutant) -> Outcome | None:
        """The outcome if the mutant was tried before."""
        known = self._known.get((self._tests, mutant.digest))
        if known is None and self._earlier and mutant.digest in self._killed:
            self.taken_from_earlier += 1
            return "killed"
        return known

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        """Write an outcome down."""
        JOURNAL.parent.mkdir(exist_ok=True)
        with JOURNAL.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"tests": self._tests, "mutant": mutant.digest, "outcome": outcome}) + "\n")


def _digest(tests: Sequence[str]) -> str:
    """Digest of the tests and of what they share."""
    shared = ["tests/toy.py", "tests/methods/rotated.py"]
    shared += [str(file.relative_to(ROOT)) for file in (ROOT / "tests/references").glob("*.py")]
    content = b"".join(name.encode() + (ROOT / name).read_bytes() for name in sorted({*tests, *shared}))
    return hashlib.sha256(content).hexdigest()[:16]


def outcome_of(path: str, source: str, tests: Sequence[str], limit: float) -> Outcome:
    """Run tests in a process of its own, which imports the module at `path` from the given source."""
    child = os.fork()
    if child == 0:
        code: int = pytest.ExitCode.INTERNAL_ERROR
        try:
            code = _test(path, source, tests, limit)
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM) else "killed"
    return "survived" if os.WEXITSTATUS(status) == pytest.ExitCode.OK else "killed"


def _test(path: str, source: str, tests: Sequence[str], limit: float) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + limit) + 1, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, resource.RLIM_INFINITY))
    signal.alarm(int(PATIENCE * limit))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    replacer = _Replacer(path, source)
    sys.meta_path.insert(0, replacer)
    importlib.import_module(replacer.name)  # before pytest, which would read the file, as it holds tests itself
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--noconftest", *tests, path]))


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()


def measure(path: str, tests: Sequence[str], journal: Journal, sample: int | None = None) -> dict[str, Any]:
    """Score of one module, of all its mutants or a sample of them, and what its tests did not notice."""
    source = (ROOT / path).read_text(encoding="utf-8")
    mutants, limit = mutants_of(source), max(SECONDS, 5 * _usual_seconds(path, source, tests))
    chosen = random.Random(0).sample(mutants, len(mutants))[:sample]  # a larger sample holds the smaller one
    remaining: list[Remaining] = []
    for number, mutant in enumerate(chosen, 1):
        outcome = journal.outcome(mutant)
        if outcome is None:
            outcome = outcome_of(path, mutant.source, tests, limit)
            journal.add(mutant, outcome)
        if outcome != "killed":
            remaining.append(Remaining(mutant.line, outcome, mutant.diff))
            print(f"{path}:{mutant.line} {outcome} ({number} of {len(chosen)})\n{mutant.diff}", flush=True)
    survived, timeouts = (sum(each.outcome == kind for each in remaining) for kind in ("survived", "timeout"))
    killed = len(chosen) - len(remaining)
    print(f"{path}: {killed} of {len(chosen)} killed, {survived} survived, {timeouts} timeouts", flush=True)
    return {
        "module": path,
        "tests": list(tests),
        "mutants": len(mutants),
        "tried": len(chosen),
        "killed": killed,
        "killed_by_earlier_tests": journal.taken_from_earlier,
        "survived": survived,
        "timeouts": timeouts,
        "score": round(killed / len(chosen), 4),
        "remaining": [asdict(each) for each in sorted(remaining, key=lambda each: (each.line, each.diff))],
    }


def _usual_seconds(path: str, source: str, tests: Sequence[str]) -> float:
    """Processor time that the tests take without a fault."""
    before = os.times()
    if outcome_of(path, source, tests, 600) != "survived":
        raise RuntimeError(f"The tests of {path} fail without a fault.")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def explained(measured: dict[str, Any]) -> dict[str, Any]:
    """The measurement with the reasons as they are now."""
    reasons = read_reasons(measured["module"])
    remaining = [{**each, "reason": reasons.get(each["diff"])} for each in measured["remaining"]]
    return {**measured, "remaining": remaining}


def read_reasons(path: str) -> dict[str, str]:
    """For each fault of a module that may survive, as its diff, why it may."""
    entries = yaml.safe_load(REASONS.read_text(encoding="utf-8")).get(path) or []
    return {diff.rstrip("\n"): entry["reason"].strip() for entry in entries for diff in entry["faults"]}


def prepare() -> None:
    """Import the libraries once, so that no mutant has to, and make tests end at their first failure."""
    torch.set_num_threads(1)
    os.chdir(ROOT)
    sys.dont_write_bytecode, sys.pycache_prefix = False, tempfile.mkdtemp(prefix="mutation-")
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
    hypothesis.settings.register_profile(
        "mutation", database=None, derandomize=True, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
    )
    hypothesis.settings.load_profile("mutation")
    importlib.import_module("tests.toy")
    for name in ("scipy.stats", "scipy.optimize", "sklearn.cluster", "sklearn.linear_model", "sklearn.metrics"):
        importlib.import_module(name)
    _warm_up_hypothesis()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("candapt", "tests")]:
        del sys.modules[name]  # each mutant imports them anew, one of them with its fault
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    gc.freeze()  # pytest collects garbage at its end, which takes long with so many modules


@hypothesis.given(st.integers(0, 9), st.lists(st.floats(-1, 1)), st.sampled_from([1, 2]))
def _warm_up_hypothesis(number: int, numbers: list[float], choice: int) -> None:
    """Its first test takes a third of a second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", choices=[*MODULES, []], help="modules to try, without a record")
    parser.add_argument("--sample", type=int, help="try this many mutants of each module, chosen at random")
    parser.add_argument(
        "--remaining", action="store_true", help="tests were only added: do not try again what they kill"
    )
    arguments = parser.parse_args()
    prepare()
    measured = []
    for path in arguments.modules or MODULES:
        journal = Journal(MODULES[path], earlier=arguments.remaining)
        measured.append(explained(measure(path, MODULES[path], journal, arguments.sample)))
    if not arguments.modules:
        summarize(measured)


def summarize(modules: list[dict[str, Any]]) -> None:
    """Record the measurements."""
    totals = {name: sum(each[name] for each in modules) for name in ("mutants", "tried", "killed")}
    score = round(totals["killed"] / totals["tried"], 4)
    unexplained = sum(each["reason"] is None for module in modules for each in module["remaining"])
    print(f"{totals}, {score:.1%}; {unexplained} of those that remain have no reason", flush=True)
    record("mutation", {**totals, "score": score, "modules": modules})


if __name__ == "__main__":
    main()
