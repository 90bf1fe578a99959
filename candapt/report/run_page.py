"""The page of one run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from candapt.data.domains import Side
from candapt.model import UNKNOWN
from candapt.report import plots, text
from candapt.report.page import Points, Table, render
from candapt.report.plots import Chart, Curve
from candapt.report.run_data import Run
from candapt.report.samples import class_samples, hand_checks
from candapt.report.targets import target_parts
from candapt.report.thumbnails import BUDGET, Thumbnails, thumbnails_of
from candapt.review.measurement import ENOUGH, percent
from candapt.settings import LAST
from candapt.storage.files import flatten

LARGE, SMALL = 96, 56  # pixels of a thumbnail in a gallery and on the map
ORACLE = 320  # height in pixels of the charts that stand side by side there
CLASSES = 60  # maximum number of classes in a chart of classes; the table beside it has all


def run_page(run: Run) -> str:
    """The page as text."""
    thumbnails = thumbnails_of(run)
    checks, by_class = hand_checks(run), class_samples(run.predictions)
    shown = [*(each.samples for each in checks), *(part for some in by_class.values() for part in some)]
    pictures = thumbnails[Side.TARGET].make([each.name for part in shown for each in part], LARGE)
    maps, points = map_charts(run, thumbnails, BUDGET - sum(map(len, pictures.values())))
    sections = {
        "losses": loss_charts(run),
        "clusters": [_round_chart(run, key) for key in text.CLUSTERS if any(key in record for record in run.rounds)],
        "scores": score_charts(run, main=True),
        "other_scores": score_charts(run, main=False),
        "maps": maps,
        "counts": [class_chart(run)],
        "oracle": oracle_charts(run),
    }
    predicted = Counter(each.label for each in run.predictions)
    return render(
        "run.html",
        title=f"{run.method}: {run.task}",
        heading=run.task,
        charts=[chart for group in sections.values() for chart in group],
        points=points,
        run=run,
        verdict=text.verdict(run),
        facts=text.facts(run),
        selection=text.selection(run),
        marked=_kept_round(run) is not None,
        warnings=[str(each.get("sentence", "")) for each in run.summary.get("warnings") or []],
        notes=[str(each.get("sentence", "")) for each in run.summary.get("notes") or []],
        steps=text.next_steps(run),
        sections=sections,
        galleries=by_class,
        predicted=predicted,
        never=[name for name in run.classes if not predicted[name]],
        checks=checks,
        pictures=pictures,
        tables=tables(run),
        targets=target_parts(run, thumbnails),
    )


def tables(run: Run) -> dict[str, Table | None]:
    """The tables of the page by their name in the template; None for one that needs what the run does not have."""
    settings = [(key, shown_setting(value)) for key, value in flatten(run.config).items()]
    return {
        "coverage": coverage_table(run),
        "reviewed_classes": reviewed_classes_table(run),
        "known": known_table(run),
        "sources": source_table(run),
        "rounds": rounds_table(run),
        "classes": class_table(run),
        "mistakes": mistakes_table(run),
        "class_accuracies": class_accuracy_table(run),
        "settings": Table("Settings", ("setting", "value"), settings),
        "versions": Table("Versions", ("package", "version"), [*(run.summary.get("versions") or {}).items()]),
    }


def known_table(run: Run) -> Table | None:
    """The target samples whose labels the user gave to steer the training."""
    known = text.known_labels(run)
    return Table("Known labels", ("sample", "class"), [*known.items()]) if known else None


def source_table(run: Run) -> Table | None:
    """What each of several sources says of the target."""
    judged = run.summary.get("sources")
    if not isinstance(judged, list) or not judged:
        return None
    rows = [(str(s["name"]), f"{s['agreement']:.0%}", "" if s["helps"] else "does not seem to help") for s in judged]
    return Table("Sources", ("source", "agrees with the predictions", ""), rows)


def loss_charts(run: Run) -> list[Chart]:
    """A chart for each loss, and the discrepancy on fixed samples; that by true labels is among the oracle's charts."""
    numbers = {key for record in run.rounds for key, value in record.items() if isinstance(value, int | float)}
    others = {*text.WITHOUT_CURVE, *text.CLUSTERS, "cdd"}
    losses = [key for key in _keys(run) if key in numbers - others and not key.startswith((text.SCORE, text.ORACLE))]
    return [_round_chart(run, key) for key in (*losses, *(["cdd"] if "cdd" in numbers else []))]


