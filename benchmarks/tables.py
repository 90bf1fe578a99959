"""Write the tables of README and docs from the recorded results: `python -m benchmarks.tables`.

A table stands between `<!-- table NAME -->` and `<!-- end -->`, where some names are followed by what they are about,
such as a suite or a method; `--check` only says whether all are up to date.
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
    where = f"{source['threads']} thread{'s' * (source['threads'] != 1)}, torch {source['versions']['torch']}"
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


def throughput() -> str:
    """The whole network trained on images, against the bare backbone."""
    result = load("throughput")
    bare = statistics.mean(result["bare_images_per_second"])
    rates = [f"{result['training_images_per_second']:.1f}", f"{bare:.1f}", f"{result['ratio']:.2f}"]
    rows = [
        [
            f"{result['rounds']} rounds of {result['steps']} steps, {result['precision']}",
            *rates,
            " → ".join(f"{loss:.2f}" for loss in result["classification"]),
            " → ".join(f"{accuracy:.1%}" for accuracy in result["oracle_accuracy"]),
        ]
    ]
    head = ["amazon → webcam, whole ResNet-50", "images a second", "bare backbone", "ratio"]
    return table([*head, "source cross-entropy, by round", "oracle accuracy, by round"], rows, result)


def suite(name: str, *only: str) -> str:
    """A suite of the benchmark: mean and spread over seeds of the last round, and the paper's figure in brackets.

    Args:
        name: of the suite.
        only: rows to show; by default all.
    """
    result = load(f"suite-{name}")
    shown = [row for row in result["rows"] if not only or row["name"] in only]
    best = {column: max(statistics.mean(row["last"][column]) for row in shown) for column in result["columns"]}
    rows = [[row["name"], *(_figure(row, column, best[column]) for column in result["columns"])] for row in shown]
    return table([_title(result), *result["columns"]], rows, result)


def times(name: str) -> str:
    """A suite that was timed: accuracy and seconds of each task."""
    result = load(f"suite-{name}")
    rows = []
    for row in result["rows"]:
        accuracies = [f"{100 * statistics.mean(row['last'][column]):.1f}" for column in result["columns"]]
        seconds = [statistics.mean(values) for values in row["seconds"].values()]
        rows.append([f"{row['name']}, accuracy", *accuracies])
        rows.append([f"{row['name']}, seconds", *(f"{each:.0f}" for each in (*seconds, statistics.mean(seconds)))])
    return table([_title(result), *result["columns"]], rows, result)


def _title(result: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, result["seeds"]))
    return f"{result['title']}, seed{'s' * (len(result['seeds']) > 1)} {seeds}"


def _figure(row: dict[str, Any], column: str, best: float) -> str:
    values = row["last"][column]
    mean = statistics.mean(values)
    text = f"{100 * mean:.1f}"
    text = f"**{text}**" if mean == best else text
    if len(values) > 1:
        text += f" ± {100 * statistics.stdev(values):.1f}"
    return text + (f" ({row['paper'][column]:.1f})" if column in row["paper"] else "")


def method(name: str) -> str:
    """What one method reached in each suite beside source-only and CAN."""
    shown = list(dict.fromkeys(["source-only", name, "can"]))
    parts: dict[str, str] = {}
    for result in (load(f"suite-{each}") for each in SUITES if (RESULTS / f"suite-{each}.json").exists()):
        rows = [
            [row["name"], *(f"{100 * statistics.mean(row['last'][column]):.1f}" for column in result["columns"])]
            for row in result["rows"]
            if row["name"] in shown
        ]
        if any(row[0] == name for row in rows) and result["title"] not in parts:
            parts[result["title"]] = table([_title(result), *result["columns"]], rows, result)
    return "\n\n".join(parts.values())


SUITES = ("office31", "digits", "demo")
"""Recorded suites in which methods are looked for."""


def pseudo_labels() -> str:
    """The first clustering, and what a network trained on its labels reaches."""
    result = load("pseudo_labels")
    kinds = {"first_clustering": "first clustering", "pseudo-fixed": "pseudo-fixed, trained on its labels"}
    rows = [
        [
            title,
            *(f"{100 * statistics.mean(task[kind]):.1f}" for task in result["tasks"].values()),
            f"{100 * result['means'][kind]:.1f}",
        ]
        for kind, title in kinds.items()
    ]
    seeds = ", ".join(map(str, result["seeds"]))
    return table([f"Office-31, seeds {seeds}", *result["tasks"], "Average"], rows, result)


def oracle() -> str:
    """What each choice of a round reaches on Office-31: the last, the one chosen without labels, the oracle's."""
    result = load("suite-office31")
    kinds = ("last", "chosen", "oracle")
    average = result["columns"][-1]
    rows = [
        [row["name"], *(f"{100 * statistics.mean(row[kind][average]):.1f}" for kind in kinds)] for row in result["rows"]
    ]
    return table([result["title"], "last round", f"chosen: {result['rule']}", "oracle"], rows, result)


