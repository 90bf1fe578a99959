"""Draw the figures of docs/how-it-works.md: `python -m benchmarks.drawings`.

The points are made up, but what happens to them is not: they are clustered and filtered by the package's own functions.
"""

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from candapt.clustering import class_centers, spherical_kmeans

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # distinguishable for the color-blind
GRAY, INK, LINE = "#9aa3ad", "#22303c", "#d5dbe1"
CARD = (340, 300)  # width and height of a panel
GAP = 64

Point = tuple[float, float]


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, drawing in (("alternation", alternation()), ("class-aware-sampling", class_aware_sampling())):
        (PICTURES / f"{name}.svg").write_text(drawing, encoding="utf-8")


# Shapes.


def svg(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """A drawing on white, so that it is readable on a dark page too."""
    font = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}"'
    marker = (
        '<marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 10 5 0 10z" fill="{INK}"/></marker>'
    )
    background = f'<rect width="{width}" height="{height}" rx="12" fill="#ffffff"/>'
    return "\n".join([f"{head} {font}>", f"<defs>{marker}</defs>", background, *parts, "</svg>", ""])


def text(x: float, y: float, content: str, *, size: int = 16, color: str = INK, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="middle"{weight}>{content}</text>'


def circle(x: float, y: float, color: str, *, radius: float = 5, opacity: float = 1) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{color}" fill-opacity="{opacity:g}"/>'


def diamond(x: float, y: float, color: str, *, radius: float = 6.5, opacity: float = 1) -> str:
    path = f"M{x:.1f} {y - radius:.1f}l{radius} {radius} {-radius} {radius} {-radius} {-radius}z"
    return f'<path d="{path}" fill="#fff" stroke="{color}" stroke-width="2" opacity="{opacity:g}"/>'


def cross(x: float, y: float, color: str) -> str:
    path = f"M{x - 8:.1f} {y:.1f}h16M{x:.1f} {y - 8:.1f}v16"
    outline = f'<path d="{path}" stroke="#fff" stroke-width="7" stroke-linecap="round"/>'
    return f'{outline}<path d="{path}" stroke="{color}" stroke-width="4" stroke-linecap="round"/>'


def arrow(start: Point, end: Point, *, color: str = INK, width: float = 2.5) -> str:
    (x, y), (u, v) = start, end
    line = f'x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}"'
    return f'<line {line} stroke="{color}" stroke-width="{width:g}" marker-end="url(#head)"/>'


def card(x: float, y: float, title: str, lines: Sequence[str], parts: Iterable[str]) -> list[str]:
    """A panel with a title above what it shows, and an explanation below."""
    width, height = CARD
    frame = f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{height}" rx="10" fill="#fff" stroke="{LINE}"/>'
    inner = f'<g transform="translate({x:g} {y + 36:g})">' + "".join(parts) + "</g>"
    below = [
        text(x + width / 2, y + height - 38 + 20 * number, line, size=15, color="#48565f")
        for number, line in enumerate(lines)
    ]
    return [frame, text(x + width / 2, y + 28, title, size=18, bold=True), inner, *below]


# The alternation.


def alternation() -> str:
    """One round: embed, cluster, keep, align; and again."""
    (width, height), left, top = CARD, 16, 16
    right, bottom = left + width + GAP, top + height + GAP
    panels = _panels()
    parts = [
        *card(left, top, "1 Embed", ("Source (dots) with labels,", "target (diamonds) without"), panels[0]),
        *card(right, top, "2 Cluster", ("k-means from the source’s class", "centers gives pseudo labels"), panels[1]),
        *card(right, bottom, "3 Keep", ("Only samples near their center,", "in each class"), panels[2]),
        *card(left, bottom, "4 Align", ("Equal classes move together,", "different ones apart"), panels[3]),
        arrow((left + width + 10, top + 150), (right - 10, top + 150)),
        arrow((right + width / 2, top + height + 10), (right + width / 2, bottom - 10)),
        arrow((right - 10, bottom + 150), (left + width + 10, bottom + 150)),
        arrow((left + width / 2, bottom - 10), (left + width / 2, top + height + 10)),
        text((left + right + width) / 2, top + height + 26, "better features, better clusters:", size=15),
        text((left + right + width) / 2, top + height + 48, "repeat until the labels settle", size=15),
    ]
    label = "The alternation: embed both domains, cluster the target, keep what is near a center, align class by class"
    return svg(right + width + 16, bottom + height + 16, label, parts)


def _panels() -> list[list[str]]:
    """What happens to the same points in the four steps."""
    source, labels, target = _domains()
    centers = class_centers(source, labels, 3)
    clusters = spherical_kmeans(target, centers)
    kept = clusters.within(0.008).kept
    moved = target + 0.8 * (_means(source, labels) - _means(target, clusters.labels))[clusters.labels]
    dots = [circle(*_place(p), COLORS[c]) for p, c in zip(source, labels, strict=True)]
    faint = [circle(*_place(p), COLORS[c], opacity=0.25) for p, c in zip(source, labels, strict=True)]
    colored = [diamond(*_place(p), COLORS[c]) for p, c in zip(target, clusters.labels, strict=True)]
    sure = [
        diamond(*_place(p), COLORS[c] if keep else GRAY, opacity=1 if keep else 0.45)
        for p, c, keep in zip(target, clusters.labels, kept, strict=True)
    ]
    aligned = [diamond(*_place(p), COLORS[c]) for p, c, k in zip(moved, clusters.labels, kept, strict=True) if k]
    starts = [cross(*_place(mean), COLORS[c]) for c, mean in enumerate(_means(source, labels))]
    found = [cross(*_place(mean), COLORS[c]) for c, mean in enumerate(_means(target, clusters.labels))]
    return [
        [*dots, *(diamond(*_place(p), GRAY) for p in target)],
        [*faint, *colored, *starts],
        [*sure, *found],
        [*dots, *aligned],
    ]


def _domains() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three classes in different directions from the origin; the target's are turned a little and closer to it."""
    draw = np.random.default_rng(3)
    labels = np.repeat(np.arange(3), 9)

    def points(turn: float, scale: float, spread: float) -> torch.Tensor:
        angles = np.radians([14, 44, 74])[labels] + math.radians(turn) + draw.normal(0, spread, len(labels))
        radii = scale * (1 + draw.normal(0, 0.09, len(labels)))
        return torch.tensor(np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1), dtype=torch.float32)

    return points(4, 0.95, 0.06), torch.as_tensor(labels), points(-7, 0.62, 0.085)


