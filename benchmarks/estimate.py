"""Fit and test the estimate of target accuracy on a benchmark's cells: `python -m benchmarks.estimate OUT [OUT…]`.

OUT is the folder of a `candapt benchmark`. The weights that are printed belong into `candapt/evaluation/estimate.py`.
Errors are of tasks that the weights were not fitted on: all tasks with the same target are left out together.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import distinct, record
from candapt.benchmark.results import provenance_of_cell
from candapt.evaluation.estimate import FORMULAS, log_odds

RIDGE = 3.0
"""How strongly weights are drawn to each other, in cells: inputs that say much the same shall share the weight."""
COVERED = 0.9
"""Share of cells whose accuracy lies in the range."""

Array = np.ndarray[Any, Any]


def main() -> None:
    cells = [cell for folder in sys.argv[1:] for cell in read_cells(Path(folder))]
    formulas = {name: report(cells, tuple(formula.weights)) for name, formula in FORMULAS.items()}
    print(json.dumps(formulas, indent=2))
    content = {"cells": len(cells), "rounds": "the last and the middle of each cell", "formulas": formulas}
    record("estimate", {**content, "measured_with": distinct([cell["provenance"] for cell in cells])})


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """What is known of the last round and of one halfway, of every cell."""
    rows = []
    for path in sorted(folder.glob("cells/*/*/seed-*.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        rounds = cell["each_round"]
        for measured in (rounds[-1], rounds[len(rounds) // 2]):
            own = {"target": cell["task"]["target"], "row": cell["row"], "last": measured is rounds[-1]}
            rows.append(measured | own | {"provenance": provenance_of_cell(cell)})
    return rows


def report(cells: Sequence[dict[str, Any]], inputs: tuple[str, ...]) -> dict[str, Any]:
    """Weights fitted on all cells, and errors on targets that were left out."""
    x = np.array([[log_odds(cell[f"score_{name}"]) for name in inputs] for cell in cells])
    y = np.array([cell["accuracy"] for cell in cells])
    targets, last = np.array([cell["target"] for cell in cells]), np.array([cell["last"] for cell in cells])
    guessed = np.empty_like(y)
    for target in np.unique(targets):
        left_out = targets == target
        guessed[left_out] = apply(x[left_out], *fit(x[~left_out], y[~left_out]))
    bias, weights = fit(x, y)
    errors = np.abs(guessed - y)
    return {
        "bias": round(bias, 3),
        "weights": dict(zip(inputs, weights.round(3).tolist(), strict=True)),
        "margin": round(float(np.quantile(errors, COVERED)), 3),
        "mean_absolute_error": float(errors[last].mean()),
        "mean_absolute_error_halfway": float(errors[~last].mean()),
        "mean_absolute_error_fitted": float(np.abs(apply(x, bias, weights) - y)[last].mean()),
        "by_target": {str(t): float(errors[last & (targets == t)].mean()) for t in np.unique(targets)},
    }


def fit(x: Array, y: Array) -> tuple[float, Array]:
    """Bias and weights by logistic regression on shares, each input's weight drawn to the mean of all."""
    mean = x.mean(1, keepdims=True)
    design = np.hstack([np.ones_like(mean), mean, x - mean])
    penalty = np.diag([0, 0, *[RIDGE] * x.shape[1]]) + 1e-6 * np.eye(design.shape[1])
    solution = np.zeros(design.shape[1])
    for _ in range(50):  # Newton's method
        guessed = apply(design, 0.0, solution)
        curvature = design.T @ (design * (guessed * (1 - guessed))[:, None]) + penalty
        solution += np.linalg.solve(curvature, design.T @ (y - guessed) - penalty @ solution)
    bias, common, *own = solution
    single = np.array(own)
    return float(bias), common / x.shape[1] + single - single.mean()


def apply(x: Array, bias: float, weights: Array) -> Array:
    """Estimated accuracies."""
    guessed: Array = 1 / (1 + np.exp(-(bias + x @ weights)))
    return guessed


if __name__ == "__main__":
    main()
