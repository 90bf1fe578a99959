"""`candapt adapt --method auto`: train methods that differ in kind, keep the one that label-free evidence favors.

Each method has a run folder below `candidates/`. They are compared by the estimate of their accuracy from features that
no adaptation has touched, which means the same for all of them. CAN is kept unless the estimate of another one is
clearly higher. The run of the method that is kept becomes the run.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from candapt import processes
from candapt.assessment import BASELINE, Baseline, as_baseline
from candapt.commands import adapt
from candapt.commands.adapt import AUTO, AdaptOptions
from candapt.commands.parser import Given, read_config
from candapt.commands.report import report
from candapt.commands.training import (
    NOT_IN_FILES,
    parse_training,
    require_own_settings,
    show_help,
    training_parser,
)
from candapt.errors import UserError, known_name
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS, make_settings
from candapt.settings import TrainingSettings
from candapt.storage.files import plain, write_atomically, write_json
from candapt.storage.folders import names_in
from candapt.storage.runs import CANDIDATES, RunFolder, new_run_path, write_config
from candapt.storage.safe_reading import read_json
from candapt.training.batches import make_fabric

log = logging.getLogger(__name__)

TRIED = (BASELINE, "mcc", "dan", "can")  # the last of equals is kept
FAVORED = "can"
MARGIN = 0.05  # by how much another one's estimate must be higher: on PACS, smaller differences were chance
CONFIG = "auto.yaml"  # what the user gave, to resume with


def main(given: Given) -> Path:
    """Train and compare; the values are those that the user gave, `--out` and `--resume` among them. The run folder."""
    values = dict(given.values)
    if given.wants_help:
        preset = known_name(values.get("preset", DEFAULT), PRESETS, "preset")
        show_help(training_parser("adapt", AdaptOptions), make_settings(TRIED[-1], preset=preset), TRIED)
    out = values.get("out") or new_run_path(AUTO)
    resume = bool(values.get("resume")) or bool(processes.restarts() and (out / CONFIG).is_file())
    if processes.started() > 1:
        make_fabric(TrainingSettings())  # connects them
    processes.by_first(lambda: RunFolder.check(out, resume=resume))
    if resume and RunFolder(out).complete:
        log.info("The run in %s is complete: %s", out, out / "predictions.csv")
        return out
    require_own_settings(given, TRIED)
    config = read_config(out / CONFIG if resume and (out / CONFIG).is_file() else values.get("config"))
    options = [options_of(method, values, config) for method in TRIED]

    is_new = processes.is_first() and not out.exists()

    def begin() -> None:
        out.mkdir(parents=True, exist_ok=True)
        write_config(out / CONFIG, _described(values, config), "What the methods were tried with")

    processes.by_first(begin)
    try:
        train_all(options, out)
    except UserError:
        if processes.is_first() and not resume:
            _withdraw(out, with_folder=is_new)
        raise
    processes.by_first(lambda: keep_best(out, with_report=options[-1].report))
    return out


def _withdraw(out: Path, *, with_folder: bool) -> None:
    """Leave nothing of a command whose first training could not begin, so that it can be given again."""
    if names_in(out) == {CONFIG}:
        (out / CONFIG).unlink()
        if with_folder:
            out.rmdir()


def options_of(method: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> AdaptOptions:
    """The options of one candidate; settings of other methods do not concern it."""
    others = [name for name in METHODS if name != method]
    own = {name: value for name, value in values.items() if name.rpartition(".")[0] not in others}
    own = {name: value for name, value in own.items() if name not in ("out", "resume", "config")} | {"method": method}
    parser = training_parser("adapt", AdaptOptions)
    return parse_training(parser, AdaptOptions, Given(own), {**config, "method": method})


def _described(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the given values in it."""
    described: dict[str, Any] = {**config, "method": AUTO}
    for name, value in values.items():
        if name in NOT_IN_FILES or name in ("config", "method"):
            continue
        group, _, item = name.rpartition(".")
        content = str(value.absolute()) if isinstance(value, Path) else plain(value)
        if group:
            described[group] = {**described.get(group, {}), item: content}
        else:
            described[name] = content
    return described


def train_all(options: Sequence[AdaptOptions], out: Path) -> None:
    """Train every candidate that is not complete; source-only, which comes first, is what the others compare with."""
    baseline: Baseline | None = None
    for number, each in enumerate(options, 1):
        folder = out / CANDIDATES / each.settings.method
        log.info("Method %d of %d: %s", number, len(options), each.settings.method)
        started = processes.by_first(partial(_is_begun, folder))
        result = adapt.run(replace(each, out=folder, resume=started), baseline, out)
        if each.settings.method == BASELINE and result is not None:
            baseline = as_baseline(result)


def _is_begun(folder: Path) -> bool:
    return folder.is_dir() and bool(names_in(folder))


def keep_best(out: Path, *, with_report: bool) -> None:
    """Copy the run with the best evidence out of the candidates; its summary tells of all of them."""
    summaries = {method: read_json(out / CANDIDATES / method / "summary.json") for method in TRIED}
    compared = {method: _evidence(summary) for method, summary in summaries.items()}
    best = choose({method: evidence["estimated_accuracy"] for method, evidence in compared.items()})
    folder = out / CANDIDATES / best
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in ("summary.json", ".lock"):
            with write_atomically(out / path.name) as part:
                shutil.copyfile(path, part)
    write_json(out / "summary.json", {**summaries[best], "auto": {"kept": best, "methods": compared}})
    for method, evidence in compared.items():
        log.info("%-12s estimated accuracy %.1f%%", METHODS[method].title, 100 * evidence["estimated_accuracy"])
    log.info("Kept %s: %s", METHODS[best].title, out / "predictions.csv")
    if with_report:
        report([out])


def choose(estimates: Mapping[str, float]) -> str:
    """The method to keep, by the estimated accuracy of each that was tried."""
    return max(estimates, key=lambda method: (estimates[method] + MARGIN * (method == FAVORED), TRIED.index(method)))


def _evidence(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of a candidate; a `UserError` if it has no estimate."""
    estimate = summary.get("estimated_accuracy")
    if not isinstance(estimate, dict):
        data = summary.get("data", {})
        if data and len(data.get("known_labels", [])) == data.get("target"):
            raise UserError(
                "--method auto compares methods on samples without a known label, and --known-labels has all: leave "
                "some out, or give a method."
            )
        raise UserError(
            "--method auto compares methods by features that no adaptation has touched, and this network starts at "
            "random: give --baseline true, or a method."
        )
    warnings = [finding["kind"] for finding in summary.get("warnings", [])]
    return {"estimated_accuracy": estimate["value"], "seconds": summary["seconds"], "warnings": warnings}
