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
    where = f"{source['cores']} cores, torch {source['versions']['torch']}" if "versions" in source else ""
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


def methods() -> str:
    """What `--method` can be."""
    rows = []
    for name, method in METHODS.items():
        module = sys.modules[method.__module__].__doc__ or ""
        page = f"[{name}](docs/methods/{name}.md)" if (ROOT / f"docs/methods/{name}.md").exists() else name
        rows.append(
            [page, (method.__doc__ or "").splitlines()[0], re.sub(r"^[^(]*", "", module.splitlines()[0]).strip("()., ")]
        )
    return table(["`--method`", "what it does", "source"], rows)


TABLES: dict[str, Callable[[], str]] = {"demo": demo, "methods": methods}


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
