"""Write the tables and figures of README and docs from the recorded results: `python -m benchmarks.tables`.

A table stands between `<!-- table NAME -->` and `<!-- end -->`, where some names are followed by what they are about,
such as a suite or a method; names with spaces are quoted. Single figures and claims in sentences are those of
`benchmarks/claims.py`: the figures are written too, and a claim that the records contradict is an error. `--check`
writes nothing and says whether everything is up to date.
"""

import re
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims import check_claims, fill_figures
from benchmarks.cost_model import JOBS, PROCESSES, fit
from benchmarks.real_targets import auto_figures
from benchmarks.record import distinct, is_recorded, load
from candapt.commands.auto import TRIED
from candapt.methods import METHODS
from candapt.storage.provenance import CHANGED
from candapt.storage.safe_reading import format_size

ROOT = Path(__file__).parents[1]
AVERAGE = "Average"

Result = Mapping[str, Any]  # the content of a recorded file


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *sources: Result) -> str:
    """A Markdown table, and under it how it was measured."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join([*lines, "", caption(sources)] if sources else lines)


def caption(sources: Sequence[Result]) -> str:
    """How a table was measured: command, date, commit, threads, processor, and whether the code was the same."""
    commands = " and ".join(f"`{command}`" for command in distinct([source["command"] for source in sources]))
    made = [each for source in sources for each in provenances(source)]
    dates = sorted({each.get("date") or source["date"] for source in sources for each in provenances(source)})
    parts = [
        f"Measured by {commands} on {dates[0]}" + f" to {dates[-1]}" * (len(dates) > 1),
        *_commits(_values(made, "commit")),
        _threads(_values(made, "threads")),
        *_values(made, "processor"),
        *(f"torch {version}" for version in distinct([source["versions"]["torch"] for source in sources])),
    ]
    return ", ".join(parts) + _code([each.get("code") for each in made]) + "."


def provenances(source: Result) -> list[dict[str, Any]]:
    """What the figures of a record were measured with; entries are missing where that was not recorded."""
    if "measured_with" in source:
        return source["measured_with"] or [{}]
    return [{}] if "suite" in source else [dict(source)]  # earlier suites have only the threads of the parent process


def _values(made: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The different values of an entry, without those that are not known."""
    return distinct([each[name] for each in made if each.get(name) is not None])


def _commits(commits: Sequence[str]) -> list[str]:
    """The commits in short."""
    short = [commit[:8] + " with uncommitted changes" * commit.endswith(CHANGED) for commit in commits]
    return [f"commit{'s' * (len(short) > 1)} {' and '.join(short)}"] if short else []


def _threads(threads: Sequence[int]) -> str:
    """The number of threads of one training."""
    numbers = " or ".join(map(str, sorted(threads)))
    return f"{numbers} thread{'s' * (numbers != '1')}" if threads else "threads not recorded"


def _code(digests: Sequence[str | None]) -> str:
    """A remark on the code, unless it is known and the same for all."""
    known = {digest for digest in digests if digest is not None}
    remarks = [f"cells from {len(known)} versions of the code"] if len(known) > 1 else []
    if None in digests:
        remarks.append("code of some cells not recorded" if known else "code not recorded")
    return "".join(f"; {remark}" for remark in remarks)


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


def peers(part: str) -> str:
    """Processor time beside other libraries: mmd, cdd, kmeans or adaptation."""
    result = load("peers")
    result |= result["made"][part]  # parts are measured by commands of their own
    if part == "adaptation":
        return _adaptations(result)
    names = {
        "mmd": lambda row: f"{row['case']}, {row['samples']} + {row['samples']} × {row['width']}",
        "cdd": lambda row: f"{row['classes']} classes × {row['samples']} samples × {row['width']}",
        "kmeans": lambda row: (
            f"{row['samples']:,} × {row['width']}, {row['classes']} classes, {row['updates']} updates"
        ),
    }
    sides = distinct([side for row in result[part] for side in row["sides"]])
    rows = [[names[part](row), *(_side(row["sides"].get(side)) for side in sides)] for row in result[part]]
    return table(["processor time, and as a multiple of ours", *sides], rows, result)


def _side(figures: dict[str, float] | None) -> str:
    return f"{1000 * figures['seconds']:,.1f} ms (×{figures['ratio_to_ours']:.2f})" if figures else ""


