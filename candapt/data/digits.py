"""Printed digits that are drawn on the spot, and the handwritten digits they are adapted to.

The source domain costs nothing to label: each image is a digit of one of the fonts that matplotlib ships, slanted,
turned, thickened, stretched and bent a little at random. The target domain is scikit-learn's `load_digits`: the 1,797
test images of the UCI data set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), written by 13
people. There a 32 x 32 bitmap, filled by the digit from top to bottom, was reduced to 8 x 8 by counting the
ink in blocks of 4 x 4, and the drawing ends with the same step, so both domains hold counts from 0 to 16. What is left
between them is the gap between print and handwriting.

The defaults of `Rendering` were set by eye and by statistics of the unlabelled target (ink per image, row and column,
and empty columns). No target label was used for them.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from sklearn.datasets import load_digits

from candapt.randomness import derive_seed

FloatArray = npt.NDArray[np.floating[Any]]

# Left out: symbol fonts without digits, DejaVu Sans Mono (a dot inside its zero) and cmmi10 (old-style digits, whose
# one is a small capital I).
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
"""File names, without .ttf, of the fonts that matplotlib ships and that have ten plain digits."""

FRAME = 32
"""Side of the bitmap in which ink is counted."""
BLOCK = 4
"""Side of the blocks of the bitmap that become one pixel each."""
GLYPH = 96
"""Height in pixels at which each digit of each font is rendered once."""
MARGIN = GLYPH // 4
"""Empty border around a rendered glyph, wide enough for the thickest stroke."""
CANVAS = 64
"""Side of the grid on which a deformed digit is looked at to find its bounding box."""
REACH = 0.9
"""Half the side of that grid, in glyph heights: room for a digit that is turned and bent."""


@dataclass(frozen=True)
class Rendering:
    """How much rendered digits vary. Lengths are in heights of the undeformed digit."""

    rotation: float = 10.0
    """Standard deviation of the angle by which a digit is turned, in degrees."""
    shear: float = 0.15
    """Standard deviation of the slant: the sideways shift of the digit's top against its bottom."""
    width: float = 0.88
    """Typical factor by which a digit's width is stretched."""
    width_spread: float = 0.12
    """Standard deviation of the logarithm of that factor."""
    pen: float = 0.08
    """Mean radius of the pen: strokes are thickened or thinned until they are, on average, twice as wide as this."""
    pen_spread: float = 0.01
    """Standard deviation of that radius."""
    max_thinning: float = 0.01
    """Most that is taken off each side of a stroke, so that a bold font stays bold and keeps its thin strokes."""
    warp: float = 0.03
    """Standard deviation of each coefficient of the smooth random displacement of points."""
    warp_waves: int = 3
    """Number of cosine waves along each axis in that displacement; more waves bend finer details."""
    max_width: float = 0.72
    """Largest width of the finished digit, as a share of the frame; wider digits are squeezed."""
    shift: float = 0.02
    """Standard deviation of the finished digit's sideways shift from the middle, as a share of the frame."""


