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
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import record
from candapt.commands.main import main as candapt

SHARED = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared")) / "data"
FEATURES = SHARED / "office31-resnet50-features.npz"
DATA: dict[str, Path | None] = {
    "demo": None,
    "digits": SHARED / "digits",
    "office31": FEATURES,
    "office31-table3": FEATURES,
    "office31-table4": FEATURES,
    "office31-beta": FEATURES,
}
"""Where the data of each suite is."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"Of {', '.join(DATA)}.")
    parser.add_argument("--methods", help="By default all of the suite.")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--data", type=Path, help="In place of where the suite's data is below ../shared.")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--name", help="Of its folder and, as suite-NAME, of what is recorded; by default the suite's.")
    options, settings = parser.parse_known_args()
    for suite in options.suites or DATA:
        name, data = options.name or suite, options.data or DATA[suite]
        out = options.out / name
        words = ["benchmark", suite, *(["--data", data] if data else []), "--seeds", options.seeds]
        words += ["--methods", options.methods] if options.methods else []
        words += settings
        if code := candapt([str(word) for word in (*words, "--jobs", options.jobs, "--out", out)]):
            return code
        record(f"suite-{name}", compact(out))
    return 0


def compact(out: Path) -> dict[str, Any]:
    """What the tables need of a benchmark's folder: accuracies and seconds of every seed."""
    results, timing = (json.loads((out / name).read_text(encoding="utf-8")) for name in ("results.json", "timing.json"))
    seconds: dict[str, dict[str, list[float]]] = {row["name"]: {} for row in results["rows"]}
    for cell in timing["cells"]:
        seconds[cell["row"]].setdefault(cell["task"], []).append(cell["seconds"])
    return {
        **{name: results[name] for name in ("suite", "title", "protocol", "seeds", "networks", "columns", "rule")},
        "rows": [
            {
                "name": row["name"],
                "seconds": seconds[row["name"]],
                "paper": {name: figure["mean"] for name, figure in row["paper"].items()},
                **{kind: {name: each["values"] for name, each in row[kind].items()} for kind in KINDS},
            }
            for row in results["rows"]
        ],
    }


KINDS = ("last", "chosen", "oracle")

if __name__ == "__main__":
    sys.exit(main())
