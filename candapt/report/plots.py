"""Charts as what Plotly's JavaScript draws. Names in them are escaped, since it interprets some HTML in every text.

They are plain dictionaries: Plotly's own package would make the same ones, but takes longer than a small training.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from candapt.report.text import readable

# Okabe and Ito's colors, which the color-blind can tell apart; yellow and black would vanish on one of the backgrounds.
BLUE, VERMILLION, GRAY = "#0072B2", "#D55E00", "#888888"
COLORS = (BLUE, VERMILLION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", GRAY)
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
DASHES = ("solid", "dash", "dot", "dashdot")
DASHED = {"color": GRAY, "dash": "dash", "width": 1.5}  # a line to compare others with

Figure = dict[str, Any]  # what Plotly's JavaScript draws: data and layout


@dataclass(frozen=True)
class Chart:
    """A figure with its title and note."""

    key: str  # its name within the page
    title: str
    note: str
    figure: Figure
    wide: bool = False
    still: Markup = Markup("")  # the same as SVG, for browsers without JavaScript


@dataclass(frozen=True)
class Curve:
    """One line of a chart: a value per round, counted from 0."""

    name: str
    rounds: Sequence[int]
    values: Sequence[float | None]


def plain_text(text: str, length: int = 28) -> str:
    """A name as text for a figure, escaped and shortened."""
    return html.escape(readable(text, length))


def curves(
    lines: Sequence[Curve],
    *,
    percent: bool = False,
    level: tuple[str, float] | None = None,
    kept: int | None = None,
    height: int = 0,
) -> Figure:
    """Lines by round, counted from 1; with more than one there is a legend.

    A level is the name and value of a horizontal line, and the round whose network was kept gets a vertical one. The
    height is in pixels, by default as many as the lines need.
    """
    hover = "round %{x}: %{y:.1%}" if percent else "round %{x}: %{y:.4g}"
    several, drawn = len(lines) > 1, []
    for position, line in enumerate(lines):
        color = COLORS[position % len(COLORS)]
        drawn.append(
            {
                "type": "scatter",
                "x": [each + 1 for each in line.rounds],
                "y": _finite(line.values),
                "name": plain_text(line.name, 40),
                "mode": "lines+markers",
                "line": {"color": color, "width": 2, "dash": DASHES[position // len(COLORS) % len(DASHES)]},
                "marker": {"color": color, "symbol": SYMBOLS[position % len(SYMBOLS)], "size": 7},
                "hovertemplate": hover if several else f"{hover}<extra></extra>",
            }
        )
    marks: Figure = {}
    if level is not None:
        marks |= {"annotations": [_level_name(*level)], "shapes": [_across("y", level[1], DASHED)]}
    if kept is not None:
        vertical = _across("x", kept + 1, {"color": GRAY, "dash": "dot", "width": 1.5})
        marks["shapes"] = [*marks.get("shapes", ()), vertical]
    last = max((each + 1 for line in lines for each in line.rounds), default=1)
    rounds: dict[str, Any] = {"title": {"text": "round"}, "range": [0.5, last + 0.5], "tickformat": "d"}
    rounds |= {"dtick": 1} if last <= 10 else {"nticks": 8}
    shown = [value for line in lines for value in _finite(line.values) if value is not None]
    values = _value_axis([*shown, *([level[1]] if level else [])], percent)
    height = height or (270 + 18 * (len(lines) // 4) if several else 230)  # a legend needs room above the chart
    return _finished(drawn, rounds, values, legend=several, height=height, **marks)


def _across(axis: str, value: float, line: Figure) -> Figure:
    """A line across the chart at a value of one axis."""
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": value, f"{axis}1": value, f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", "line": line, "xref": "x", "yref": "y", f"{other}ref": f"{other} domain", **ends}


def _level_name(name: str, value: float) -> Figure:
    """A name above a line across the chart."""
    place = {"x": 0.01, "xref": "paper", "y": value, "yref": "y", "xanchor": "left", "yanchor": "bottom"}
    return {**place, "text": plain_text(name), "showarrow": False, "font": {"size": 11}}


def _finite(values: Sequence[float | None]) -> list[float | None]:
    """The values with None, which leaves a gap, for those that are not finite."""
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _value_axis(values: Sequence[float], percent: bool) -> dict[str, Any]:
    """An axis with room around the values, even if they are all the same, but little below zero if none is negative."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if all(isinstance(value, int) for value in values):  # counts
        step = max(1, math.ceil((high - low) / 5))
        return {"range": [max(low - 1, -0.2), high + 1], "tickformat": "d", "dtick": step}
    if percent and high - low < 0.005:
        low, high = (0, 1) if high > 0.1 else (0, 0.1)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1
    low = max(low - room, -room / 3) if low >= 0 else low - room
    shares = ".0%" if high - low > 0.05 else ".1%"
    return {"range": [low, high + room], "nticks": 6, "tickformat": shares if percent else "~g"}


def points(places: Sequence[Sequence[float]], side: Sequence[int]) -> Figure:
    """Both domains (side 0 and 1) in the plane; the page gets the row of the point under the pointer to describe it."""
    drawn, styles = [], (("source", BLUE, "circle"), ("target", VERMILLION, "diamond-open"))
    for number, (name, color, symbol) in enumerate(styles):
        chosen = [row for row, each in enumerate(side) if each == number]
        drawn.append(
            {
                "type": "scatter",
                "x": [round(float(places[row][0]), 2) for row in chosen],
                "y": [round(float(places[row][1]), 2) for row in chosen],
                "customdata": chosen,
                "name": name,
                "mode": "markers",
                "marker": {"color": color, "symbol": symbol, "size": 6, "opacity": 0.75, "line": {"width": 1}},
                "hoverinfo": "none",
            }
        )
    bare = dict.fromkeys(("showticklabels", "zeroline", "showgrid"), False)
    frame = bare | {"ticks": "", "showline": True, "mirror": True, "fixedrange": False}
    square = frame | {"scaleanchor": "x", "scaleratio": 1}
    return _finished(drawn, frame, square, legend=True, height=420, dragmode="zoom")


