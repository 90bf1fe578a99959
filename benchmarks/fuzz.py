"""Fuzzes each reader for some minutes, in a process of its own whose end is noticed, and records what came of it."""

import argparse
import faulthandler
import hashlib
import json
import multiprocessing
import resource
import shutil
import tempfile
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.fuzzing import trial
from benchmarks.fuzzing.readers import READERS
from benchmarks.record import RESULTS, distinct, record
from candapt.storage.provenance import measured_with


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="For each reader.")
    parser.add_argument("--reader", choices=READERS, action="append", help="One reader; may be repeated. Default: all.")
    parser.add_argument("--seed", type=int, default=0, help="Decides all changes.")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="Folder for files that went wrong.")
    options = parser.parse_args()
    results = _recorded()
    for name in options.reader or READERS:
        provenance = measured_with()
        results[name] = fuzz_reader(name, options.minutes * 60, options.seed, options.keep) | {"provenance": provenance}
        print(name, json.dumps(results[name]))
        limits = {"seconds_per_file": trial.SECONDS, "bytes_per_file": trial.MEMORY}
        readers = {name: results[name] for name in READERS if name in results}
        provenances = distinct([each.get("provenance", {}) for each in readers.values()])
        record("fuzz", {"limits": limits, "readers": readers, "measured_with": provenances})


def _recorded() -> dict[str, Any]:
    """Results of other readers from earlier runs."""
    path = RESULTS / "fuzz.json"
    return dict(json.loads(path.read_text())["readers"]) if path.exists() else {}


def fuzz_reader(name: str, seconds: float, seed: int, keep: Path) -> dict[str, Any]:
    """Fuzz for so long; a process that dies, by a crash or because it was stuck, is a failure and is replaced."""
    outcomes, failures, spent, peak = Counter[str](), [], 0.0, 0
    while (left := seconds - spent) > 0:
        folder = Path(tempfile.mkdtemp())
        ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(name, folder, left, seed, theirs))
        process.start()
        theirs.close()
        try:
            while True:
                news = ours.recv()
                outcomes.update(news["outcomes"])
                spent += news["seconds"]
                peak = max(peak, news["peak"])
                failures += [_kept(text, data, keep, name) for text, data in news["failures"]]
        except EOFError:
            process.join()
        if process.exitcode != 0:
            stuck = folder / READERS[name].file
            spent += 2 * trial.WAIT
            failures.append(_kept(f"the process ended with {process.exitcode}", stuck.read_bytes(), keep, name))
        shutil.rmtree(folder, ignore_errors=True)
        seed += 1_000_003
    return {
        "minutes": round(spent / 60, 2),
        "files": sum(outcomes.values()) + len(failures),
        **outcomes,
        "peak_mib": round(peak / 2**10),
        "failures": failures,
    }


def _kept(text: str, data: bytes, keep: Path, name: str) -> dict[str, str]:
    """Write down a file that went wrong."""
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    keep.mkdir(parents=True, exist_ok=True)
    (keep / f"{name}-{digest}").write_bytes(data)
    return {"what": text, "file": f"{name}-{digest}"}


def _work(name: str, folder: Path, seconds: float, seed: int, pipe: Connection) -> None:
    """Fuzz and report now and then; one file that cannot be interrupted ends the process."""
    warnings.simplefilter("ignore")
    last = time.monotonic()
    end = last + seconds
    for tally in trial.fuzz(READERS[name], folder, seed):
        faulthandler.dump_traceback_later(2 * trial.WAIT, exit=True)
        now = time.monotonic()
        if now - last > 1 or now > end or tally.failures:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            news = {"outcomes": tally.outcomes, "failures": tally.failures, "seconds": now - last, "peak": peak}
            pipe.send(news)
            tally.outcomes.clear()
            tally.failures.clear()
            last = now
        if now > end:
            faulthandler.cancel_dump_traceback_later()
            return


if __name__ == "__main__":
    main()
