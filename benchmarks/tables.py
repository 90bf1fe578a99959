"""Write the tables of README and docs from the recorded results: `python -m benchmarks.tables`.

A table stands between `<!-- table NAME -->` and `<!-- end -->`; `--check` only says whether all are up to date.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS
from candapt.methods import METHODS

ROOT = Path(__file__).parents[1]


def load(name: str) -> dict[str, Any]:
    """One recorded result."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def table(head: Sequence[str], rows: Sequence[Sequence[str]], source: dict[str, Any] | None = None) -> str:
    """A Markdown table, and under it the command that measured it."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    if source is None:
        return "\n".join(lines)
    where = f"{source['threads']} threads, torch {source['versions']['torch']}"
    return "\n".join([*lines, "", f"Measured by `{source['command']}` on {source['date']}, {where}."])


def demo() -> str:
    """The demonstration."""
    result = load("demo")
    methods = ("source-only", "can")
    rows = [
        [
            method,
            *(f"{run[method]['accuracy']:.1%}" for run in result["runs"]),
            f"{statistics.mean(run[method]['accuracy'] for run in result['runs']):.1%}",
            f"{statistics.mean(run[method]['seconds'] for run in result['runs']):.0f} s",
        ]
        for method in methods
    ]
    return table(["method", *(f"seed {seed}" for seed in result["seeds"]), "mean accuracy", "time"], rows, result)


def features() -> str:
    """Amazon to webcam from feature files."""
    result = load("features")
    rows = []
    for method in dict.fromkeys(run["method"] for run in result["runs"]):
        runs = [run for run in result["runs"] if run["method"] == method]
        accuracies = [run["accuracy"] for run in runs]
        rows.append(
            [
                method,
                *(f"{accuracy:.1%}" for accuracy in accuracies),
                f"{statistics.mean(accuracies):.1%}",
                f"{statistics.mean(run['seconds'] for run in runs):.0f} s",
            ]
        )
    seeds = dict.fromkeys(run["seed"] for run in result["runs"])
    return table([result["task"], *(f"seed {seed}" for seed in seeds), "mean accuracy", "time"], rows, result)


def losses() -> str:
    """The discrepancy against a loop over pairs of classes."""
    result = load("losses")
    rows = [
        [
            case["case"],
            f"{case['ours_ms']:.1f} ms",
            f"{case['loop_ms']:.0f} ms",
            f"{case['ratio']:.0f}",
        ]
        for case in result["cases"]
    ]
    return table(["discrepancy, forward and backward", "ours", "loop over pairs", "ratio"], rows, result)


def report() -> str:
    """What a page of photographs takes."""
    result = load("report")
    spent = [result["seconds"][name] for name in ("map", "page")]
    cells = [f"{each['clock']:.0f} s, {each['core']:.0f} s on a core" for each in spent]
    rows = [[result["task"], f"{sum(result['images'].values()):,}", *cells, f"{result['megabytes']:.1f} MB"]]
    return table(["run", "images", "both maps", "`candapt report`", "size"], rows, result)


def methods() -> str:
    """What `--method` can be."""
    rows = []
    for name, method in METHODS.items():
        first = (sys.modules[method.__module__].__doc__ or "").splitlines()[0]
        papers = re.findall(r"\(([^()]*\d{4}[^()]*)\)", first)
        rows.append([f"[{name}](docs/methods/{name}.md)", (method.__doc__ or "").splitlines()[0], "".join(papers[-1:])])
    return table(["`--method`", "what it does", "paper"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "features": features,
    "losses": losses,
    "report": report,
    "methods": methods,
}


def fill(text: str) -> str:
    """The text with every table written anew."""

    def written(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", written, text, flags=re.DOTALL)


def main() -> int:
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        if (new := fill(text)) != text:
            stale.append(page.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    print(f"{'Stale' if '--check' in sys.argv else 'Written'}: {', '.join(stale) or 'none'}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