def _means(points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([points[labels == number].mean(0) for number in range(3)])


def _place(point: torch.Tensor) -> Point:
    """Where a point is drawn, from the lower left corner of a panel."""
    return 30 + 265 * float(point[0]), 188 - 176 * float(point[1])


# Class-aware sampling.


def class_aware_sampling() -> str:
    """A random batch beside a class-aware one."""
    left, right, top = 16, 16 + CARD[0] + 24, 16
    parts = [
        *card(left, top, "Random batch", ("Classes of one domain", "often lack a partner (gray)"), _random_batch()),
        *card(
            right, top, "Class-aware batch", ("The same classes in both domains,", "as many samples of each"), _batch()
        ),
    ]
    label = "A random batch, in which classes lack a partner in the other domain, beside a class-aware batch"
    return svg(right + CARD[0] + 16, top + CARD[1] + 16, label, parts)


def _random_batch() -> list[str]:
    draw = random.Random(5)
    source, target = ([draw.randrange(12) for _ in range(9)] for _ in range(2))
    both = sorted(set(source) & set(target))
    colors = dict(zip(both, COLORS, strict=False))
    parts = [text(92, 24, "source", size=14), text(248, 24, "target", size=14)]
    for place in range(9):
        x, y = 54 + 38 * (place % 3), 62 + 52 * (place // 3)
        parts.append(circle(x, y, colors.get(source[place], GRAY), radius=11))
        parts.append(diamond(x + 156, y, colors.get(target[place], GRAY), radius=12))
    return parts


def _batch() -> list[str]:
    parts = [text(92, 24, "source", size=14), text(248, 24, "target (pseudo labels)", size=14)]
    for row, color in enumerate(COLORS[:3]):
        y = 62 + 52 * row
        parts += [circle(54 + 38 * column, y, color, radius=11) for column in range(3)]
        parts += [diamond(210 + 38 * column, y, color, radius=12) for column in range(3)]
        parts.append(f'<path d="M148 {y}h44" stroke="{color}" stroke-width="4"/>')
    return parts


if __name__ == "__main__":
    main()
