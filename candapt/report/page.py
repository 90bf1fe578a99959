"""One HTML file that needs nothing else: template, style, scripts and data in one, and no way out to a network."""

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
from candapt.files import write_atomically
from candapt.report.plots import Chart
from candapt.report.words import number, readable, sureness
from candapt.runs import versions


@dataclass(frozen=True)
class Table:
    """A table with a caption. Cells are text, and stay text."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[tuple[int, int]] = frozenset()
    """Row and column of the cells to stress."""
    quiet: frozenset[int] = frozenset()
    """Rows that stand back behind the one above them."""


@dataclass(frozen=True, eq=False)
class Points:
    """What the page tells of the points of a map."""

    classes: Sequence[str]
    items: Sequence[tuple[str, int, str | None]]
    """Name, class, and confidence in words where the class was predicted, of each point."""
    thumbnails: Mapping[int, str] = field(default_factory=dict)
    """Data URIs by point."""


def render(
    template: str,
    *,
    title: str,
    verdict: str,
    heading: str | None = None,
    kind: str = "",
    warnings: Sequence[Any] = (),
    charts: Sequence[Chart] = (),
    points: Mapping[str, Points] | None = None,
    **context: Any,
) -> str:
    """The whole page.

    Args:
        template: its name.
        title: of the page.
        verdict: what it comes to, in a sentence on top.
        heading: above the verdict; by default the title.
        kind: what follows "candapt report" above the heading.
        warnings: what speaks against trusting the result; the verdict then looks otherwise.
        charts: every chart that the template places.
        points: by the key of the map that they are on.
        context: what else the template shows.
    """
    told = list({id(each): each for each in (points or {}).values()}.values())  # the maps of a run have the same
    drawn = {
        "charts": {chart.key: chart.figure for chart in charts},
        "points": [vars(each) for each in told],
        "maps": {key: told.index(each) for key, each in (points or {}).items()},
    }
    scripts = [_asset("plotly-cartesian.min.js"), _asset("page.js")] if charts else []
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            heading=heading or title,
            kind=kind,
            verdict=verdict,
            warnings=warnings,
            policy=content_policy(scripts),
            style=Markup(_asset("page.css")),
            scripts=[Markup(script) for script in scripts],
            data=Markup(script_json(drawn)),
            version=versions()["candapt"],
            **context,
        )
    )


def content_policy(scripts: Sequence[str]) -> str:
    """A policy that allows these scripts and inline styles and pictures, and nothing that is elsewhere."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(content: Any) -> str:
    """JSON that can stand inside a script element whatever names it holds."""
    return json.dumps(_finite(content), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def write_page(path: Path, text: str) -> None:
    """Write the page; one that is there is replaced."""
    try:
        with write_atomically(path) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror}): give another file by --out.") from None


def _finite(content: Any) -> Any:
    """The same without NaN and infinity, which JSON lacks."""
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


@functools.cache
def _environment() -> Environment:
    """Templates in which everything is escaped that is not marked as safe."""
    made = Environment(
        loader=PackageLoader("candapt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"readable": readable, "number": number, "sureness": sureness}
    return made


@functools.cache
def _asset(name: str) -> str:
    return files("candapt.report").joinpath("static", name).read_text(encoding="utf-8")
