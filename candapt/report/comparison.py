"""One page for several runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from candapt.errors import UserError
from candapt.report import plots, text
from candapt.report.page import Points, Table, render
from candapt.report.plots import Chart, Curve
from candapt.report.run_data import Run
from candapt.report.run_page import CLASSES, class_shares, map_charts, shown_setting
from candapt.report.thumbnails import BUDGET, thumbnails_of
from candapt.storage.files import flatten

MAPS = 4  # maximum number of runs whose maps are shown
BARS = 4  # maximum number of runs whose predicted classes are shown side by side


def comparison_page(runs: Sequence[Run], title: str = "", measured: Sequence[float] = ()) -> str:
    """The page of two or more runs as text.

    By default the title is their task or number, and the measured accuracies are those they recorded, if all did.
    """
    known = measured or [run.oracle["accuracy"] for run in runs if run.oracle]
    accuracies = known if len(known) == len(runs) else []
    names, tasks = distinct_names(runs), list(dict.fromkeys(run.task for run in runs))
    maps, points = compared_maps(runs, names)
    curves, other_curves = compared_curves(runs, names)
    sections = {"curves": curves, "other_curves": other_curves, "maps": maps, "counts": compared_classes(runs, names)}
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
    """The name of each run's folder, with as many of the folders above as make the names differ."""
    paths = [run.folder.absolute().parts for run in runs]
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError("The same run was named twice: name each once.")


def verdict(runs: Sequence[Run], names: Sequence[str], accuracies: Sequence[float]) -> str:
    """The outcome in a sentence or two, first by what is known without labels."""
    sentences = []
    values = [run.section("estimated_accuracy").get("value") for run in runs]
    estimated: dict[str, Any] = dict(zip(names, values, strict=True))
    if None not in values:
        best = max(estimated, key=estimated.__getitem__)
        sentences.append(f"Without labels {best} looks best, with an estimated accuracy of {estimated[best]:.0%}.")
    if accuracies:
        measured = dict(zip(names, accuracies, strict=True))
        best, worst = max(measured, key=measured.__getitem__), min(measured, key=measured.__getitem__)
        right = f"{best} is right on {measured[best]:.1%} of the target"
        other = f" and {worst} on {measured[worst]:.1%}" if best != worst else ""
        sentences.append(f"Measured with true labels (oracle), {right}{other}.")
    nothing = f"{len(runs)} runs side by side; none has an accuracy to compare, so see the figures below."
    return " ".join(sentences) or nothing


def overview(runs: Sequence[Run], names: Sequence[str], accuracies: Sequence[float]) -> Table:
    """One row per run."""
    facts = [{name: value for name, value, _ in text.facts(run)} for run in runs]
    for row, accuracy in zip(facts, accuracies, strict=False):  # none, or one for each
        row[text.MEASURED] = f"{accuracy:.1%}"
    for row, run in zip(facts, runs, strict=True):
        row |= {"Task": run.task, "Method": run.method, "Seed": str(run.summary.get("seed", ""))}
    present = dict.fromkeys(key for row in facts for key in row)
    first = {key for key in present if "ccuracy" in key or key == text.REVIEWED}
    columns = sorted(present, key=lambda key: key not in first)  # the most important ones first
    rows = [(name, *(row.get(key, "") for key in columns)) for name, row in zip(names, facts, strict=True)]
    return Table("What is known of each run", ("run", *(name.lower() for name in columns)), rows)


def compared_curves(runs: Sequence[Run], names: Sequence[str]) -> tuple[list[Chart], list[Chart]]:
    """Charts of every number that two or more runs have by round: those to show at once, and those to fold."""
    charts: tuple[list[Chart], list[Chart]] = ([], [])
    for key in dict.fromkeys(key for run in runs for record in run.rounds for key in record):
        lines = [
            Curve(name, [each["round"] for each in having], [each[key] for each in having])
            for name, run in zip(names, runs, strict=True)
            if (having := [each for each in run.rounds if isinstance(each.get(key), int | float)])
        ]
        if len(lines) > 1 and key not in text.WITHOUT_CURVE:
            metric = text.metric(key)
            figure = plots.curves(lines, percent=metric.percent)
            charts[text.is_minor(key)].append(Chart(f"of-{key}", metric.title, metric.note, figure))
    return charts


def compared_maps(runs: Sequence[Run], names: Sequence[str]) -> tuple[list[Chart], dict[str, Points]]:
    """The map of each run after adaptation, if all have the same classes."""
    mapped = [(name, run) for name, run in zip(names, runs, strict=True) if run.map is not None and len(run.map.after)]
    if len({run.classes for run in runs}) != 1 or len(mapped) > MAPS:
        return [], {}
    charts: list[Chart] = []
    points: dict[str, Points] = {}
    for number, (name, run) in enumerate(mapped):
        both, described = map_charts(run, thumbnails_of(run), BUDGET // len(mapped), prefix=f"{number}-")
        charts.append(replace(both[-1], title=name))
        points[both[-1].key] = described[both[-1].key]
    return charts, points


def compared_classes(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    """Predicted shares of the classes, if all runs have the same."""
    if len({run.classes for run in runs}) != 1 or len(runs) > BARS or len(runs[0].classes) > CLASSES:
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
    settings = [flatten(run.config) for run in runs]
    rows = [
        (key, *(shown_setting(each[key]) if key in each else "" for each in settings))
        for key in dict.fromkeys(key for each in settings for key in each)
        if len({str(each.get(key, "")) for each in settings}) > 1
    ]
    return Table("Settings that differ", ("setting", *names), rows)
