"""Runs what is missing of a plan. Each result is stored as soon as there is one, so nothing is ever computed twice."""

import logging
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from candapt.adaptation import adapt, check_task, initial_layers, make_fabric, prepare
from candapt.benchmark.examiner import Examiner, choose
from candapt.benchmark.plan import Cell, Plan
from candapt.benchmark.progress import SuiteBar
from candapt.benchmark.results import is_complete, summarize, timing
from candapt.benchmark.saving import CellCheckpoints
from candapt.benchmark.tables import TABLES
from candapt.console import counting, quiet_trainings, show_log
from candapt.errors import UserError
from candapt.files import write_atomically
from candapt.interruption import held_back, ignore_signals
from candapt.locks import locked, refuse_if_locked
from candapt.network.backbones import SMALL_CNN
from candapt.network.build import Layers, check_weights, decide
from candapt.report.benchmark_page import benchmark_page
from candapt.report.page import write_page
from candapt.runs import leaves, versions, write_json
from candapt.settings import NetworkSettings
from candapt.untrusted import read_json, shortened

log = logging.getLogger(__name__)

PAGE = "report.html"
FILES = {
    *("cells", "results.json", "timing.json", PAGE, *(f"results.{ending}" for ending in TABLES)),
    "results.html",  # what there was before the page
}
"""What a benchmark's folder may hold."""

Stored = dict[str, Any]
"""The content of a cell's file."""
Outcomes = Generator[tuple[Cell, Stored | UserError], None, None]
"""Cells as they finish, each with its result or the reason why there is none."""


def run(plan: Plan, out: Path, *, jobs: int = 1) -> dict[str, Any]:
    """Run what is not stored yet, then write `results.json` and the tables.

    Args:
        plan: what to run.
        out: folder of the benchmark, new or of the same suite.
        jobs: processes that train at the same time.

    Returns:
        The content of `results.json`.
    """
    if jobs < 1:
        raise UserError(f"--jobs is {jobs}, but must be at least 1.")
    refuse_if_locked(out)
    check_folder(out, plan.suite_name)
    known = versions()
    identities = [plan.identity(cell) for cell in plan.cells]
    found = [read_stored(cell.path(out), identity) for cell, identity in zip(plan.cells, identities, strict=True)]
    missing = [cell for cell, content in zip(plan.cells, found, strict=True) if content is None]
    log.info("%d of %d cells are stored already in %s.", len(found) - len(missing), len(found), out)
    if any(content is not None and content["versions"] != known for content in found):
        log.warning(
            "Some stored cells were made with other versions of candapt or its libraries; the results list them."
        )
    if missing and plan.collection.images is not None:
        check_weights(missing[0].settings.network)
    with claimed(out):
        for cell in set(plan.cells) - set(missing):  # a kill may have come before this
            shutil.rmtree(cell.saved(out), ignore_errors=True)
        if missing:
            run_missing(plan, missing, out, jobs)
        stored = [read_stored(cell.path(out), identity) for cell, identity in zip(plan.cells, identities, strict=True)]
        complete = [
            content | {"chosen": choose(content["each_round"], cell.settings.select)}
            for cell, content in zip(plan.cells, stored, strict=True)
            if content is not None
        ]
        return write_results(plan, complete, out)


def check_folder(out: Path, suite_name: str) -> None:
    """Refuse a folder that holds anything but results of this suite, without touching it."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{str(out)!r} is not a folder: give another one by --out; nothing was changed.")
    present = {path.name for path in out.iterdir() if not path.name.startswith(".")} if out.is_dir() else set()
    foreign = sorted(name for name in present if name.removesuffix(".part") not in FILES)  # .part: a writer was killed
    if foreign:
        raise UserError(f"{str(out)!r} holds {foreign[0]!r}, which no benchmark made: give another folder by --out.")
    if link := next((path for path in sorted(out.rglob("*")) if path.is_symlink()), None):
        raise UserError(
            f"{str(link)!r} is a link, which no benchmark makes: remove it, or give another folder by --out."
        )
    before = _read_json(out / "results.json").get("suite", suite_name)
    if before != suite_name:
        raise UserError(f"{str(out)!r} holds results of the suite {before}: give another folder by --out.")


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Make the folder and keep other processes from writing there; if nothing comes of it, it is removed again."""
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{str(out)!r} cannot be written ({error.strerror}): give another folder by --out.") from None
    try:
        with locked(out):
            yield
    finally:
        if new:
            with suppress(OSError):  # it is not empty
                out.rmdir()


def read_stored(path: Path, identity: Mapping[str, Any]) -> Stored | None:
    """The stored result, or None; one that was made with something else is refused."""
    if not path.exists():
        return None
    content = _read_json(path)
    if not is_complete(content):
        raise UserError(f"{str(path)!r} is not what a benchmark writes: remove it to have it made again.")
    expected, present = leaves(identity), leaves({name: content.get(name) for name in identity})
    for name in sorted(expected.keys() | present.keys()):
        if expected.get(name) != present.get(name):
            raise UserError(
                f"{str(path)!r} was made with {name} = {present.get(name)}, not {expected.get(name)}: "
                "give another folder by --out, or the settings and data that it was made with; nothing was changed."
            )
    return content