def _adaptations(result: Result) -> str:
    """Whole adaptations of features, with accuracy beside time."""
    part = result["adaptation"]
    own = [[f"candapt {each['method']}", part["steps"], each] for each in part["ours"]]
    others = [[f"skada {each['method']}", each.get("steps"), each] for each in part["peers"]]
    rows = [
        [
            name,
            str(steps or ""),
            each.get("failed") or f"{each['seconds']:.1f} s",
            f"{1000 * each['seconds'] / steps:.0f} ms" if steps and "seconds" in each else "",
            f"{each['oracle_accuracy']:.1%}" if "oracle_accuracy" in each else "",
        ]
        for name, steps, each in (*own, *others)
    ]
    head = ["amazon → webcam, features", "steps", "processor time", "for each step", "oracle accuracy, seed 0"]
    return table(head, rows, result)


def steps() -> str:
    """Trainings beside the bare arithmetic of their steps."""
    result = load("steps")
    rows = []
    for row in result["rows"]:
        runs = row["runs"]
        seconds, ratio = (statistics.median(run[key] for run in runs) for key in ("seconds", "ratio"))
        bare = statistics.median(statistics.mean(run["bare_seconds"]) for run in runs)
        accuracies = ", ".join(f"{run['oracle_accuracy']:.1%}" for run in runs)
        rows.append([row["name"], f"{seconds:.1f} s", f"{bare:.1f} s", f"{ratio:.2f}", accuracies])
    head = ["amazon → webcam, features", "training", "bare arithmetic", "ratio", "oracle accuracies"]
    return table(head, rows, result)


def embed_speed() -> str:
    """Embedding from files beside the bare backbone."""
    result = load("embed-speed")
    rates, ratios = ("bare_images_per_second", "embed_images_per_second"), ("ratio", "ratio_checked")
    rows = [
        [each["backbone"], *(f"{each[key]:.1f}" for key in rates), *(f"{each[key]:.2f}" for key in ratios)]
        for each in result["backbones"]
    ]
    head = ["images a second", "bare backbone", "`candapt embed`", "ratio", "with the check of all files"]
    return table(head, rows, result)


def commands() -> str:
    """Whole commands beside their trainings."""
    result = load("commands")
    rows = [
        [f"`candapt {name}`", *(f"{each[key]:.0f} s" for key in ("elapsed", "training_elapsed", "processor"))]
        for name, each in result["commands"].items()
    ]
    return table(["command", "elapsed", "of it trainings", "processor time"], rows, result)


def profile(depth: str) -> str:
    """Where the processor time of a training goes."""
    result = load("profiles")
    run = result["runs"][depth]
    parts = sorted(run["seconds"].items(), key=lambda part: -part[1])
    rows = [[name, f"{seconds:.1f} s", f"{seconds / run['total']:.0%}"] for name, seconds in parts]
    return table(
        [f"{depth}: {run['what']}, {run['steps']} steps", "processor time", "share"],
        rows,
        {**result, **run["measured_with"]},
    )


def suite(name: str, *words: str) -> str:
    """A suite of the benchmark: mean and spread over seeds of the last round, and the paper's figure in brackets.

    Args:
        name: of the suite.
        words: rows to show in this order, by default all, and with `columns=A→W,D→A` the tasks to show and average. A
            row of another recorded suite is RECORD:ROW, and `ROW as NAME` shows a row under another name.
    """
    result = load(f"suite-{name}")
    wanted = [word for word in words if not word.startswith("columns=")]
    columns = [part for word in words if word.startswith("columns=") for part in word[len("columns=") :].split(",")]
    views = [view(name, word, columns) for word in wanted or [row["name"] for row in result["rows"]]]
    shown = [*(columns or result["columns"][:-1]), AVERAGE]
    best = {column: max(statistics.mean(each["last"][column]) for each in views) for column in shown}
    rows = [[each["name"], *(_figure(each, column, best[column]) for column in shown)] for each in views]
    return table([_title(result), *shown], rows, *sources_of(views))