def score_charts(run: Run, *, main: bool) -> list[Chart]:
    """Label-free scores, each with that of the source-only network: the main ones, or the others.

    The main ones are shown unfolded, the one that chose the round first.
    """
    levels = run.section("source_only").get("scores")
    known = levels if isinstance(levels, Mapping) else {}
    keys = [key for key in _keys(run) if key.startswith(text.SCORE)]
    names = dict.fromkeys((run.section("selection").get("score"), *text.MAIN_SCORES))
    first = [key for key in (f"{text.SCORE}{name}" for name in names) if key in keys]
    shown = first if main else [key for key in keys if key not in first]
    return [_round_chart(run, key, known.get(key)) for key in shown]


def _round_chart(run: Run, key: str, level: float | None = None) -> Chart:
    metric, levels = text.metric(key), None if level is None else ("not adapted", level)
    lines = [Curve(metric.title, *_column(run, key))]
    figure = plots.curves(lines, percent=metric.percent, level=levels, kept=_kept_round(run))
    return Chart(key, metric.title, metric.note, figure)


def _kept_round(run: Run) -> int | None:
    """The round that a score chose."""
    chosen = run.section("selection")
    number = chosen.get("round")
    return number if isinstance(number, int) and chosen.get("score") != LAST else None


def map_charts(
    run: Run, thumbnails: Mapping[Side, Thumbnails], budget: int, prefix: str = ""
) -> tuple[list[Chart], dict[str, Points]]:
    """The map before and after adaptation, and what describes its points, by the keys of the charts."""
    if run.map is None:
        return [], {}
    names, sides = [str(name) for name in run.map.name], run.map.side.tolist()
    position = {name: index for index, name in enumerate(run.classes)}
    items: list[tuple[str, int, str | None]] = []
    for side, index, label, name in zip(sides, run.map.index, run.map.label, names, strict=True):
        where, confidence = int(label), None
        if side == Side.TARGET and index < len(run.predictions):
            where = position.get(run.predictions[index].label, -1)
            confidence = text.format_confidence(run.predictions[index].confidence)
        items.append((text.readable(name, 48), where, confidence))
    pictures: dict[int, str] = {}
    for side in (Side.TARGET, Side.SOURCE):
        rows = [row for row, each in enumerate(sides) if each == side]
        made = thumbnails[side].make([names[row] for row in rows], SMALL, budget)
        budget -= sum(map(len, made.values()))
        pictures |= {row: made[names[row]] for row in rows if names[row] in made}
    shown = [("before", "Before adaptation", run.map.before), ("after", "After adaptation", run.map.after)]
    charts = [
        Chart(
            f"{prefix}map-{key}",
            title,
            "",
            plots.points(places.tolist(), sides),
            still=plots.still_points(places.tolist(), sides),
        )
        for key, title, places in shown
        if len(places)
    ]
    points = Points([text.readable(name) for name in run.classes], items, pictures)
    return charts, {chart.key: points for chart in charts}


def class_shares(run: Run) -> list[tuple[str, int, float, int | None, float | None]]:
    """Name, predicted count and share, and source count and share, of each class."""
    predicted, n = Counter(each.label for each in run.predictions), len(run.predictions)
    counts = (run.summary.get("data") or {}).get("source_classes") or {}
    total = sum(counts.values())
    return [
        (name, predicted[name], predicted[name] / n, counts.get(name), counts.get(name, 0) / total if total else None)
        for name in run.classes
    ]


def shown_shares(run: Run) -> list[tuple[str, int, float, int | None, float | None]]:
    """The same, and those of the samples that the run calls unknown, if there are any."""
    number = text.called_unknown(run)
    unknown = (UNKNOWN, number, number / len(run.predictions), None, None)
    return [*class_shares(run), *([unknown] if number else [])]


def class_chart(run: Run) -> Chart:
    """Predicted shares of the classes beside those of the source."""
    shares = shown_shares(run)
    note = "A class that the target has and nobody predicts, or one that swallows others, stands out here."
    if len(shares) > CLASSES:
        shares = sorted(shares, key=lambda row: -abs(row[2] - (row[4] or 0)))[:CLASSES]
        note += f" Shown are the {CLASSES} classes that differ most; the table has all."
    series: dict[str, Sequence[float | None]] = {"predicted in the target": [row[2] for row in shares]}
    if any(row[4] is not None for row in shares):
        series["in the source"] = [row[4] for row in shares]
    return Chart("classes", "Classes", note, plots.bars([row[0] for row in shares], series), wide=True)


def class_table(run: Run) -> Table:
    """The predicted and source shares of every class."""
    rows = [
        (name, text.number(count), f"{share:.1%}", text.number(source), "" if part is None else f"{part:.1%}")
        for name, count, share, source, part in shown_shares(run)
    ]
    columns = ("class", "predicted", "share", "in the source", "share")
    return Table("Predicted classes of the target", columns, rows)


def coverage_table(run: Run) -> Table | None:
    """Expected accuracy of the surest predictions."""
    columns = ("surest share", "predictions", "expected to be right")
    rows = text.coverage(run)
    return Table("Expected accuracy of the surest predictions", columns, rows) if rows else None


