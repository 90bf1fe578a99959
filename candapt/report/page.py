"""One HTML file that needs nothing else: template, style, scripts and data in one, without access to a network."""

import base64
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from candapt.errors import UserError
from candapt.report.plots import Chart
from candapt.report.text import format_confidence, number, readable
from candapt.storage.files import write_atomically
from candapt.storage.runs import versions


@dataclass(frozen=True)
class Table:
    """A table with a caption; templates escape its cells."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[tuple[int, int]] = frozenset()  # row and column of the cells to emphasize
    quiet: frozenset[int] = frozenset()  # rows to show in a lighter color than the one above


@dataclass(frozen=True, eq=False)
class Points:
    """What the page shows of a point of a map under the pointer."""

    classes: Sequence[str]
    items: Sequence[tuple[str, int, str | None]]  # name, class, and confidence if the class was predicted
    thumbnails: Mapping[int, str] = field(default_factory=dict)  # data URIs by point


def render(
    template: str,
    *,
    title: str,
    verdict: str,
    heading: str = "",
    kind: str = "",
    warnings: Sequence[Any] = (),
    charts: Sequence[Chart] = (),
    points: Mapping[str, Points] | None = None,
    **context: Any,
) -> str:
    """The whole page as text.

    The verdict is the outcome in a sentence or two; warnings, reasons not to trust it, change its color. Above it stand
    "candapt report", the kind of page, and the heading, by default the title. The charts are all that the template
    places, the points are by the key of their map, and the context holds the template's other variables.
    """
    scripts = [_asset("plotly-cartesian.min.js"), _asset("page.js")] if charts else []
    common = {
        "policy": content_policy(scripts),
        "style": Markup(_asset("page.css")),
        "scripts": [Markup(script) for script in scripts],
        "data": Markup(script_json(_chart_data(charts, points or {}))),
        "version": versions()["candapt"],
    }
    page = _environment().get_template(template)
    return page.render(
        title=title, heading=heading or title, kind=kind, verdict=verdict, warnings=warnings, **common, **context
    )


def _chart_data(charts: Sequence[Chart], points: Mapping[str, Points]) -> dict[str, Any]:
    """What the page's script draws; points that several maps share are stored once."""
    distinct = list({id(each): each for each in points.values()}.values())
    return {
        "charts": {chart.key: chart.figure for chart in charts},
        "points": [vars(each) for each in distinct],
        "maps": {key: distinct.index(each) for key, each in points.items()},
    }


def content_policy(scripts: Sequence[str]) -> str:
    """A policy that allows these scripts and inline styles and pictures, and nothing from any address."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(content: Any) -> str:
    """JSON that is safe inside a script element, whatever names it holds."""
    return json.dumps(_finite(content), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def write_page(path: Path, text: str) -> None:
    """Write the page; an existing file is replaced."""
    try:
        with write_atomically(path) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror}): give another file by --out.") from None


def _finite(content: Any) -> Any:
    """The same with None for NaN and infinity, which JSON lacks."""
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


@functools.cache
def _environment() -> Environment:
    """Templates in which everything is escaped that is not marked as safe."""
    loader = PackageLoader("candapt.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"readable": readable, "number": number, "confidence": format_confidence}
    return made


@functools.cache
def _asset(name: str) -> str:
    return files("candapt.report").joinpath("static", name).read_text(encoding="utf-8")