def view(name: str, word: str, columns: Sequence[str] = ()) -> dict[str, Any]:
    """One row of a suite with its record; the average is over the given columns, by default as it is recorded."""
    place, _, label = word.partition(" as ")
    record, _, row_name = place.rpartition(":")
    result = load(f"suite-{record or name}")
    row = next(row for row in result["rows"] if row["name"] == row_name)
    content: dict[str, Any] = {
        **row,
        "name": label or row_name,
        "source": result,
        "columns": columns or result["columns"],
    }
    if columns:
        values = zip(*(row["last"][column] for column in columns), strict=True)
        content["last"] = row["last"] | {AVERAGE: [statistics.fmean(of_seed) for of_seed in values]}
        paper = {column: row["paper"][column] for column in columns if column in row["paper"]}
        content["paper"] = paper | ({AVERAGE: statistics.fmean(paper.values())} if len(paper) == len(columns) else {})
    return content


def sources_of(views: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records of these rows, each with the provenances of the cells that are shown of it."""
    sources = []
    for result in distinct([each["source"] for each in views]):
        if "measured_with" in result:
            shown = [places for each in views if each["source"] == result for places in _cells_of(each)]
            made = [result["measured_with"][place] for places in shown for place in places]
            result = result | {"measured_with": distinct(made)}
        sources.append(result)
    return sources


def _cells_of(row: Mapping[str, Any]) -> list[list[int]]:
    """The provenances of a row's cells, of each task that is shown; a suite may have classes for columns."""
    made: dict[str, list[int]] = row["measured_with"]
    return [made[column] for column in row["columns"] if column in made] or list(made.values())


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
    parts: dict[str, str] = {}
    for suite_name in filter(lambda each: is_recorded(f"suite-{each}"), SUITES):
        result = load(f"suite-{suite_name}")
        names = [row["name"] for row in result["rows"] if row["name"] in ("source-only", name, "can")]
        if name not in names or result["title"] in parts:
            continue
        views = [view(suite_name, each) for each in names]
        rows = [
            [each["name"], *(f"{100 * statistics.mean(each['last'][column]):.1f}" for column in result["columns"])]
            for each in views
        ]
        parts[result["title"]] = table([_title(result), *result["columns"]], rows, *sources_of(views))
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


def baselines(name: str) -> str:
    """One method on PACS, with default settings and with others, beside source-only."""
    result = load("baselines")
    rows, missing = [], []
    for row in result["rows"]:
        if row["method"] in ("source-only", name):
            flags = " ".join(f"--{flag} {_shown(value)}" for flag, value in row["changes"].items())
            title = f"`{flags}`" if flags else row["method"]
            by_task = [[run["accuracy"] for run in row["runs"] if run["task"] == task] for task in result["tasks"]]
            means = [statistics.mean(accuracies) if accuracies else None for accuracies in by_task]
            average = None if None in means else statistics.mean(mean for mean in means if mean is not None)
            if row["runs"]:
                rows.append([title, *map(_percent, (*means, average))])
            else:
                missing.append(title)
    tasks = ["→".join(domain[0].upper() for domain in task.split(" → ")) for task in result["tasks"]]
    seeds = ", ".join(map(str, range(result["seeds"])))
    head = [f"{result['features']}, seed{'s' * (result['seeds'] > 1)} {seeds}", *tasks, "Average"]
    return table(head, rows, result) + (f" Not measured yet: {', '.join(missing)}." if missing else "")


def known_labels(what: str) -> str:
    """Accuracies with known labels beside those without, of each task and on average."""
    result = load(f"known-labels-{what}")
    names = {"without": "no label", "with": "known labels", "random": "random labels", "suggested": "suggested labels"}
    rows = []
    for kind in result["means"]:
        by_task = [statistics.mean(run[kind] for run in row["runs"]) for row in result["rows"]]
        rows.append([names[kind], *map(_percent, (*by_task, result["means"][kind]))])
    seeds = ", ".join(map(str, range(result["seeds"])))
    count = f"{result['number']} labels" if what == "suggest" else f"{result['per_class']} labels of each class"
    return table([f"{count}, seeds {seeds}", *(row["task"] for row in result["rows"]), "Average"], rows, result)


def sources() -> str:
    """Three domains of PACS as sources for the fourth."""
    result = load("sources")
    kinds = {"joined": "each with its own batch norm", "pooled": "pooled as one"}
    rows = []
    for kind, title in kinds.items():
        by_target = [statistics.mean(run[kind]["accuracy"] for run in row["runs"]) for row in result["rows"]]
        rows.append([title, *map(_percent, (*by_target, result["means"][kind]))])
    for place in range(3):
        cells = []
        for row in result["rows"]:
            name = [each for each in row["runs"][0] if each not in kinds][place]
            accuracy = statistics.mean(run[name]["accuracy"] for run in row["runs"])
            cells.append(f"{_percent(accuracy)} ({name.replace('_', ' ')})")
        rows.append(["a single source" * (place == 0), *cells, ""])
    seeds = ", ".join(map(str, range(result["seeds"])))
    targets = [f"→ {row['target'].replace('_', ' ')}" for row in result["rows"]]
    return table([f"PACS, three sources, seeds {seeds}", *targets, "Average"], rows, result)


def class_shares() -> str:
    """JAN and source-only on an easy task, with the classes' shares as they are and made equal."""
    result = load("baselines")
    rows = [
        [
            "equal" if row["balanced"] else "as they are",
            str(row["batch_size"]),
            *(_percent(row["accuracies"][name]) for name in ("source-only", "jan")),
        ]
        for row in result["class_shares"]
    ]
    head = ["PACS A→P, seed 0: shares of the classes", "batch size", "source-only", "`--jan.weight 1`"]
    return table(head, rows, result)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def view_noise() -> str:
    """How far views of an image lie apart in the features."""
    result = load("view_noise")
    names = {"paper": "crop and flip (`paper`)", "strong": "zoom, flip and colors (`strong`)"}
    rows = [
        [title, *(f"{spread[kind]:.2f}" for spread in result["domains"].values()), f"{result['means'][kind]:.2f}"]
        for kind, title in names.items()
    ]
    head = [f"Office-31, {result['images']} images per domain: views differ by", *result["domains"], "Average"]
    return table(head, rows, result)


def view_choice() -> str:
    """Which views each domain of Office-31 prefers as a source."""
    result = load("view_choice")
    rows = [
        [
            *(each["backbone"], each["source"], str(each["images"])),
            *(f"{100 * each[name]:.1f}" for name in ("right_plain", "right_larger")),
            f"{each['gain']:+.3f} ± {each['error']:.3f}",
            "288×288, mirrored" if each["larger"] else "224×224",
        ]
        for each in result["sources"]
    ]
    views = ("224×224", "288×288, mirrored")
    head = ["backbone", "source", "images", *(f"right, {name}" for name in views), "log-likelihood", "chosen"]
    return table(head, rows, result)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value).lower()


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