def rendered_digits(
    count: int, seed: int, rendering: Rendering | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw printed digits. Image `i` shows digit `i % 10` and depends on nothing but `seed`, `i` and `rendering`.

    Args:
        count: number of images; a multiple of ten gives every digit equally often.
        seed: what the random choices are derived from.
        rendering: how much the digits vary.

    Returns:
        Images of shape (count, 8, 8) with ink counts from 0 to 16, and labels of shape (count,).
    """
    rendering = rendering or Rendering()
    labels = np.arange(count, dtype=np.int64) % 10
    bitmaps = np.empty((count, FRAME, FRAME), dtype=bool)
    for index, digit in enumerate(labels):
        rng = np.random.default_rng(derive_seed(seed, index, "rendered digit"))
        bitmaps[index] = _draw(int(digit), rendering, rng)
    return _block_counts(bitmaps), labels


def handwritten_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The UCI digits that come with scikit-learn: images (1797, 8, 8) with ink counts from 0 to 16, labels (1797,)."""
    digits = load_digits()
    return np.asarray(digits.images, dtype=np.float32), np.asarray(digits.target, dtype=np.int64)


def _block_counts(bitmaps: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Number of ink pixels in each block: (n, 32, 32) -> (n, 8, 8)."""
    side = FRAME // BLOCK
    blocks = bitmaps.reshape(-1, side, BLOCK, side, BLOCK)
    return np.asarray(blocks.sum(axis=(2, 4)), dtype=np.float32)


def _draw(digit: int, rendering: Rendering, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """One deformed digit as a bitmap (32, 32) that it fills from top to bottom."""
    glyph = _glyph(FONTS[rng.integers(len(FONTS))], digit)
    # Distances to the outline instead of ink: adding to them thickens every stroke evenly, and being smooth they
    # survive two resamplings, so ink is told from background only once, at the end.
    field = ndimage.map_coordinates(glyph, _deformed_grid(glyph.shape, rendering, rng), order=1, mode="nearest")
    field += _added_thickness(glyph, rendering, rng)
    return _fill_frame(field, rendering, rng) > 0


@cache
def _glyph(font: str, digit: int) -> npt.NDArray[np.float32]:
    """Signed distance to the digit's outline, positive inside, in glyph heights; the digit is centered."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")
    # The basic layout is built into every Pillow; the other one depends on an optional library.
    face = ImageFont.truetype(str(path), 2 * GLYPH, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = face.getbbox(str(digit))
    image = Image.new("L", (round(right - left), round(bottom - top)))
    ImageDraw.Draw(image).text((-left, -top), str(digit), fill=255, font=face)
    image = image.resize((round(GLYPH * image.width / image.height), GLYPH), Image.Resampling.BILINEAR)
    ink = np.pad(np.asarray(image) > 127, MARGIN)
    distance = ndimage.distance_transform_edt(ink) - ndimage.distance_transform_edt(~ink)
    return np.asarray(distance / GLYPH, dtype=np.float32)


def _added_thickness(glyph: FloatArray, rendering: Rendering, rng: np.random.Generator) -> float:
    """What to add to each side of a glyph's strokes, in glyph heights; at least half of a stroke is left."""
    radius = _stroke_radius(glyph)
    wanted = rng.normal(rendering.pen, rendering.pen_spread) - radius
    return max(wanted, -min(rendering.max_thinning, radius / 2))


def _stroke_radius(glyph: FloatArray) -> float:
    """Half the mean width of a glyph's strokes, in glyph heights: a stroke's area over the length of its two sides."""
    area = np.count_nonzero(glyph > 0)
    outline = np.count_nonzero((glyph > 0) & (glyph < 1.5 / GLYPH))  # ink pixels that touch the background
    return area / outline / GLYPH


def _deformed_grid(shape: tuple[int, ...], rendering: Rendering, rng: np.random.Generator) -> FloatArray:
    """Where in a glyph each point of the canvas looks: pixel coordinates (row and column, 64, 64)."""
    turn = np.deg2rad(rng.normal(0, rendering.rotation))
    slant = rng.normal(0, rendering.shear)
    stretch = rendering.width * np.exp(rng.normal(0, rendering.width_spread))
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    # In (row, column) order, from canvas to glyph: undo the turn, then the slant, then the stretch.
    matrix = np.array([[1, 0], [slant / stretch, 1 / stretch]]) @ rotation
    axis = np.linspace(-REACH, REACH, CANVAS)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"))
    points += _displacement(rendering, rng)
    center = (np.array(shape) - 1) / 2
    return np.tensordot(matrix, points, axes=1) * GLYPH + center[:, None, None]


def _displacement(rendering: Rendering, rng: np.random.Generator) -> FloatArray:
    """A smooth random displacement of the canvas, shape (row and column, 64, 64): a few long cosine waves."""
    waves = np.arange(rendering.warp_waves)
    basis = np.cos(np.pi * np.outer((np.arange(CANVAS) + 0.5) / CANVAS, waves))  # (64, waves)
    coefficients = rng.normal(0, rendering.warp, (2, len(waves), len(waves)))
    return np.asarray(basis @ coefficients @ basis.T)


def _fill_frame(field: FloatArray, rendering: Rendering, rng: np.random.Generator) -> FloatArray:
    """Cut out the digit's bounding box and scale it to the frame's height, in the middle up to a small shift."""
    rows, columns = np.nonzero(field > 0)
    top, bottom = rows.min(), rows.max() + 1
    left, right = columns.min(), columns.max() + 1
    pixels = (np.arange(FRAME) + 0.5) / FRAME
    height, width = bottom - top, right - left
    scale = max(height, width / rendering.max_width)  # canvas cells along the frame's width
    down = top + pixels * height
    across = (left + right) / 2 + (pixels - 0.5 + rng.normal(0, rendering.shift)) * scale
    grid = np.stack(np.meshgrid(down - 0.5, across - 0.5, indexing="ij"))
    return np.asarray(ndimage.map_coordinates(field, grid, order=1, mode="nearest"))
