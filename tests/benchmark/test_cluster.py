"""A benchmark and a search whose trainings run on a cluster of Dask workers."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from candapt.benchmark.collections import FeatureCollection
from candapt.benchmark.runner import run
from candapt.cluster import Cluster, connected
from candapt.commands.benchmark import read_arguments
from candapt.commands.main import main
from candapt.errors import UserError
from tests.benchmark.conftest import Planner

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a cluster in this process, with one worker."""
    options = {"dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **options) as cluster:
        yield cluster.scheduler_address


def test_a_cluster_gives_what_one_process_does(planned: Planner, scheduler: str, tmp_path: Path) -> None:
    plan = planned()
    run(plan, tmp_path / "serial")
    run(plan, tmp_path / "cluster", cluster=scheduler)
    for name in ("results.json", "results.md"):
        assert (tmp_path / "serial" / name).read_bytes() == (tmp_path / "cluster" / name).read_bytes()


def test_an_address_where_nobody_answers(planned: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candapt.cluster.SECONDS", 0.5)
    with pytest.raises(UserError, match="no Dask scheduler answers"):
        run(planned(), tmp_path / "out", cluster="tcp://127.0.0.1:9")
    assert not (tmp_path / "out").exists()


def test_a_search_asks_for_its_cluster_before_it_trains(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("candapt.cluster.SECONDS", 0.5)
    arguments = ["tune", str(files / "source.npz"), str(files / "target.npz"), "--out", str(tmp_path / "tuned")]
    assert main([*arguments, "--cluster", "tcp://127.0.0.1:9"]) == 2
    assert not (tmp_path / "tuned").exists()


def test_a_cluster_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candapt.cluster.SECONDS", 0.5)
    options = {"dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=0, processes=False, **options) as cluster:
        address = cluster.scheduler_address
        with pytest.raises(UserError, match="has no workers"), connected(address):
            pass


def test_a_scheduler_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        def result(self) -> None:
            raise CancelledError("scheduler-connection-lost")

    monkeypatch.setattr("distributed.as_completed", lambda futures: futures)
    with pytest.raises(UserError, match="The scheduler of the cluster has ended"):
        next(Cluster(None).finished({Lost(): "a training"}))


def test_workers_find_files_from_any_folder(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(features.parent)
    arguments = ["office31", "--data", features.name, "--cache", "cache", "--out", "out"]
    for cluster, is_absolute in (([], False), (["--cluster", "tcp://host:1"], True)):
        options, plan = read_arguments([*arguments, *cluster])
        assert isinstance(plan.collection, FeatureCollection)
        assert plan.collection.path.is_absolute() == plan.cache.folder.is_absolute() == is_absolute
        assert options.out == Path("out")


def test_trials_on_a_cluster_are_stored_in_the_order_of_finishing(scheduler: str, files: Path, tmp_path: Path) -> None:
    small = ["--rounds", "2", "--training.steps", "2", "--network.bottleneck", "8"]
    arguments = ["tune", str(files / "source.npz"), str(files / "target.npz"), "--out", str(tmp_path / "tuned"), *small]
    assert main([*arguments, "--trials", "4", "--cluster", scheduler]) == 0
    trials = json.loads((tmp_path / "tuned" / "trials.json").read_text())["trials"]
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3]
    assert sorted(trial["begun"] for trial in trials[1:]) == [1, 2, 3]


@pytest.mark.slow
def test_nothing_is_lost_with_a_worker(planned: Planner, tmp_path: Path) -> None:
    """Two workers train twelve cells; one of them is killed in the middle."""
    plan = planned(seeds=(0, 1, 2))
    run(plan, tmp_path / "serial")
    options = {"dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **options) as cluster:
        workers = [worker.pid for worker in cluster.workers.values()]

        def kill() -> None:
            while not any((tmp_path / "cluster").rglob("*.json")):
                time.sleep(0.05)
            os.kill(workers[0], signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        run(plan, tmp_path / "cluster", cluster=cluster.scheduler_address)
    assert (tmp_path / "serial" / "results.json").read_bytes() == (tmp_path / "cluster" / "results.json").read_bytes()
