"""candapt: move a classifier to a new domain that has no labels.

The names below are imported when they are first used, so that `import candapt` does not wait for torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Threads that wait for each other by spinning make two trainings on the same cores fifteen times slower, and a single
# one no faster. The variable must be set before torch is imported; a value that the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from candapt.data.domains import Domain, LabeledDomain
    from candapt.estimator import DomainAdaptationClassifier
    from candapt.methods import METHODS
    from candapt.model import Model, PredictionRow, load
    from candapt.run import Run, adapt, load_run

_MODULES = {
    "METHODS": "methods",
    "Domain": "data.domains",
    "DomainAdaptationClassifier": "estimator",
    "LabeledDomain": "data.domains",
    "Model": "model",
    "PredictionRow": "model",
    "Run": "run",
    "adapt": "run",
    "load": "model",
    "load_run": "run",
}  # where each public name is defined

__all__ = [
    "METHODS",
    "Domain",
    "DomainAdaptationClassifier",
    "LabeledDomain",
    "Model",
    "PredictionRow",
    "Run",
    "adapt",
    "load",
    "load_run",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'candapt' has no attribute {name!r}")
    return getattr(import_module(f"candapt.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