def still_points(places: Sequence[Sequence[float]], side: Sequence[int]) -> Markup:
    """The same as `points` as a small SVG without names: each domain is one path of dots."""
    columns, rows = zip(*places, strict=True) if len(places) else ((0.0,), (0.0,))
    left, top = min(columns), max(rows)
    scale = 960 / max(max(columns) - left, top - min(rows), 1e-9)
    paths = []
    for number, color in enumerate((BLUE, VERMILLION)):
        spots = [
            f"M{round(20 + (x - left) * scale)} {round(20 + (top - y) * scale)}h0"
            for (x, y), each in zip(places, side, strict=True)
            if each == number
        ]
        paths.append(f'<path d="{"".join(spots)}" stroke="{color}" stroke-opacity="0.6"/>')
    key = f'<text y="1030"><tspan fill="{BLUE}">● source</tspan>  <tspan fill="{VERMILLION}">● target</tspan></text>'
    shape = 'viewBox="0 0 1000 1050" fill="none" stroke-width="10" stroke-linecap="round" font-size="36"'
    return Markup(f"<svg {shape}>{''.join(paths)}{key}</svg>")


def bars(names: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> Figure:
    """Shares of each class as horizontal bars, the first class on top."""
    rows, drawn = list(range(len(names))), []
    for position, (name, values) in enumerate(series.items()):
        color, shape = COLORS[position % len(COLORS)], ("", "/", ".", "x")[position % 4]
        drawn.append(
            {
                "type": "bar",
                "y": rows,
                "x": _finite(values),
                "name": plain_text(name, 40),
                "orientation": "h",
                "marker": {"color": color, "pattern": {"shape": shape}},
                "text": [plain_text(each, 60) for each in names],
                "textposition": "none",
                "hovertemplate": "%{text}: %{x:.1%}",
            }
        )
    ticks = {"tickvals": rows, "ticktext": [plain_text(name, 22) for name in names], "range": [len(names) - 0.5, -0.5]}
    ticks |= {"showgrid": False, "zeroline": False}
    height = 110 + len(names) * (10 + 12 * len(series))
    share = {"tickformat": ".0%", "rangemode": "tozero", "nticks": 6}
    groups = {"barmode": "group", "bargap": 0.25}
    return _finished(drawn, share, ticks, legend=len(series) > 1, height=height, **groups)


def matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Figure:
    """A confusion matrix: each row in shares of its class, with the counts under the pointer."""
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    shown = [plain_text(name, 22) for name in names]
    axis = {"tickvals": list(range(len(names))), "ticktext": shown, "zeroline": False}
    hover = [
        [f"{shown[row]} predicted as {shown[column]}: {count:,}" for column, count in enumerate(line)]
        for row, line in enumerate(counts)
    ]
    drawn = {
        "type": "heatmap",
        "z": shares,
        "text": hover,
        "hovertemplate": "%{text} (%{z:.1%})<extra></extra>",
        "colorscale": [[0, "rgba(0,114,178,0)"], [1, BLUE]],  # zero is the page's own color, light or dark
        "zmin": 0,
        "zmax": 1,
        "colorbar": {"tickformat": ".0%", "thickness": 12, "outlinewidth": 0},
    }
    rows = axis | {"autorange": "reversed", "title": {"text": "true class", "standoff": 10}}
    columns = axis | {"tickangle": -60, "title": {"text": "predicted class"}}
    return _finished([drawn], columns, rows, legend=False, height=min(900, 240 + 20 * len(names)))


def reliability(bins: Sequence[Mapping[str, float]], *, height: int) -> Figure:
    """Accuracy against confidence, bin by bin; a bin's marker grows with its samples."""
    most = max((each["count"] for each in bins), default=1)
    sizes = [7 + 15 * math.sqrt(each["count"] / most) for each in bins]
    perfect = {"mode": "lines", "line": DASHED, "name": "perfect calibration", "hoverinfo": "skip"}
    measured = {
        "x": [each["confidence"] for each in bins],
        "y": [each["accuracy"] for each in bins],
        "mode": "lines+markers",
        "line": {"color": BLUE, "width": 1.5},
        "marker": {"color": BLUE, "size": sizes, "opacity": 0.85},
        "text": [f"{each['count']:,.0f} samples" for each in bins],
        "name": "predictions",
        "hovertemplate": "confidence %{x:.1%}, right %{y:.1%}, %{text}<extra></extra>",
    }
    drawn = [{"type": "scatter", "x": [0, 1], "y": [0, 1], **perfect}, {"type": "scatter", **measured}]
    axis = {"range": [-0.03, 1.05], "tickformat": ".0%", "nticks": 6}
    columns, rows = axis | {"title": {"text": "confidence"}}, axis | {"title": {"text": "share that is right"}}
    return _finished(drawn, columns, rows, legend=True, height=height)


def _finished(
    drawn: list[Figure], x: Mapping[str, Any], y: Mapping[str, Any], *, legend: bool, height: int, **more: Any
) -> Figure:
    """The figure of what is drawn, in the style of all charts; the page sets the colors of text and grid."""
    common = {"automargin": True, "fixedrange": True}
    layout = {
        "xaxis": {**common, **x},
        "yaxis": {**common, **y},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "font": {"size": 12, "family": "system-ui, sans-serif"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "dragmode": False,
    }
    return {"data": drawn, "layout": layout | more}
