"""One page for several runs."""

from collections.abc import Sequence

from candapt.errors import UserError
from candapt.report import plots, words
from candapt.report.collect import Run
from candapt.report.page import Points, Table, render
from candapt.report.plots import Chart, Curve
from candapt.report.run_page import class_shares, map_charts, shown_setting
from candapt.report.thumbnails import BUDGET, thumbnails_of
from candapt.runs import leaves

MAPS = 4
"""Runs whose maps are shown, at most."""
CURVE = "of-"
"""What the keys of charts by round begin with."""
BARS = 4
"""Runs whose predicted classes are shown side by side, at most."""


def comparison_page(runs: Sequence[Run], title: str | None = None, measured: Sequence[float] | None = None) -> str:
    """The page as text.

    Args:
        runs: two or more.
        title: by default their task, or how many they are.
        measured: accuracy of each by true labels; by default what the runs say, if all do.
    """
    if measured is None:
        measured = [run.oracle["accuracy"] for run in runs if run.oracle]
    accuracies = list(measured) if len(measured) == len(runs) else []
    names = distinct_names(runs)
    tasks = list(dict.fromkeys(run.task for run in runs))
    maps, points = compared_maps(runs, names)
    every = compared_curves(runs, names)
    folded = [chart for chart in every if words.is_minor(chart.key.removeprefix(CURVE))]
    sections = {
        "curves": [chart for chart in every if chart not in folded],
        "other_curves": folded,
        "maps": maps,
        "counts": compared_classes(runs, names),
    }
    return render(
        "comparison.html",
        kind=": comparison",
        title=title or (tasks[0] if len(tasks) == 1 else f"{len(runs)} runs"),
        charts=[chart for group in sections.values() for chart in group],
        points=points,
        verdict=verdict(runs, names, accuracies),
        warnings=[
            (name, str(each.get("sentence", "")))
            for name, run in zip(names, runs, strict=True)
            for each in run.summary.get("warnings") or []
        ],
        sections=sections,
        oracle=bool(accuracies) or any(run.oracle for run in runs),
        class_names=runs[0].classes if maps else (),
        overview=overview(runs, names, accuracies),
        agreement=agreement(runs, names),
        differences=differences(runs, names),
    )


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its folder's name, with as many of those above as it takes to tell them apart."""
    paths = [run.folder.absolute().parts for run in runs]
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError("The same run was named twice: name each once.")


def verdict(runs: Sequence[Run], names: Sequence[str], accuracies: Sequence[float]) -> str:
    """The comparison in a sentence, by what is known without labels first."""
    known = {
        name: run.summary["estimated_accuracy"]["value"]
        for name, run in zip(names, runs, strict=True)
        if (run.summary.get("estimated_accuracy") or {}).get("value") is not None
    }
    told = []
    if len(known) == len(runs):
        best = max(known, key=known.__getitem__)
        told.append(f"Without labels {best} looks best, with an estimated accuracy of {known[best]:.0%}.")
    if accuracies:
        measured = dict(zip(names, accuracies, strict=True))
        best, worst = max(measured, key=measured.__getitem__), min(measured, key=measured.__getitem__)
        told.append(f"Measured with true labels (oracle), {best} is right on {measured[best]:.1%} of the target")
        told[-1] += f" and {worst} on {measured[worst]:.1%}." if best != worst else "."
    if not told:
        told.append(f"{len(runs)} runs side by side; none has an accuracy to compare, so look at the figures below.")
    return " ".join(told)


def overview(runs: Sequence[Run], names: Sequence[str], accuracies: Sequence[float]) -> Table:
    """One line a run."""
    facts = [{name: value for name, value, _ in words.facts(run)} for run in runs]
    for row, accuracy in zip(facts, accuracies, strict=False):  # none, or one for each
        row[words.MEASURED] = f"{accuracy:.1%}"
    for row, run in zip(facts, runs, strict=True):
        row |= {"Task": run.task, "Method": run.method, "Seed": str(run.summary.get("seed", ""))}
    present = dict.fromkeys(key for row in facts for key in row)
    columns = sorted(present, key=lambda key: "ccuracy" not in key)  # what matters most stands first
    rows = [(name, *(row.get(key, "") for key in columns)) for name, row in zip(names, facts, strict=True)]
    return Table("What is known of each run", ("run", *(name.lower() for name in columns)), rows)


def compared_curves(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    """Every number that two or more runs have by round."""
    keys = dict.fromkeys(key for run in runs for record in run.rounds for key in record)
    charts = []
    for key in keys:
        lines = [
            Curve(name, [each["round"] for each in having], [each[key] for each in having])
            for name, run in zip(names, runs, strict=True)
            if (having := [each for each in run.rounds if isinstance(each.get(key), int | float)])
        ]
        if len(lines) > 1 and key not in words.SILENT:
            told = words.metric(key)
            charts.append(Chart(f"{CURVE}{key}", told.title, told.note, plots.curves(lines, percent=told.percent)))
    return charts


def compared_maps(runs: Sequence[Run], names: Sequence[str]) -> tuple[list[Chart], dict[str, Points]]:
    """The map of each run after adaptation, if all have the same classes."""
    mapped = [(name, run) for name, run in zip(names, runs, strict=True) if run.map is not None and len(run.map.after)]
    if len({run.classes for run in runs}) != 1 or len(mapped) > MAPS:
        return [], {}
    charts: list[Chart] = []
    points: dict[str, Points] = {}
    for number, (name, run) in enumerate(mapped):
        files = thumbnails_of(run)
        made, told = map_charts(run, files, BUDGET // len(mapped), prefix=f"{number}-")
        after = made[-1]
        charts.append(Chart(after.key, name, "", after.figure))
        points[after.key] = told[after.key]
    return charts, points


def compared_classes(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    """Predicted shares of the classes, if all runs have the same."""
    if len({run.classes for run in runs}) != 1 or len(runs) > BARS or len(runs[0].classes) > 60:
        return []
    series = {name: [row[2] for row in class_shares(run)] for name, run in zip(names, runs, strict=True)}
    chart = plots.bars(runs[0].classes, series)
    return [Chart("classes", "Predicted classes", "Shares of the target.", chart, wide=True)]


def agreement(runs: Sequence[Run], names: Sequence[str]) -> Table | None:
    """Share of the target on which two runs predict the same class, if all predict the same samples."""
    labels = [[each.label for each in run.predictions] for run in runs]
    if len({tuple(each.name for each in run.predictions) for run in runs}) != 1:
        return None
    rows = [
        (name, *(f"{sum(a == b for a, b in zip(one, other, strict=True)) / len(one):.1%}" for other in labels))
        for name, one in zip(names, labels, strict=True)
    ]
    return Table("Target samples on which two runs predict the same class", ("run", *names), rows)


def differences(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """Settings that are not the same in all runs."""
    settings = [leaves(run.config) for run in runs]
    keys = list(dict.fromkeys(key for each in settings for key in each))
    rows = [
        (key, *(shown_setting(each[key]) if key in each else "" for each in settings))
        for key in keys
        if len({str(each.get(key, "")) for each in settings}) > 1
    ]
    return Table("Settings that differ", ("setting", *names), rows)