GROUPS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "PACS, CAN": lambda run: run["collection"] == "pacs" and run["method"] == "can",
    "PACS, all": lambda run: run["collection"] == "pacs",
    "digits, CAN": lambda run: run["collection"] != "pacs" and run["method"] == "can",
    "digits, all": lambda run: run["collection"] != "pacs",
}
"""Trainings on which confidence, estimate and alarm are measured, each with its target left out of the fit."""


def confidence() -> str:
    """How well calibrated the confidence is, on targets that no fit has seen."""
    result = load("calibration")
    good = [run for run in result["trainings"] if run["fault"] == "as it is"]
    whole = [run for run in good if not run["per_class"]]
    groups = {name: [run for run in whole if holds(run)] for name, holds in GROUPS.items()}
    groups["PACS, few samples"] = [run for run in good if run["per_class"]]
    rows = [_confidence_row(name, runs) for name, runs in groups.items()]
    if is_recorded("calibration-office31"):
        office = load("calibration-office31")["runs"]
        rows.append(_confidence_row("Office-31, CAN", [run for run in office if run["method"] == "can"]))
        rows.append(_confidence_row("Office-31, all", office))
    head = [
        "runs",
        "number",
        "ECE: softmax",
        "confidence",
        "single sample",
        "class only",
        "Brier: softmax",
        "confidence",
    ]
    return table([*head, "risk-coverage: softmax", "confidence", "surest half: softmax", "confidence"], rows, result)


