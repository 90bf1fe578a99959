"""The page of one run."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from candapt.data.domains import Side
from candapt.evaluation.selection import LAST
from candapt.report import plots, words
from candapt.report.collect import Prediction, Run
from candapt.report.page import Points, Table, render
from candapt.report.plots import Chart, Curve
from candapt.report.thumbnails import BUDGET, Thumbnails, thumbnails_of
from candapt.runs import leaves

SUREST = 8
"""Samples of each class in its gallery, at most."""
GALLERY = 256
"""Samples in the galleries of all classes, at most, if that leaves two for each."""
LEAST_SURE = 24
LARGE, SMALL = 96, 56
"""Pixels of a thumbnail in a gallery and on the map."""
ORACLE = 320
"""Pixels of the height of the charts that stand side by side there."""
CLASSES = 60
"""Classes in a chart of classes, at most; the table beside it has all."""


@dataclass(frozen=True)
class Item:
    """A sample in a gallery."""

    name: str
    label: str
    confidence: float
    picture: str | None


@dataclass(frozen=True)
class Gallery:
    """The surest samples of a class."""

    label: str
    count: int
    items: Sequence[Item]


def run_page(run: Run) -> str:
    """The page as text."""
    thumbnails = thumbnails_of(run)
    by_class, unsure = chosen_samples(run.predictions)
    wanted = [each.name for each in unsure] + [each.name for some in by_class.values() for each in some]
    pictures = thumbnails[Side.TARGET].make(wanted, LARGE)
    left = BUDGET - sum(map(len, pictures.values()))
    maps, points = map_charts(run, thumbnails, left)
    sections = {
        "losses": loss_charts(run),
        "clusters": cluster_charts(run),
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
        verdict=words.verdict(run),
        facts=words.facts(run),
        selection=words.selection(run),
        marked=_kept(run) is not None,
        warnings=[str(each.get("sentence", "")) for each in run.summary.get("warnings") or []],
        estimate=run.summary.get("estimated_accuracy"),
        alarm_checked="warnings" in run.summary,
        sections=sections,
        class_names=run.classes,
        rounds=rounds_table(run),
        class_table=class_table(run),
        mistakes=mistakes_table(run),
        class_accuracies=class_accuracy_table(run),
        galleries=[
            Gallery(label, predicted[label], [_item(each, pictures) for each in some])
            for label, some in by_class.items()
        ],
        never=[name for name in run.classes if not predicted[name]],
        unsure=[_item(each, pictures) for each in unsure],
        pictures=bool(pictures),
        settings=Table(
            "Settings", ("setting", "value"), [(key, shown_setting(value)) for key, value in leaves(run.config).items()]
        ),
        versions=Table("Versions", ("package", "version"), [*(run.summary.get("versions") or {}).items()]),
    )


def chosen_samples(predictions: Sequence[Prediction]) -> tuple[dict[str, list[Prediction]], list[Prediction]]:
    """The surest samples of each class that was predicted, and the least sure ones of all."""
    grouped: defaultdict[str, list[Prediction]] = defaultdict(list)
    ranked = sorted(predictions, key=lambda each: -each.confidence)
    for each in ranked:
        grouped[each.label].append(each)
    most = max(2, min(SUREST, GALLERY // max(1, len(grouped))))
    return {label: grouped[label][:most] for label in sorted(grouped)}, ranked[::-1][:LEAST_SURE]


def loss_charts(run: Run) -> list[Chart]:
    """A chart for each loss, and the discrepancy on fixed samples; the oracle's stands beside it elsewhere."""
    named = {key for record in run.rounds for key, value in record.items() if isinstance(value, int | float)}
    other = {*words.SILENT, *words.CLUSTERS, "cdd"}
    losses = [key for key in _keys(run) if key in named and key not in other and not key.startswith(_SET_APART)]
    return [_round_chart(run, key) for key in (*losses, *(["cdd"] if "cdd" in named else []))]


def cluster_charts(run: Run) -> list[Chart]:
    """How the pseudo labels went."""
    return [_round_chart(run, key) for key in words.CLUSTERS if any(key in record for record in run.rounds)]


