"""Run suites of `candapt benchmark` and record what they give: `python -m benchmarks.suites office31 digits demo`.

Without names all are run. A suite that was interrupted goes on where it was: its cells are kept below `--out`. Data is
looked for below `../shared`, or the folder that CANDAPT_SHARED names.

Other flags go to `candapt benchmark` as they are; such a run needs a name of its own:
`python -m benchmarks.suites office31 --name office31-sgd --training.optimizer sgd`, or with images in place of features
`python -m benchmarks.suites office31 --name office31-last-stage --data ../shared/data/office31 --finetune last-stage`.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import distinct, record
from candapt.commands.main import main as candapt
from candapt.storage.provenance import without_machine_paths

SHARED = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared")) / "data"
FEATURES = SHARED / "office31-resnet50-features.npz"
PACS = SHARED / "pacs-resnet50-features.npz"
DATA: dict[str, Path | None] = {
    "demo": None,
    "digits": SHARED / "digits",
    "office31": FEATURES,
    "office31-table3": FEATURES,
    "office31-table4": FEATURES,
    "office31-beta": FEATURES,
    "pacs": PACS,
}
"""Where the data of each suite is."""
SEEDS, JOBS = "0,1,2", "2"


def main(arguments: Sequence[str] | None = None) -> int:
    options, settings = read_arguments(arguments)
    for suite in options.suites or DATA:
        name = options.name or suite
        out = options.out / name
        words = benchmark_words(suite, options, settings)
        if code := candapt([*words, "--jobs", options.jobs, "--out", str(out)]):
            return code
        record(f"suite-{name}", {"command": command(suite, options, settings), **compact(out)})
    return 0


def read_arguments(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and the flags for `candapt benchmark`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"Of {', '.join(DATA)}.")
    parser.add_argument("--methods", help="By default all of the suite.")
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--data", type=Path, help="In place of where the suite's data is below ../shared.")
    parser.add_argument("--jobs", default=JOBS)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--name", help="Of its folder and, as suite-NAME, of what is recorded; by default the suite's.")
    return parser.parse_known_args(arguments)


def benchmark_words(suite: str, options: argparse.Namespace, settings: Sequence[str]) -> list[str]:
    """What `candapt` is called with, but for the processes and the folder."""
    data = options.data or DATA[suite]
    words = ["benchmark", suite, *(["--data", str(data)] if data else []), "--seeds", options.seeds]
    return [*words, *(["--methods", options.methods] if options.methods else []), *settings]


def command(suite: str, options: argparse.Namespace, settings: list[str]) -> str:
    """The command that gives one suite alone, into any folder."""
    words = ["python", "-m", "benchmarks.suites", suite]
    for name, default in (("name", None), ("methods", None), ("seeds", SEEDS), ("data", None), ("jobs", JOBS)):
        if (value := getattr(options, name)) != default:
            words += [f"--{name}", str(value)]
    return shlex.join(map(without_machine_paths, [*words, *settings]))


def compact(out: Path) -> dict[str, Any]:
    """What the tables need of a benchmark's folder: accuracies, seconds and provenance of every seed."""
    results, timing = (json.loads((out / name).read_text(encoding="utf-8")) for name in ("results.json", "timing.json"))
    provenances = distinct([cell["provenance"] for cell in timing["cells"]])
    seconds: dict[str, dict[str, list[float]]] = {row["name"]: {} for row in results["rows"]}
    made: dict[str, dict[str, list[int]]] = {row["name"]: {} for row in results["rows"]}
    for cell in timing["cells"]:
        seconds[cell["row"]].setdefault(cell["task"], []).append(cell["seconds"])
        made[cell["row"]].setdefault(cell["task"], []).append(provenances.index(cell["provenance"]))
    return {
        "measured_with": provenances,
        "cell_versions": results["versions"],
        **{name: results[name] for name in ("suite", "title", "protocol", "seeds", "networks", "columns", "rule")},
        "rows": [
            {
                "name": row["name"],
                "seconds": seconds[row["name"]],
                "measured_with": made[row["name"]],  # of each seed, as an index into the list above
                "paper": {name: figure["mean"] for name, figure in row["paper"].items()},
                **{kind: {name: each["values"] for name, each in row[kind].items()} for kind in KINDS},
            }
            for row in results["rows"]
        ],
    }


KINDS = ("last", "chosen", "oracle")

if __name__ == "__main__":
    sys.exit(main())