def run_missing(plan: Plan, missing: Sequence[Cell], out: Path, jobs: int) -> None:
    """Run cells one by one or in parallel; one that fails does not stop the others."""
    with quiet_trainings():
        check_data(plan, missing)
    fill_cache(plan, missing)
    with quiet_trainings():
        failed: list[tuple[Cell, UserError]] = []
        with SuiteBar(len(plan.cells), len(plan.cells) - len(missing)) as bar:
            running = _in_turn(plan, missing, out, bar) if jobs == 1 else _in_parallel(plan, missing, out, jobs)
            with closing(running):
                for cell, outcome in running:
                    bar.finish(cell, outcome)
                    if isinstance(outcome, UserError):
                        failed.append((cell, outcome))
    if failed:
        cell, error = failed[0]
        raise UserError(
            f"{len(failed)} of {len(missing)} cells failed, the others are stored; the first, {cell.name}: {error}"
        )


def check_data(plan: Plan, missing: Sequence[Cell]) -> None:
    """Read each task once before anything is trained, so that what is wrong with the data is said at the start."""
    for cell in {cell.task: cell for cell in missing}.values():
        check_task(plan.collection.problem(cell.task.source, cell.task.target, cell.seed).task)


def fill_cache(plan: Plan, missing: Sequence[Cell]) -> None:
    """Compute what frozen layers make of the images before any cell is timed, or waits for another that does it."""
    built: dict[NetworkSettings, Layers] = {}
    for cell in {(cell.row.settings.network, cell.task): cell for cell in missing}.values():
        task = plan.collection.problem(cell.task.source, cell.task.target, cell.seed).task
        network = decide(cell.settings.network, tuple(task.source.samples.shape))
        starts_at_random = network.backbone == SMALL_CNN and network.weights is None  # and so differs with the seed
        if len(task.source.samples.shape) == 1 or network.finetune == "all" or starts_at_random:
            continue
        if network not in built:
            built[network] = initial_layers(task, cell.settings)
        with counting(f"features of {cell.task.name}") as count:
            prepare(task, built[network], make_fabric(cell.settings.training), plan.cache, count)


def _in_turn(plan: Plan, cells: Sequence[Cell], out: Path, bar: SuiteBar) -> Outcomes:
    for cell in cells:
        yield cell, _run_and_store(plan, cell, out, bar.advance)


def _in_parallel(plan: Plan, cells: Sequence[Cell], out: Path, jobs: int) -> Outcomes:
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    threads, others = max(1, (os.cpu_count() or 1) // jobs), set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(threads,)) as pool:
        try:
            with held_back():  # until they have begun, they would end with a traceback
                running = {pool.submit(_run_and_store, plan, cell, out): cell for cell in cells}
            for done in as_completed(running):
                yield running[done], done.result()
        except BaseException as error:  # interrupted, or nobody listens any more
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # whatever it writes appears whole or not at all
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    "A process that trained was ended from outside, perhaps since memory ran out: give fewer --jobs; "
                    "the same command goes on with the cells that are missing."
                ) from None
            raise


def _begin(threads: int) -> None:
    """Set up a worker: its share of the cores, and an end when its starter is gone."""
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


def _run_and_store(
    plan: Plan, cell: Cell, out: Path, advance: Callable[[float], None] = lambda share: None
) -> Stored | UserError:
    """Run a cell and write its file; what the user can put right is returned and not raised."""
    path, saved = cell.path(out), cell.saved(out)
    try:
        stored = run_cell(plan, cell, advance, saved=saved)
    except UserError as error:
        return UserError(str(error))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, stored)
    shutil.rmtree(saved, ignore_errors=True)
    return stored


def run_cell(
    plan: Plan, cell: Cell, advance: Callable[[float], None] = lambda share: None, *, saved: Path | None = None
) -> Stored:
    """Train once and measure after each round.

    Args:
        plan: what the cell is of.
        cell: what to train.
        advance: told the share of the training that is done.
        saved: folder for checkpoints, from which the training goes on if there are any.
    """
    problem = plan.collection.problem(cell.task.source, cell.task.target, cell.seed)
    settings, task = cell.settings, problem.task
    layers = initial_layers(task, settings)
    measured = problem.measured
    if measured is not None:
        (measured,) = plan.cache.through(layers, measured)
    classes = task.source.classes if plan.suite.by_class else ()
    examiner = Examiner(problem.truth, measured, classes, advance)
    images = plan.collection.images
    checkpoints = CellCheckpoints(saved, plan.identity(cell), examiner) if saved else None
    adapted = adapt(
        task, settings, images=images, watcher=examiner, layers=layers, cache=plan.cache, checkpoints=checkpoints
    )
    return {
        **plan.identity(cell),
        "samples": {"source": task.source.size, "target": task.target.size, "measured": examiner.samples},
        "network": {"backbone": layers.settings.backbone, "finetune": layers.settings.finetune},
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "seconds": round(adapted.seconds, 2),
        "rounds": len(adapted.history),
        "stopped": "settled" if adapted.settled else "last round",
        **examiner.outcome(),
        "chosen": choose(examiner.rounds, settings.select),
    }


def write_results(plan: Plan, stored: Sequence[Stored], out: Path) -> dict[str, Any]:
    """Write `results.json`, the tables, the page and `timing.json`; only the last one differs from run to run."""
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
        raise UserError(f"{str(path)!r} cannot be read ({reason}): remove it to have it made again.") from None