def score_charts(run: Run, *, main: bool) -> list[Chart]:
    """Label-free scores, each beside that of the network that was not adapted.

    Args:
        run: the run.
        main: those that are shown at once, the one that chose the round first; else the others.
    """
    before = run.summary.get("source_only")
    levels = before.get("scores") if isinstance(before, Mapping) else None
    known = levels if isinstance(levels, Mapping) else {}
    chosen = run.summary.get("selection")
    first = [chosen.get("score") if isinstance(chosen, Mapping) else None, *words.MAIN_SCORES]
    keys = [key for key in _keys(run) if key.startswith(words.SCORE)]
    shown = [key for key in dict.fromkeys(f"{words.SCORE}{name}" for name in first) if key in keys]
    return [_round_chart(run, key, known.get(key)) for key in (shown if main else [k for k in keys if k not in shown])]


_SET_APART = (words.SCORE, words.ORACLE)


def _round_chart(run: Run, key: str, level: float | None = None) -> Chart:
    told = words.metric(key)
    line = Curve(told.title, *_column(run, key))
    levels = None if level is None else ("not adapted", level)
    return Chart(key, told.title, told.note, plots.curves([line], percent=told.percent, level=levels, kept=_kept(run)))


def _kept(run: Run) -> int | None:
    """The round that was chosen, where a score chose one."""
    chosen = run.summary.get("selection")
    if not isinstance(chosen, Mapping) or chosen.get("score") == LAST:
        return None
    return chosen["round"] if isinstance(chosen.get("round"), int) else None


def map_charts(
    run: Run, thumbnails: Mapping[Side, Thumbnails], budget: int, prefix: str = ""
) -> tuple[list[Chart], dict[str, Points]]:
    """The map before and after adaptation, and what is told of its points."""
    found = run.map
    if found is None:
        return [], {}
    position = {name: index for index, name in enumerate(run.classes)}
    items: list[tuple[str, int, str | None]] = []
    for side, index, label, name in zip(found.side, found.index, found.label, found.name, strict=True):
        predicted = run.predictions[index] if side == Side.TARGET and index < len(run.predictions) else None
        where = position.get(predicted.label, -1) if predicted else int(label)
        items.append(
            (words.readable(str(name), 48), where, words.sureness(predicted.confidence) if predicted else None)
        )
    pictures: dict[int, str] = {}
    for side in (Side.TARGET, Side.SOURCE):
        rows = [row for row, each in enumerate(found.side) if each == side]
        made = thumbnails[side].make([str(found.name[row]) for row in rows], SMALL, budget)
        budget -= sum(map(len, made.values()))
        pictures |= {row: made[str(found.name[row])] for row in rows if str(found.name[row]) in made}
    shown = [("before", "Before adaptation", found.before), ("after", "After adaptation", found.after)]
    charts = [
        Chart(f"{prefix}map-{key}", title, "", plots.points(places.tolist(), found.side.tolist()))
        for key, title, places in shown
        if len(places)
    ]
    points = Points([words.readable(name) for name in run.classes], items, pictures)
    return charts, {chart.key: points for chart in charts}


def class_shares(run: Run) -> list[tuple[str, int, float, int | None, float | None]]:
    """Name, predicted count and share, and source count and share, of each class."""
    predicted = Counter(each.label for each in run.predictions)
    counts = (run.summary.get("data") or {}).get("source_classes") or {}
    total = sum(counts.values())
    return [
        (
            name,
            predicted[name],
            predicted[name] / len(run.predictions),
            counts.get(name),
            counts.get(name, 0) / total if total else None,
        )
        for name in run.classes
    ]


def class_chart(run: Run) -> Chart:
    """Predicted shares of the classes beside those of the source."""
    shares = class_shares(run)
    note = "A class that the target has and nobody predicts, or one that swallows others, stands out here."
    if len(shares) > CLASSES:
        shares = sorted(shares, key=lambda row: -abs(row[2] - (row[4] or 0)))[:CLASSES]
        note += f" Shown are the {CLASSES} classes that differ most; the table has all."
    series: dict[str, Sequence[float | None]] = {"predicted in the target": [row[2] for row in shares]}
    if any(row[4] is not None for row in shares):
        series["in the source"] = [row[4] for row in shares]
    return Chart("classes", "Classes", note, plots.bars([row[0] for row in shares], series), wide=True)


def class_table(run: Run) -> Table:
    """The same in numbers."""
    rows = [
        (name, words.number(count), f"{share:.1%}", words.number(source), "" if part is None else f"{part:.1%}")
        for name, count, share, source, part in class_shares(run)
    ]
    columns = ("class", "predicted", "share", "in the source", "share")
    return Table("Predicted classes of the target", columns, rows)