def _confidence_row(name: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    def mean(scope: str, figure: str) -> str:
        values = [run[scope][figure] for run in runs if scope in run]
        return f"{statistics.mean(values):.3f}" if values else ""

    halves = (f"{statistics.mean(run[key] for run in runs):.1%}" for key in ("surest_half_softmax", "surest_half"))
    scores = (mean(scope, figure) for figure in ("brier", "aurc") for scope in ("softmax", "domain"))
    errors = (mean(scope, "ece") for scope in ("softmax", "domain", "sample", "class"))
    return [name, str(len(runs)), *errors, *scores, *halves]


def estimate() -> str:
    """How far the estimated accuracy is off, in points, on targets that no fit has seen."""
    result = load("calibration")
    rows = []
    for fault in dict.fromkeys(run["fault"] for run in result["trainings"]):
        for name, kind in (("PACS", "pacs"), ("digits", "")):
            runs = [
                run
                for run in result["trainings"]
                if run["fault"] == fault and (run["collection"] == "pacs") == (kind == "pacs") and not run["per_class"]
            ]
            rows.append(_estimate_row(f"{name}, {fault}", runs))
    rows.append(_estimate_row("PACS, few samples", [run for run in result["trainings"] if run["per_class"]]))
    if is_recorded("calibration-office31"):
        office = load("calibration-office31")["runs"]
        rows.append(_estimate_row("Office-31, CAN", [run for run in office if run["method"] == "can"]))
        rows.append(_estimate_row("Office-31, all", office))
    head = ["runs", "number", "accuracy", "mean absolute error", "largest error", "too high by, on average"]
    return table(head, rows, result)


def _estimate_row(name: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    errors = [100 * (run["domain"]["mean"] - run["accuracy"]) for run in runs]
    sizes = [abs(error) for error in errors]
    accuracy = statistics.mean(run["accuracy"] for run in runs)
    figures = [f"{statistics.mean(sizes):.1f}", f"{max(sizes):.1f}", f"{statistics.mean(errors):+.1f}"]
    return [name, str(len(runs)), f"{accuracy:.1%}", *figures]


def alarm() -> str:
    """How often the alarm speaks, on targets that no fit has seen."""
    result = load("calibration")
    groups = {
        "PACS": [run for run in result["trainings"] if run["collection"] == "pacs" and not run["per_class"]],
        "digits": [run for run in result["trainings"] if run["collection"] != "pacs"],
    }
    if is_recorded("calibration-office31"):
        groups["Office-31"] = [run for run in load("calibration-office31")["runs"] if "bad" in run]
    rows = []
    for name, runs in groups.items():
        cells = []
        for bad in (True, False):
            spoken = [bool(run["warnings"]) for run in runs if run["bad"] == bad]
            cells.append(f"{sum(spoken)} of {len(spoken)}")
        rows.append([name, *cells])
    return table(["runs", "it warns of bad runs", "it warns of good runs"], rows, result)


def real_targets() -> str:
    """Targets with classes missing, thinned out or unknown."""
    result = load("real-targets")
    columns = {"accuracy": "accuracy", "source_only": "source-only", "whole_target": "by the whole target"}
    columns |= {
        "total_variation": "total variation",
        "auc": "area under the ROC curve",
        "h_score": "H-score",
        "called_unknown": "called unknown",
    }
    columns |= {"warned": "warned", "estimate_error": "error of the estimate"}
    plain = {"total_variation", "auc"}
    rows = []
    for name, means in result["summary"].items():
        shown = [(key, means.get(key)) for key in columns]
        cells = ["" if each is None else f"{each:.2f}" if key in plain else f"{each:.1%}" for key, each in shown]
        rows.append([name, str(means["trainings"]), *cells])
    return table(["target", "trainings", *columns.values()], rows, result)


def auto() -> str:
    """What `--method auto` keeps, beside each method that it tries."""
    result = load("real-targets")
    rows = [_auto_row(name, group) for name, group in result["auto"].items()]
    head = ["target", "tasks", *(METHODS[name].title for name in TRIED), "auto", "kept"]
    return table([*head, "most below source-only on a task"], rows, result)


def auto_left_out() -> str:
    """The same on PACS, by estimates that were fitted without the target of each task; without DAN."""
    result = load("calibration")
    tasks: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for each in result["trainings"]:
        if each["collection"] == "pacs" and each["fault"] == "as it is" and each["per_class"] is None:
            figures = {"accuracy": each["accuracy"], "estimate": each["domain"]["mean"]}
            tasks.setdefault((each["source"], each["target"], each["seed"]), {})[each["method"]] = figures
    group = auto_figures(list(tasks.values()))
    head = ["target", "tasks", *(METHODS[name].title for name in group["methods"]), "auto", "kept"]
    return table([*head, "most below source-only on a task"], [_auto_row("pacs full", group)], result)


def _auto_row(name: str, group: Mapping[str, Any]) -> list[str]:
    cells = [f"{value:.1%}" for value in (*group["methods"].values(), group["auto"])]
    kept = ", ".join(f"{METHODS[method].title} {count}" for method, count in group["kept"].items() if count)
    return [name, str(group["tasks"]), *cells, kept, f"{100 * group['most_below']:.1f} points"]


def first_looks() -> str:
    """What is seen of targets before any training."""
    result = load("first-looks")
    rows = []
    for name, means in result["summary"].items():
        counts = [f"{means[key]} of {means['tasks']}" for key in ("differ", "lacks_classes", "found_unknown")]
        shares = [f"{means[key]:.2f}" for key in ("total_variation", "of_source")]
        unknown = [f"{means[key]:.1%}" for key in ("called_unknown", "most_called_unknown")]
        rows.append([name, *shares, *counts, *unknown])
    head = ["target", "total variation", "of the source's proportions", "proportions are used", "classes are missing"]
    return table([*head, "unknown objects are found", "called unknown", "at most"], rows, result)


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


def review() -> str:
    """How often the interval of a review holds the true accuracy, and how wide it is."""
    result = load("review")
    rows = []
    for run in result["runs"]:
        plain, strata, classes = (run["plans"][kind] for kind in ("none", "confidence", "class"))
        cells = [f"{run['predictions']:,}", f"{run['accuracy']:.1%}"]
        for plan in (plain["50"], strata["50"], classes["50"]):
            cells += [f"{plan['coverage']:.1%}", f"{100 * plan['width']:.1f}"]
        narrower = f"{run['narrower_by_confidence']['50']:.0%}"
        cells = [
            *cells[:6],
            narrower,
            *cells[6:],
            f"{strata['200']['coverage']:.1%}",
            f"{100 * strata['200']['width']:.1f}",
        ]
        rows.append([run["run"], *cells])
    head = ["run", "predictions", "accuracy", "anywhere: covered", "width", "by confidence: covered", "width"]
    head += ["narrower by", "by class: covered", "width", "by confidence, 200 answers: covered", "width"]
    return table(head, rows, result)


def startup() -> str:
    """Processor time until the command line answers."""
    result = load("startup")
    rows = [[f"`{name}`", f"{seconds:.2f} s"] for name, seconds in result["seconds"].items()]
    return table(["command", "processor time"], rows, result)


def scaling(part: str) -> str:
    """Bars and costs of more processes, samples and classes."""
    made = load("scaling")["parts"].get(part)
    if made is None:
        return "Not measured yet."
    if part == "stream":
        head = ["samples", "bare product", "k-means step", "ratio", "peak memory"]
        rows = [
            [f"{e['samples']:,}", f"{e['bare']:.1f} s", f"{e['step']:.1f} s", f"{e['ratio']:.2f}", _gib(e["peak_gib"])]
            for e in made["sizes"]
        ]
    elif part == "clustering":
        head = ["features", "shape", "classes", "two processes", "four processes"]
        rows = [
            [name, "×".join(f"{n:,}" for n in e["shape"]), str(e["classes"]), *map(_same, e["equal"].values())]
            for name, e in made.items()
            if name != "measured_with"
        ]
    elif part == "adapt":
        head = ["source", "target", "rounds", "processor time", "peak memory"]
        counts = [f"{made['source']:,}", f"{made['target']:,}", str(made["rounds"])]
        rows = [[*counts, f"{made['seconds']:.0f} s", _gib(made["peak_gib"])]]
    elif part == "office":
        head = ["processes", "seed 0", "seed 1", "seed 2"]
        rows = [[count, *(f"{100 * value:.1f}%" for value in each)] for count, each in made["accuracy"].items()]
    else:
        head = ["processes", "batch", "step", "exchange of gradients"]
        each = made["steps"]
        times = [(e["processes"], e["batch"], e["seconds"], e["exchange"]) for e in each]
        rows = [[str(n), str(batch), f"{1e3 * own:.1f} ms", f"{1e3 * sent:.2f} ms"] for n, batch, own, sent in times]
    return table(head, rows, {**made["measured_with"], "versions": load("scaling")["versions"]})


def _gib(size: float) -> str:
    return f"{size:.2f} GiB"


def _same(equal: bool) -> str:
    return "same labels" if equal else "other labels"


def methods() -> str:
    """What `--method` can be."""
    rows = [
        [f"[{name}]({name}.md)", (method.__doc__ or "").splitlines()[0], method.reference]
        for name, method in METHODS.items()
    ]
    return table(["`--method`", "what it does", "paper"], rows)


def export() -> str:
    """Exported files against PyTorch: agreement, speed on the same threads, and size."""
    result = load("export")
    names = {"torch": "PyTorch", "onnx": "ONNX", "int8": "ONNX, int8"}
    rows = []
    for case in result["cases"]:
        for kind, name in names.items():
            agreement = case["agreement"].get(kind)
            rate, base = case["per_second"][kind], case["per_second"]["torch"]
            compared = ["", "", "", ""]
            if agreement:
                compared = [
                    str(agreement["samples"]),
                    f"{agreement['same_class']:.1%}",
                    f"{agreement['max_difference']:.1e}",
                    f"{agreement['max_confidence_difference']:.1e}",
                ]
            size = f"{case['bytes'][kind] / 2**20:.1f} MiB" if kind in case["bytes"] else ""
            rows.append([f"{case['case']}: {name}", *compared, f"{rate:,.0f}", f"{rate / base:.2f}", size])
    head = ["", "samples", "same class", "largest difference of a probability", "of the confidence"]
    return table([*head, "samples a second", "ratio", "size"], rows, result)


def serve() -> str:
    """Requests to a server, all at once."""
    result = load("serve")
    rows = [
        [
            row["model"],
            row["engine"],
            *(f"{row[name]}" for name in ("lost", "wrong")),
            *(f"{row[name]:.2f} s" for name in ("p50", "p95")),
            f"{row['images_per_second']:.0f}",
            *(format_size(row[name]) for name in ("memory_before", "memory_peak")),
        ]
        for row in result["rows"]
    ]
    head = [f"{result['requests']} requests at once", "computed by", "lost", "wrong", "p50", "p95", "images a second"]
    return table([*head, "memory before", "peak"], rows, result)


def hostile() -> str:
    """What a server answers to requests that are meant to do harm."""
    result = load("serve")
    rows = [[row["request"], str(row["status"]), f"{row['seconds']:.1f} s"] for row in result["hostile"]["rows"]]
    return table(["request", "status", "answered after"], rows, result)


def cost_model() -> str:
    """Hours that larger jobs would take by the fitted costs."""
    costs, recorded = fit(), load("scaling")
    rows = []
    for job in JOBS:
        for count in PROCESSES:
            hours = costs.hours(job, count)
            rows.append([job.name, str(count), *(f"{each:,.2f} h" for each in (*hours, sum(hours)))])
    parts = [recorded["parts"][name]["measured_with"] for name in ("stream", "step")]
    sources = [{**each, "versions": recorded["versions"]} for each in parts]
    return table(["job", "processes", "embed", "cluster", "steps", "together"], rows, *sources, load("embed"))


TABLES: dict[str, Callable[..., str]] = {
    each.__name__: each
    for each in (
        demo,
        features,
        losses,
        steps,
        embed_speed,
        commands,
        peers,
        profile,
        methods,
        scaling,
        cost_model,
        startup,
        throughput,
        suite,
        times,
        method,
        oracle,
        pseudo_labels,
        baselines,
        class_shares,
        known_labels,
        sources,
        view_choice,
        view_noise,
        selection,
        confidence,
        alarm,
        estimate,
        real_targets,
        auto,
        auto_left_out,
        first_looks,
        kills,
        tune,
        fuzz,
        report,
        review,
        export,
        serve,
        hostile,
    )
}


def fill(text: str) -> str:
    """The text with every table and figure written anew."""

    def written(match: re.Match[str]) -> str:
        name, *about = shlex.split(match[1])
        return f"<!-- table {match[1]} -->\n{TABLES[name](*about)}\n<!-- end -->"

    return fill_figures(re.sub(r"<!-- table ([^\n]+?) -->\n.*?<!-- end -->", written, text, flags=re.DOTALL))


def pages() -> list[Path]:
    """The pages that have tables, figures or claims."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    stale, wrong = [], []
    for page in pages():
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        if (new := fill(text)) != text:
            stale.append(name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
        wrong += [f"{name}: {problem}" for problem in check_claims(new)]
    print(f"{'Stale' if '--check' in sys.argv else 'Written'}: {', '.join(stale) or 'none'}")
    print("\n".join(wrong) or "All claims hold.")
    return int(bool(wrong) or (bool(stale) and "--check" in sys.argv))


if __name__ == "__main__":
    sys.exit(main())
