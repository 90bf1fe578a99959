"""Charts as Plotly figures. Names in them are escaped: Plotly reads some HTML in every text."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from candapt.report.words import readable

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, GREY = "#E69F00", "#56B4E9", "#888888"
COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
"""Okabe and Ito's, which people who see fewer colors tell apart too; yellow and black vanish on one background."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
DASHES = ("solid", "dash", "dot", "dashdot")

Figure = dict[str, Any]
"""What Plotly's JavaScript draws: data and layout."""


@dataclass(frozen=True)
class Chart:
    """A figure with what is said about it."""

    key: str
    """Names it within the page."""
    title: str
    note: str
    figure: Figure
    wide: bool = False


@dataclass(frozen=True)
class Curve:
    """One line of a chart, by round."""

    name: str
    rounds: Sequence[int]
    values: Sequence[float | None]


def plain_text(text: str, length: int = 28) -> str:
    """A name for use inside a figure."""
    return html.escape(readable(text, length))


def curves(
    lines: Sequence[Curve],
    *,
    percent: bool = False,
    level: tuple[str, float] | None = None,
    kept: int | None = None,
    height: int | None = None,
) -> Figure:
    """Lines by round, which count from 1.

    Args:
        lines: one or more; with more than one there is a legend.
        percent: whether values are shares.
        level: name and height of a line that does not depend on the round.
        kept: the round whose network was kept, to be marked.
        height: in pixels; by default as the lines need it.
    """
    hover = "round %{x}: %{y:.1%}" if percent else "round %{x}: %{y:.4g}"
    figure = go.Figure()
    for position, line in enumerate(lines):
        style = mark(position)
        figure.add_scatter(
            x=[each + 1 for each in line.rounds],
            y=[value if value is not None and math.isfinite(value) else None for value in line.values],
            name=plain_text(line.name, 40),
            mode="lines+markers",
            line={"color": style["color"], "width": 2, "dash": DASHES[position // len(COLORS) % len(DASHES)]},
            marker={**style, "size": 7},
            hovertemplate=hover + "<extra></extra>" if len(lines) == 1 else hover,
        )
    if level is not None:
        figure.add_hline(y=level[1], line={"color": GREY, "dash": "dash", "width": 1.5})
        figure.add_annotation(
            **{"x": 0.01, "xref": "paper", "y": level[1], "yref": "y", "xanchor": "left", "yanchor": "bottom"},
            **{"text": plain_text(level[0]), "showarrow": False, "font": {"size": 11}},
        )
    if kept is not None:
        figure.add_vline(x=kept + 1, line={"color": GREY, "dash": "dot", "width": 1.5})
    last = max((each + 1 for line in lines for each in line.rounds), default=1)
    axis: dict[str, Any] = {"title": {"text": "round"}, "range": [0.5, last + 0.5], "tickformat": "d"}
    axis |= {"dtick": 1} if last <= 10 else {"nticks": 8}
    every = [value for line in lines for value in line.values if value is not None and math.isfinite(value)]
    values = _value_axis([*every, *([level[1]] if level else [])], percent)
    return _finished(
        figure, xaxis=axis, yaxis=values, showlegend=len(lines) > 1, height=height or _line_height(len(lines))
    )


def _value_axis(values: Sequence[float], percent: bool) -> dict[str, Any]:
    """An axis with room around the values, also where they are all the same, and none below zero for nothing."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if all(isinstance(value, int) for value in values):  # counts
        return {
            "range": [max(low - 1, -0.2), high + 1],
            "tickformat": "d",
            "dtick": max(1, math.ceil((high - low) / 5)),
        }
    if percent and high - low < 0.005:
        low, high = (0, 1) if high > 0.1 else (0, 0.1)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1
    low = max(low - room, -room / 3) if low >= 0 else low - room
    return {
        "range": [low, high + room],
        "nticks": 6,
        "tickformat": (".0%" if high - low > 0.05 else ".1%") if percent else "~g",
    }


def _line_height(lines: int) -> int:
    """Room for a chart with a legend above it."""
    return 230 if lines == 1 else 270 + 18 * (lines // 4)


def points(places: Sequence[Sequence[float]], side: Sequence[int]) -> Figure:
    """Both domains in the plane; what is told of a point under the pointer is up to the page, which gets its row.

    Args:
        places: x and y of each point.
        side: 0 for the source, 1 for the target.
    """
    figure = go.Figure()
    for number, (name, color, symbol) in enumerate(
        (("source", BLUE, "circle"), ("target", VERMILLION, "diamond-open"))
    ):
        chosen = [row for row, each in enumerate(side) if each == number]
        figure.add_scatter(
            x=[round(float(places[row][0]), 2) for row in chosen],
            y=[round(float(places[row][1]), 2) for row in chosen],
            customdata=chosen,
            name=name,
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 6, "opacity": 0.75, "line": {"width": 1}},
            hoverinfo="none",
        )
    bare = {
        "showticklabels": False,
        "zeroline": False,
        "showgrid": False,
        "ticks": "",
        "showline": True,
        "mirror": True,
    }
    square = bare | {"scaleanchor": "x", "scaleratio": 1}
    return _finished(figure, xaxis=bare, yaxis=square, showlegend=True, height=420, dragmode="zoom", fixed=False)


def bars(names: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> Figure:
    """Shares of each class as horizontal bars, the first class on top."""
    figure = go.Figure()
    rows = list(range(len(names)))
    for position, (name, values) in enumerate(series.items()):
        figure.add_bar(
            y=rows,
            x=[None if value is None or not math.isfinite(value) else value for value in values],
            name=plain_text(name, 40),
            orientation="h",
            marker={"color": COLORS[position % len(COLORS)], "pattern": {"shape": ("", "/", ".", "x")[position % 4]}},
            text=[plain_text(each, 60) for each in names],
            textposition="none",
            hovertemplate="%{text}: %{x:.1%}",
        )
    ticks = {"tickvals": rows, "ticktext": [plain_text(name, 22) for name in names], "range": [len(names) - 0.5, -0.5]}
    ticks |= {"showgrid": False, "zeroline": False}
    figure.update_layout(barmode="group", bargap=0.25)
    height = 110 + len(names) * (10 + 12 * len(series))
    share = {"tickformat": ".0%", "rangemode": "tozero", "nticks": 6}
    return _finished(figure, xaxis=share, yaxis=ticks, showlegend=len(series) > 1, height=height)


def matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Figure:
    """A confusion matrix: each row in shares of its class, the counts under the pointer."""
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    shown = [plain_text(name, 22) for name in names]
    axis = {"tickvals": list(range(len(names))), "ticktext": shown, "zeroline": False}
    hover = [
        [f"{shown[row]} predicted as {shown[column]}: {count:,}" for column, count in enumerate(line)]
        for row, line in enumerate(counts)
    ]
    heat = go.Heatmap(
        z=shares,
        text=hover,
        hovertemplate="%{text} (%{z:.1%})<extra></extra>",
        colorscale=[[0, "rgba(0,114,178,0)"], [1, BLUE]],  # none is the page's own color, light or dark
        zmin=0,
        zmax=1,
        colorbar={"tickformat": ".0%", "thickness": 12, "outlinewidth": 0},
    )
    figure = go.Figure(heat)
    rows = axis | {"autorange": "reversed", "title": {"text": "true class", "standoff": 10}}
    columns = axis | {"tickangle": -60, "title": {"text": "predicted class"}}
    return _finished(figure, xaxis=columns, yaxis=rows, showlegend=False, height=min(900, 240 + 20 * len(names)))


def reliability(bins: Sequence[Mapping[str, float]], *, height: int) -> Figure:
    """Accuracy against confidence, bin by bin; a bin's marker grows with its samples."""
    most = max((each["count"] for each in bins), default=1)
    figure = go.Figure()
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        line={"color": GREY, "dash": "dash", "width": 1.5},
        name="as sure as right",
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[each["confidence"] for each in bins],
        y=[each["accuracy"] for each in bins],
        mode="lines+markers",
        line={"color": BLUE, "width": 1.5},
        marker={"color": BLUE, "size": [7 + 15 * math.sqrt(each["count"] / most) for each in bins], "opacity": 0.85},
        text=[f"{each['count']:,.0f} samples" for each in bins],
        name="predictions",
        hovertemplate="confidence %{x:.1%}, right %{y:.1%}, %{text}<extra></extra>",
    )
    axis = {"range": [-0.03, 1.05], "tickformat": ".0%", "nticks": 6}
    columns, rows = axis | {"title": {"text": "confidence"}}, axis | {"title": {"text": "share that is right"}}
    return _finished(figure, xaxis=columns, yaxis=rows, showlegend=True, height=height)


def mark(position: int) -> dict[str, str]:
    """Color and symbol of a line; both differ from the other lines'."""
    return {"color": COLORS[position % len(COLORS)], "symbol": SYMBOLS[position % len(SYMBOLS)]}


def _finished(
    figure: go.Figure,
    *,
    xaxis: Mapping[str, Any],
    yaxis: Mapping[str, Any],
    showlegend: bool,
    height: int,
    dragmode: str | bool = False,
    fixed: bool = True,
) -> Figure:
    """The figure in the look of all others; its colors of text and grid are the page's."""
    common = {"automargin": True, "fixedrange": fixed}
    figure.update_layout(
        template=go.layout.Template(),
        xaxis={**common, **xaxis},
        yaxis={**common, **yaxis},
        showlegend=showlegend,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        height=height,
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        font={"size": 12, "family": "system-ui, sans-serif"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        dragmode=dragmode,
    )
    told: Figure = figure.to_plotly_json()
    return {"data": told["data"], "layout": told["layout"]}
