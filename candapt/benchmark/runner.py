"""Runs what is missing of a plan. Each result is stored as soon as it is there, so nothing is ever computed twice."""

import logging
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candapt.adaptation import adapt, check_task, initial_parts, prepare
from candapt.benchmark.examiner import CellCheckpoints, Examiner, choose
from candapt.benchmark.plan import Cell, Plan
from candapt.benchmark.results import Stored, is_complete, provenance_of_cell, summarize, timing
from candapt.benchmark.tables import TABLES, benchmark_page
from candapt.cluster import connected, require
from candapt.console import SeriesBar, console, counting, show_log
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.model import Predictions
from candapt.network.backbones import SMALL_CNN
from candapt.network.build import NetworkParts, check_named_weights, decide
from candapt.presets import FORMER
from candapt.report.page import write_page
from candapt.settings import NetworkSettings, TrainingSettings
from candapt.storage.files import flatten, plain, write_atomically, write_json
from candapt.storage.folders import OutputFolder, names_in
from candapt.storage.interruption import ignore_signals, signals_blocked
from candapt.storage.provenance import code_digest, measured_with
from candapt.storage.runs import versions
from candapt.storage.safe_reading import read_json, shortened
from candapt.training.batches import make_fabric

log = logging.getLogger(__name__)

PAGE = "report.html"
FILES = {"cells", "results.json", "timing.json", PAGE, *(f"results.{ending}" for ending in ("html", *TABLES))}
"""What a benchmark's folder may hold; earlier versions wrote `results.html`."""

Advance = Callable[[float], None]  # called with the share of a training that is done
Outcomes = Generator[tuple[Cell, Stored | UserError], None, None]
"""Cells as they finish, each with its result or the reason why there is none."""


def run(plan: Plan, out: Path, *, jobs: int = 1, cluster: str | None = None) -> dict[str, Any]:
    """Run what the folder lacks, in `jobs` processes, write its tables and return the content of `results.json`.

    With the address of a cluster its workers run the cells; they must find data, cache and folder at the same places.
    """
    if jobs < 1:
        raise UserError(f"--jobs is {jobs}, but must be at least 1.")
    BenchmarkFolder.check(out, resume=out.exists())
    BenchmarkFolder(out).require_suite(plan.suite_name)
    stored = read_cells(plan, out)
    missing = [cell for cell in plan.cells if cell not in stored]
    log.info("%d of %d cells are stored already in %s.", len(plan.cells) - len(missing), len(plan.cells), out)
    if any(content["versions"] != versions() for content in stored.values()):
        log.warning("Some cells were made with other versions of candapt or its libraries; the results list them.")
    elif any(provenance_of_cell(content)["code"] != code_digest() for content in stored.values()):
        log.warning("Some cells were made with other code of candapt; the results list its digests.")
    if missing and plan.collection.images is not None:
        check_named_weights(missing[0].settings.network)
    if missing:
        require(cluster)  # before anything is computed or written
    with BenchmarkFolder.open(out, resume=out.exists()):
        for cell in stored:  # a kill may have come before this
            shutil.rmtree(cell.saved(out), ignore_errors=True)
        if missing:
            run_missing(plan, missing, out.absolute() if cluster else out, jobs, cluster)
            stored = read_cells(plan, out)
        return write_results(plan, [stored[cell] for cell in plan.cells], out)


class BenchmarkFolder(OutputFolder):
    """The files of one benchmark. Repeating its command always resumes it."""

    maker = "candapt benchmark"

    @classmethod
    def check_content(cls, path: Path, *, resume: bool) -> None:
        """Raise a `UserError` for files that no benchmark made."""
        if foreign := sorted(name for name in names_in(path) - FILES if not name.startswith(".")):
            held = f"{str(path)!r} holds {foreign[0]!r}"
            raise UserError(f"{held}, which no benchmark made: give another folder by --out.")

    def require_suite(self, name: str) -> None:
        """Raise a `UserError` if the folder holds results of another suite."""
        before = _read_json(self.path / "results.json").get("suite", name)
        if before != name:
            raise UserError(f"{str(self.path)!r} holds results of the suite {before}: give another folder by --out.")

    def prepare(self) -> None:
        """Leave everything in place: half-written files are replaced when their cell is run again."""


def read_cells(plan: Plan, out: Path) -> dict[Cell, Stored]:
    """The results that are stored already; the settings choose anew among their rounds."""
    stored: dict[Cell, Stored] = {}
    for cell in plan.cells:
        if content := read_stored(cell.path(out), plan.identity(cell)):
            stored[cell] = content | {"chosen": choose(content["each_round"], cell.settings.select)}
    return stored