def reviewed_classes_table(run: Run) -> Table | None:
    """Measured accuracy of each class with enough answers in a review."""
    if run.measured is None:
        return None
    rows = [
        (each.name, f"{each.right} of {each.judged}", *map(percent, each.interval)) for each in run.measured.classes
    ]
    caption = f"Measured by review, by predicted class, where there are at least {ENOUGH} answers"
    return Table(caption, ("predicted class", "right", "accuracy", "at least", "at most"), rows) if rows else None


def oracle_charts(run: Run) -> list[Chart]:
    """Charts that need true labels."""
    charts = []
    if any("oracle_accuracy" in record for record in run.rounds):
        lines = [Curve("accuracy", *_column(run, "oracle_accuracy"))]
        figure = plots.curves(lines, percent=True, kept=_kept_round(run), height=ORACLE)
        charts.append(Chart("oracle-accuracy", "Accuracy by round", "Never used to choose a round.", figure))
    if any("oracle_cdd" in record for record in run.rounds):
        names = {"cdd": "pseudo labels", "oracle_cdd": "true labels"}
        figure = plots.curves([Curve(name, *_column(run, key)) for key, name in names.items()], height=ORACLE)
        note = "The nearer the two, the more the training aligned what it should (the paper's CDD and CDD-G)."
        charts.append(Chart("oracle-cdd", "Contrastive discrepancy", note, figure))
    if bins := run.oracle.get("calibration"):
        note = "On the dashed line, confidence can be taken at its word; below it the classifier is too sure."
        charts.append(Chart("calibration", "Calibration", note, plots.reliability(bins, height=ORACLE)))
    return [*charts, *confusion_charts(run)]


def confusion_charts(run: Run) -> list[Chart]:
    """The confusion matrix, if it is small enough to read, and the accuracy of each class."""
    charts, confusion = [], run.oracle.get("confusion") or []
    shown = [row for row, counts in enumerate(confusion) if sum(counts) or any(each[row] for each in confusion)]
    if confusion and len(shown) <= CLASSES:
        counts = [[confusion[row][column] for column in shown] for row in shown]
        figure = plots.matrix([run.classes[row] for row in shown], counts)
        note = "Rows are true classes; each adds up to 100%."
        charts.append(Chart("confusion", "Confusion matrix", note, figure, wide=True))
    if rated := [row for row in shown if sum(confusion[row])][:CLASSES]:
        accuracy = {row: confusion[row][row] / sum(confusion[row]) for row in rated}
        worst = sorted(rated, key=accuracy.__getitem__)
        figure = plots.bars([run.classes[row] for row in worst], {"accuracy": [accuracy[row] for row in worst]})
        charts.append(Chart("class-accuracy", "Accuracy by class", "The worst class on top.", figure, wide=True))
    return charts


def mistakes_table(run: Run) -> Table | None:
    """The most frequent confusions of two classes."""
    confusion = run.oracle.get("confusion") or []
    pairs = [
        (count, true, predicted)
        for true, row in enumerate(confusion)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    rows = [
        (run.classes[true], run.classes[predicted], text.number(count), f"{count / sum(confusion[true]):.0%}")
        for count, true, predicted in sorted(pairs, key=lambda pair: -pair[0])[:12]
    ]
    columns = ("true class", "predicted as", "samples", "of the class")
    return Table("Most frequent mistakes", columns, rows) if rows else None


def class_accuracy_table(run: Run) -> Table | None:
    """Accuracy of each class."""
    rows = [
        (name, text.number(sum(row)), f"{row[position] / sum(row):.1%}")
        for position, (name, row) in enumerate(zip(run.classes, run.oracle.get("confusion") or [], strict=False))
        if sum(row)
    ]
    return Table("Accuracy of each class", ("class", "samples", "accuracy"), rows) if rows else None


def rounds_table(run: Run) -> Table:
    """Every number of every round."""
    keys = [key for key in _keys(run) if key != "round"]
    rows = [(str(record["round"] + 1), *(text.number(record.get(key)) for key in keys)) for record in run.rounds]
    return Table("Every round in numbers", ("round", *(key.replace("_", " ") for key in keys)), rows)


def _keys(run: Run) -> list[str]:
    """Every key of the rounds, in order of appearance."""
    return list(dict.fromkeys(key for record in run.rounds for key in record))


def _column(run: Run, key: str) -> tuple[list[int], list[float]]:
    """Rounds and values of those that have the key."""
    rounds = [record for record in run.rounds if record.get(key) is not None]
    return [record["round"] for record in rounds], [record[key] for record in rounds]


def shown_setting(value: Any) -> str:
    """A setting as YAML writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
