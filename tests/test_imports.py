"""What is imported when: simple questions are answered before torch is loaded, and losses need little else."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import candapt

PUBLIC = (
    *("METHODS", "Domain", "DomainAdaptationClassifier", "LabeledDomain", "Model"),
    *("PredictionRow", "Run", "adapt", "load", "load_run"),
)
HEAVY = ("torch", "timm", "sklearn")
NOT_FOR_LOSSES = (
    *("timm", "torchvision", "lightning_fabric", "sklearn", "scipy"),
    *("matplotlib", "plotly", "rich", "yaml"),
)


def python(code: str, *arguments: str) -> str:
    """The output of a program in a new interpreter."""
    words = [sys.executable, "-c", f"import sys\n{code}", *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def imported(code: str, *arguments: str) -> set[str]:
    """The packages that a program has imported at its end."""
    shown = "print('modules:', *sorted({name.partition('.')[0] for name in sys.modules}))"
    return set(python(f"{code}\n{shown}", *arguments).rpartition("modules:")[2].split())


class TestCommandLine:
    """`candapt` answers at once."""

    CALL = "from candapt.commands.main import main\nassert main(sys.argv[2:]) == int(sys.argv[1])"

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (0, ()),
            (0, ("--help",)),
            (0, ("-h",)),
            (0, ("--version",)),
            (0, ("-V",)),
            (2, ("adpt",)),
            (2, ("--nope",)),
        ],
    )
    def test_torch_is_not_imported(self, code: int, words: tuple[str, ...]) -> None:
        assert not imported(self.CALL, str(code), *words) & {*HEAVY, "numpy", "lightning_fabric", "rich"}

    def test_as_a_module(self) -> None:
        words = [sys.executable, "-X", "importtime", "-m", "candapt", "--version"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout == f"candapt {version('candapt')}\n"
        names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "candapt.commands.main" in names
        assert not names & set(HEAVY)


class TestPackage:
    def test_it_lists_its_names_and_imports_nothing_heavy(self) -> None:
        assert set(candapt.__all__) == set(PUBLIC)
        assert set(PUBLIC) <= set(python("import candapt\nprint(*dir(candapt))").split())
        assert not imported("import candapt\ndir(candapt)") & set(HEAVY)

    def test_names_resolve_when_they_are_used(self) -> None:
        code = """
import candapt
assert "torch" not in sys.modules
for name in sys.argv[1:]:
    assert getattr(candapt, name) is not None
    print(name, "torch" in sys.modules)
"""
        assert python(code, *PUBLIC).splitlines() == [f"{name} True" for name in PUBLIC]

    def test_all_of_them_at_once(self) -> None:
        namespace: dict[str, object] = {}
        exec("from candapt import *", namespace)
        assert set(PUBLIC) <= namespace.keys()

    def test_they_are_those_of_their_modules(self) -> None:
        from candapt.data.domains import Domain, LabeledDomain
        from candapt.estimator import DomainAdaptationClassifier
        from candapt.methods import METHODS
        from candapt.model import Model, PredictionRow, load
        from candapt.run import Run, adapt, load_run

        models = (Model, PredictionRow, Run, adapt, load, load_run)
        expected = (METHODS, Domain, DomainAdaptationClassifier, LabeledDomain, *models)
        assert all(getattr(candapt, name) is value for name, value in zip(PUBLIC, expected, strict=True))

    def test_other_names_do_not_exist(self) -> None:
        with pytest.raises(AttributeError, match="module 'candapt' has no attribute 'nope'"):
            _ = candapt.nope  # type: ignore[attr-defined]
        with pytest.raises(ImportError, match="nope"):
            exec("from candapt import nope")


class TestLosses:
    def test_they_need_torch_and_little_else(self) -> None:
        """So does the clustering."""
        names = imported("import candapt.losses, candapt.clustering")
        assert "torch" in names
        assert not names & set(NOT_FOR_LOSSES)