def read_stored(path: Path, identity: Mapping[str, Any]) -> Stored | None:
    """The stored result, or None if there is none; a `UserError` if it is damaged or was made with something else."""
    if not path.exists():
        return None
    content = _read_json(path)
    if not is_complete(content):
        raise UserError(f"{str(path)!r} is not what a benchmark writes: remove it to run the cell again.")
    expected, present = flatten(identity), flatten({name: content.get(name) for name in identity})
    newer = {name for name, value in default_settings().items() if name not in present and expected.get(name) == value}
    for name in sorted((expected.keys() | present.keys()) - retired_settings() - newer):
        if expected.get(name) != present.get(name):
            raise UserError(
                f"{str(path)!r} was made with {name} = {present.get(name)}, not {expected.get(name)}: "
                "give another folder by --out, or the settings and data that it was made with; nothing was changed."
            )
    return content


def retired_settings() -> set[str]:
    """Names of settings that cells of older versions hold, which had no effect."""
    groups = _setting_groups().items()
    return {f"settings.{group}.{name}" for group, kind in groups for name in getattr(kind, "RETIRED", ())}


def default_settings() -> dict[str, Any]:
    """Former defaults of all settings; a cell that lacks one comes from a version that always did what that does."""
    groups = _setting_groups().items()
    now = {f"settings.{group}.{item.name}": plain(item.default) for group, kind in groups for item in fields(kind)}
    return now | {f"settings.{name}": value for name, value in FORMER.items()}


def _setting_groups() -> dict[str, Any]:
    return {"network": NetworkSettings, "training": TrainingSettings, **{m: METHODS[m].Settings for m in METHODS}}


def run_missing(plan: Plan, missing: Sequence[Cell], out: Path, jobs: int, cluster: str | None = None) -> None:
    """Run cells one by one or in parallel; one that fails does not stop the others."""
    for cell in {cell.task: cell for cell in missing}.values():
        check_task(plan.problem(cell).task)  # so that errors in the data show before anything is trained
    fill_cache(plan, missing)
    failed: list[tuple[Cell, UserError]] = []
    with SuiteBar("cells", len(plan.cells), len(plan.cells) - len(missing)) as bar:
        in_turn = ((cell, _run_and_store(plan, cell, out, bar.advance)) for cell in missing)
        side_by_side = _on_cluster(plan, missing, out, cluster) if cluster else _in_parallel(plan, missing, out, jobs)
        with closing(in_turn if jobs == 1 and not cluster else side_by_side) as outcomes:
            for cell, outcome in outcomes:
                bar.finish(cell, outcome)
                if isinstance(outcome, UserError):
                    failed.append((cell, outcome))
    if failed:
        cell, error = failed[0]
        summary = f"{len(failed)} of {len(missing)} cells failed, the others are stored"
        raise UserError(f"{summary}; the first, {cell.name}: {error}")


class SuiteBar(SeriesBar):
    """One progress bar over all cells in a terminal; elsewhere one log line per cell."""

    def finish(self, cell: Cell, outcome: Stored | UserError) -> None:
        """Count a cell and log its outcome."""
        self.count(cell.name)
        if isinstance(outcome, UserError):
            log.warning("%s failed: %s", cell.name, outcome)
        elif not console.is_terminal:
            score = "mean_class_accuracy" if "class_accuracies" in outcome["last"] else "accuracy"
            accuracies = f"last {outcome['last'][score]:.1%}, oracle {outcome['oracle'][score]:.1%}"
            times = f"{outcome['seconds']:.0f} s; {self.time_left}"
            log.info("%d/%d %s: %s, %s", self.done, self.total, cell.name, accuracies, times)


def fill_cache(plan: Plan, missing: Sequence[Cell]) -> None:
    """Fill the activation cache before any cell is timed, or waits for another that does it."""
    built: dict[NetworkSettings, NetworkParts] = {}
    for cell in {(cell.row.settings.network, cell.task): cell for cell in missing}.values():
        task = plan.problem(cell).task
        network = decide(cell.settings.network, tuple(task.source.samples.shape))
        starts_at_random = network.backbone == SMALL_CNN and network.weights is None  # and so differs with the seed
        if len(task.source.samples.shape) == 1 or network.finetune == "all" or starts_at_random:
            continue
        if network not in built:
            built[network] = initial_parts(task, cell.settings)
        with counting(f"features of {cell.task.name}") as count:
            prepare(task, built[network], make_fabric(cell.settings.training), plan.cache, count)