def oracle_charts(run: Run) -> list[Chart]:
    """What only true labels can tell."""
    charts = []
    if any("oracle_accuracy" in record for record in run.rounds):
        figure = plots.curves(
            [Curve("accuracy", *_column(run, "oracle_accuracy"))], percent=True, kept=_kept(run), height=ORACLE
        )
        charts.append(Chart("oracle-accuracy", "Accuracy by round", "Never used to choose a round.", figure))
    if any("oracle_cdd" in record for record in run.rounds):
        lines = [
            Curve(name, *_column(run, key)) for key, name in (("cdd", "pseudo labels"), ("oracle_cdd", "true labels"))
        ]
        note = "The nearer the two, the more the training aligned what it should (the paper's CDD and CDD-G)."
        charts.append(Chart("oracle-cdd", "Contrastive discrepancy", note, plots.curves(lines, height=ORACLE)))
    if run.oracle is None:
        return charts
    if bins := run.oracle.get("calibration"):
        note = "On the dashed line, confidence can be taken at its word; below it the classifier is too sure."
        charts.append(Chart("calibration", "Calibration", note, plots.reliability(bins, height=ORACLE)))
    if confusion := run.oracle.get("confusion"):
        shown = [row for row, counts in enumerate(confusion) if sum(counts) or any(each[row] for each in confusion)]
        if len(shown) <= CLASSES:
            names, counts = (
                [run.classes[row] for row in shown],
                [[confusion[row][col] for col in shown] for row in shown],
            )
            note = "Rows are true classes; each adds up to 100%."
            charts.append(Chart("confusion", "Confusion matrix", note, plots.matrix(names, counts), wide=True))
        if rated := [row for row in shown if sum(confusion[row])][:CLASSES]:
            accuracy = [confusion[row][row] / sum(confusion[row]) for row in rated]
            worst = sorted(range(len(rated)), key=accuracy.__getitem__)
            figure = plots.bars([run.classes[rated[at]] for at in worst], {"accuracy": [accuracy[at] for at in worst]})
            charts.append(Chart("class-accuracy", "Accuracy by class", "The worst class on top.", figure, wide=True))
    return charts


def mistakes_table(run: Run) -> Table | None:
    """The confusions that occur most."""
    confusion = (run.oracle or {}).get("confusion") or []
    pairs = [
        (count, true, predicted)
        for true, row in enumerate(confusion)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    if not pairs:
        return None
    rows = [
        (run.classes[true], run.classes[predicted], words.number(count), f"{count / sum(confusion[true]):.0%}")
        for count, true, predicted in sorted(pairs, key=lambda pair: -pair[0])[:12]
    ]
    return Table("Most frequent mistakes", ("true class", "predicted as", "samples", "of the class"), rows)


def class_accuracy_table(run: Run) -> Table | None:
    """Accuracy of each class in numbers."""
    confusion = (run.oracle or {}).get("confusion") or []
    rows = [
        (name, words.number(sum(row)), f"{row[position] / sum(row):.1%}")
        for position, (name, row) in enumerate(zip(run.classes, confusion, strict=False))
        if sum(row)
    ]
    return Table("Accuracy of each class", ("class", "samples", "accuracy"), rows) if rows else None


def rounds_table(run: Run) -> Table:
    """Every number of every round."""
    keys = [key for key in _keys(run) if key != "round"]
    rows = [(str(record["round"] + 1), *(words.number(record.get(key)) for key in keys)) for record in run.rounds]
    return Table("Every round in numbers", ("round", *(key.replace("_", " ") for key in keys)), rows)


def _keys(run: Run) -> list[str]:
    """Every key of the rounds, in order of appearance."""
    return list(dict.fromkeys(key for record in run.rounds for key in record))


def _column(run: Run, key: str) -> tuple[list[int], list[float]]:
    """Rounds and values of those that have the key."""
    rounds = [record for record in run.rounds if record.get(key) is not None]
    return [record["round"] for record in rounds], [record[key] for record in rounds]


def _item(each: Prediction, pictures: Mapping[str, str]) -> Item:
    return Item(each.name, each.label, each.confidence, pictures.get(each.name))


def shown_setting(value: Any) -> str:
    """A setting as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