def selection() -> str:
    """How well each label-free score chooses."""
    result = load("selection")
    rows = [
        [
            f"`{name}`" + (f" ({rule['cells']} runs)" if rule["cells"] < result["cells"] else ""),
            f"{rule['accuracy']:.1%}",
            *(f"{100 * rule[figure]:+.1f}" for figure in ("loss", "worst_task", "worst_row")),
            *("" if rule[figure] is None else f"{rule[figure]:.2f}" for figure in ("rounds", "runs")),
        ]
        for name, rule in sorted(result["rules"].items(), key=lambda item: item[1]["loss"])
    ]
    rows += [["oracle", f"{result['oracle']:.1%}", "+0.0", "", "", "", ""]]
    rows += [["source-only", f"{result['source_only']:.1%}", "", "", "", "", ""]]
    seeds = ", ".join(map(str, result["seeds"]))
    head = [
        f"{result['cells']} runs: {len(result['methods'])} methods, seeds {seeds}",
        "accuracy",
        "oracle's is higher by",
        "least gain, task",
        "least gain, method on a task",
    ]
    return table([*head, "rank correlation, rounds", "rank correlation, runs"], rows, result)


def alarm() -> str:
    """How often the alarm is right."""
    result = load("alarm")
    rows = [
        [case, "silent" if case == "good" else "speaks", f"{counts['right']} of {counts['of']}"]
        for case, counts in result["cases"].items()
    ]
    return table(["case", "should be", "is"], rows, result)


def estimate() -> str:
    """How far the estimated accuracy is off."""
    result = load("estimate")
    rows = [
        [
            name,
            *(
                f"{100 * fitted[figure]:.1f}"
                for figure in ("mean_absolute_error", "mean_absolute_error_halfway", "margin")
            ),
            ", ".join(f"{target} {100 * error:.1f}" for target, error in fitted["by_target"].items()),
        ]
        for name, fitted in result["formulas"].items()
    ]
    head = ["formula", "mean absolute error, last round", "halfway", "nine of ten are within", "by target left out"]
    return table(head, rows, result)


def kills() -> str:
    """Runs that were killed and resumed."""
    result = load("kills")
    rows = [[run["kind"], str(run["kills"]), str(run["equal"])] for run in result["runs"]]
    return table(["runs on", "killed", "equal to an undisturbed run, bit for bit"], rows, result)


def tune(score: str = "") -> str:
    """The result of a search, by the default score or another one, and by the labels that it never saw."""
    result = load(f"tune-{score}" if score else "tune")
    rows = [
        [name, str(trial["trial"]), f"{trial['score']:.4f}", f"{trial['oracle_accuracy']:.1%}"]
        for name, trial in ((name, result[name]) for name in ("defaults", "winner"))
    ]
    head = [f"{result['trials']} trials, {result['pruned']} pruned, killed {result['kills']} times", "trial"]
    return table([*head, f"`{result['score']}`", "oracle accuracy"], rows, result)


def fuzz() -> str:
    """What came of changed files, reader by reader."""
    result = load("fuzz")
    rows = [
        [
            name,
            f"{counts['minutes']:.0f} min",
            *(f"{counts.get(figure, 0):,}" for figure in ("files", "read", "refused")),
            f"{counts['peak_mib']} MiB",
            str(len(counts["failures"])),
        ]
        for name, counts in result["readers"].items()
    ]
    return table(["reader", "time", "files", "read", "refused", "most memory", "anything else"], rows, result)


def report() -> str:
    """What a page of photographs takes."""
    result = load("report")
    spent = [result["seconds"][name] for name in ("map", "page")]
    cells = [f"{each['clock']:.0f} s, {each['core']:.0f} s on a core" for each in spent]
    rows = [[result["task"], f"{sum(result['images'].values()):,}", *cells, f"{result['megabytes']:.1f} MB"]]
    return table(["run", "images", "both maps", "`candapt report`", "size"], rows, result)


def startup() -> str:
    """Processor time until the command line answers."""
    result = load("startup")
    rows = [[f"`{name}`", f"{seconds:.2f} s"] for name, seconds in result["seconds"].items()]
    return table(["command", "processor time"], rows, result)


def methods() -> str:
    """What `--method` can be."""
    rows = [
        [f"[{name}]({name}.md)", (method.__doc__ or "").splitlines()[0], method.reference]
        for name, method in METHODS.items()
    ]
    return table(["`--method`", "what it does", "paper"], rows)


TABLES: dict[str, Callable[..., str]] = {
    each.__name__: each
    for each in (
        demo,
        features,
        losses,
        methods,
        startup,
        throughput,
        suite,
        times,
        method,
        oracle,
        pseudo_labels,
        selection,
        alarm,
        estimate,
        kills,
        tune,
        fuzz,
        report,
    )
}


def fill(text: str) -> str:
    """The text with every table written anew."""

    def written(match: re.Match[str]) -> str:
        name, *about = match[1].split()
        return f"<!-- table {match[1]} -->\n{TABLES[name](*about)}\n<!-- end -->"

    return re.sub(r"<!-- table ([\w -]+) -->\n.*?<!-- end -->", written, text, flags=re.DOTALL)


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