def _in_parallel(plan: Plan, cells: Sequence[Cell], out: Path, jobs: int) -> Outcomes:
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    threads, others = max(1, (os.cpu_count() or 1) // jobs), set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(threads,)) as pool:
        try:
            with signals_blocked():  # until they have started, they would end with a traceback
                running = {pool.submit(_run_and_store, plan, cell, out): cell for cell in cells}
            for done in as_completed(running):
                yield running[done], done.result()
        except BaseException as error:  # interrupted, or the consumer is gone
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # whatever it writes appears whole or not at all
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    "A training process was killed, perhaps because memory ran out: use fewer --jobs; repeat the "
                    "command to run the cells that are missing."
                ) from None
            raise


def _on_cluster(plan: Plan, cells: Sequence[Cell], out: Path, address: str) -> Outcomes:
    """Cells as workers of a cluster finish them; those of a worker that ends are run by another."""
    with connected(address) as cluster:
        running = {cluster.start(_run_and_store, plan, cell, out): cell for cell in cells}
        yield from cluster.finished(running)


def _begin(threads: int) -> None:
    """Set up a worker: its share of the cores, and an exit when its parent is gone."""
    torch.set_num_threads(threads)
    ignore_signals()
    show_log()
    logging.getLogger("candapt").setLevel(logging.WARNING)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_and_store(plan: Plan, cell: Cell, out: Path, advance: Advance = lambda share: None) -> Stored | UserError:
    """Run a cell and write its file; a `UserError` is returned rather than raised."""
    path, saved = cell.path(out), cell.saved(out)
    try:
        stored, predictions = run_cell(plan, cell, advance, saved=saved)
    except UserError as error:
        return UserError(str(error))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_predictions(cell.predictions_path(out), predictions)
    write_json(path, stored)  # last: with it the cell is complete
    shutil.rmtree(saved, ignore_errors=True)
    return stored


def run_cell(
    plan: Plan, cell: Cell, advance: Advance = lambda share: None, *, saved: Path | None = None
) -> tuple[Stored, Predictions]:
    """Train once, from the checkpoints in the folder `saved` if there are any, and measure after each round.

    Gives the content of the cell's file, and the last predictions for the target.
    """
    provenance = measured_with()
    problem, settings, identity = plan.problem(cell), cell.settings, plan.identity(cell)
    task, measured = problem.task, problem.measured
    parts = initial_parts(task, settings)
    if measured is not None:
        (measured,) = plan.cache.through(parts, measured)
    examiner = Examiner(problem.truth, measured, task.source.classes if plan.suite.by_class else (), advance)
    checkpoints = CellCheckpoints(saved, identity, examiner) if saved else None
    images, cache = plan.collection.images, plan.cache
    result = adapt(
        task, settings, images=images, callbacks=[examiner], parts=parts, cache=cache, checkpoints=checkpoints
    )
    stored = {
        **identity,
        "samples": {"source": task.source.size, "target": task.target.size, "measured": len(examiner.truth)},
        "network": {"backbone": parts.settings.backbone, "finetune": parts.settings.finetune},
        "versions": versions(),
        "threads": provenance["threads"],
        "provenance": provenance,
        "seconds": round(result.seconds, 2),
        "rounds": len(result.history),
        "stopped": "settled" if result.settled else "last round",
        **examiner.outcome(),
        "chosen": choose(examiner.rounds, settings.select),
    }
    return stored, result.predictions


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write what later measurements need of a cell: the probabilities and the cluster of each target sample."""
    with write_atomically(path) as part, part.open("wb") as file:
        np.savez_compressed(
            file,
            probabilities=predictions.probabilities.numpy(),
            cluster_labels=predictions.cluster_labels.numpy().astype(np.int32),
        )


def write_results(plan: Plan, stored: Sequence[Stored], out: Path) -> dict[str, Any]:
    """Write `results.json`, the tables, the page and `timing.json`.

    Only the last one differs from run to run of the same code on the same kind of processor.
    """
    results = summarize(plan, stored)
    write_json(out / "results.json", results)
    write_json(out / "timing.json", timing(stored))
    for ending, render in TABLES.items():
        with write_atomically(out / f"results.{ending}") as part:
            part.write_text(render(results), encoding="utf-8", errors="backslashreplace")
    write_page(out / PAGE, benchmark_page(results, stored))
    return results


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        reason = shortened(str(error))
        raise UserError(f"{str(path)!r} cannot be read ({reason}): remove it to run the cell again.") from None
