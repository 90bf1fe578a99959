"""Printed digits, rendered on demand, and the handwritten digits to which the demo adapts a classifier.

The source domain costs nothing to label: each image shows a digit in one of 17 fonts, slightly slanted, rotated,
thickened, stretched and warped at random. The target domain is scikit-learn's `load_digits`: the 1,797 test images of
the UCI data set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), written by 13 people. That
data set scales each digit to the full height of a 32 x 32 bitmap and reduces the bitmap to 8 x 8 by counting the ink in
blocks of 4 x 4. Rendering ends with the same step, so both domains hold counts from 0 to 16 and differ only by the gap
between print and handwriting.

The defaults of `Rendering` were chosen by eye and from statistics of the unlabeled target (ink per image, row and
column, and empty columns). No target label was used to choose them.

`glyphs.npz` holds the digits of all fonts as bitmaps, so rendering needs neither font files nor a font library.
`python -m benchmarks.glyphs` writes that file.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from candapt.randomness import derive_seed

# SciPy and scikit-learn load slowly, so the functions that need them import them.

FloatArray = npt.NDArray[np.floating[Any]]
LabeledImages = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

# Fonts in `glyphs.npz`, in the order of its first axis; `benchmarks/glyphs.py` names their origin. Another order would
# change which font a seed selects, and so every rendered digit.
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
GLYPHS = Path(__file__).with_name("glyphs.npz")  # bitmaps of every digit in every font
FRAME = 32  # side of the bitmap whose ink is counted
BLOCK = 4  # side of the blocks of that bitmap; each block becomes one pixel
GLYPH = 96  # height of the bitmaps in `glyphs.npz`
MARGIN = GLYPH // 4  # empty border around a glyph, wide enough for the thickest stroke
CANVAS = 64  # side of the grid that samples a deformed digit before it is cropped to its bounding box
REACH = 0.9  # half the side of that grid, in glyph heights: room for a rotated and warped digit
RENDERED = 2000  # number of rendered digits in the demo's source domain
SIDE = 16  # height and width to which `enlarge` scales the 8 x 8 digits, so that a network can pool three times


@dataclass(frozen=True)
class Rendering:
    """How much rendered digits vary. Lengths are in heights of the undeformed digit."""

    rotation: float = 10.0  # standard deviation of the rotation angle, in degrees
    shear: float = 0.15  # standard deviation of the slant: how far the digit's top is shifted relative to its bottom
    width: float = 0.88  # median factor by which a digit's width is stretched
    width_spread: float = 0.12  # standard deviation of the logarithm of that factor
    pen: float = 0.08  # mean radius of the pen: strokes are thickened or thinned until their mean width is twice this
    pen_spread: float = 0.01  # standard deviation of that radius
    max_thinning: float = 0.01  # at most removed from each side of a stroke, so that bold fonts keep their thin strokes
    warp: float = 0.03  # standard deviation of each coefficient of the smooth random displacement
    warp_waves: int = 3  # cosine waves along each axis in that displacement; more waves bend finer details
    max_width: float = 0.72  # maximum width of the finished digit, as a fraction of the frame; wider ones are squeezed
    shift: float = 0.02  # standard deviation of its horizontal offset from the center, as a fraction of the frame


def rendered_digits(count: int, seed: int, rendering: Rendering | None = None) -> LabeledImages:
    """Return images of printed digits (count, 8, 8) with ink counts from 0 to 16, and their labels (count,).

    Image `i` shows digit `i % 10` and depends only on `seed`, `i` and `rendering`.
    """
    rendering = rendering or Rendering()
    labels = np.arange(count, dtype=np.int64) % 10
    bitmaps = np.empty((count, FRAME, FRAME), dtype=bool)
    for index, digit in enumerate(labels):
        rng = np.random.default_rng(derive_seed(seed, index, "rendered digit"))
        bitmaps[index] = _draw(int(digit), rendering, rng)
    return _block_counts(bitmaps), labels


def handwritten_digits() -> LabeledImages:
    """Return scikit-learn's UCI digits: images (1797, 8, 8) with ink counts from 0 to 16, and labels (1797,)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.asarray(digits.images, dtype=np.float32), np.asarray(digits.target, dtype=np.int64)


def enlarge(x: FloatArray) -> FloatArray:
    """Return images (n, 16, 16) with values from 0 to 1, interpolated from ink counts (n, 8, 8) from 0 to 16."""
    images = torch.as_tensor(x)[:, None] / BLOCK**2
    return F.interpolate(images, size=(SIDE, SIDE), mode="bilinear").squeeze(1).numpy()


def write_demo_data(folder: Path, seed: int) -> None:
    """Create `folder` with both domains as feature files and the target's labels as a CSV file.

    The labels have a file of their own because adaptation must not see them; they only serve to measure accuracy.
    """
    folder.mkdir(parents=True)
    x, y = rendered_digits(RENDERED, seed)
    np.savez_compressed(folder / "rendered.npz", x=enlarge(x), y=y)
    x, y = handwritten_digits()
    np.savez_compressed(folder / "handwritten.npz", x=enlarge(x))
    rows = "".join(f"{row},{label}\n" for row, label in enumerate(y))
    (folder / "handwritten-labels.csv").write_text(f"path,label\n{rows}", encoding="utf-8")


def _block_counts(bitmaps: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Return the number of ink pixels in each block: (n, 32, 32) -> (n, 8, 8)."""
    blocks = bitmaps.reshape(-1, FRAME // BLOCK, BLOCK, FRAME // BLOCK, BLOCK)
    return np.asarray(blocks.sum(axis=(2, 4)), dtype=np.float32)


def _draw(digit: int, rendering: Rendering, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Return a randomly deformed digit as a bitmap (32, 32) that it fills from top to bottom."""
    from scipy import ndimage

    glyph = _glyph(FONTS[rng.integers(len(FONTS))], digit)
    # Work on distances to the outline instead of ink: adding a constant thickens every stroke evenly, and a smooth
    # field survives two resamplings, so a single threshold at the end separates ink from background.
    field = ndimage.map_coordinates(glyph, _deformed_grid(glyph.shape, rendering, rng), order=1, mode="nearest")
    field += _added_thickness(glyph, rendering, rng)
    return _fill_frame(field, rendering, rng) > 0


@cache
def _glyph(font: str, digit: int) -> npt.NDArray[np.float32]:
    """Return the signed distance to a centered digit's outline, positive inside, in glyph heights."""
    from scipy import ndimage

    ink = np.pad(_bitmap(font, digit), MARGIN)
    distance = ndimage.distance_transform_edt(ink) - ndimage.distance_transform_edt(~ink)
    return np.asarray(distance / GLYPH, dtype=np.float32)


def _bitmap(font: str, digit: int) -> npt.NDArray[np.bool_]:
    """Return a digit's ink, cropped to its bounding box: shape (96, width)."""
    bits, widths = _glyph_file()
    row = FONTS.index(font)
    return np.unpackbits(bits[row, digit], axis=1, count=int(widths[row, digit])).astype(bool)


@cache
def _glyph_file() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the packed bitmaps (font, digit, 96, bytes) and their widths in pixels (font, digit)."""
    with np.load(GLYPHS, allow_pickle=False) as file:
        return file["bits"], file["widths"]


def _added_thickness(glyph: FloatArray, rendering: Rendering, rng: np.random.Generator) -> float:
    """Return what to add to each side of a glyph's strokes, in glyph heights; at least half of a stroke remains."""
    area = np.count_nonzero(glyph > 0)
    outline = np.count_nonzero((glyph > 0) & (glyph < 1.5 / GLYPH))  # ink pixels that touch the background
    radius = area / outline / GLYPH  # half the mean stroke width
    added = rng.normal(rendering.pen, rendering.pen_spread) - radius
    return max(added, -min(rendering.max_thinning, radius / 2))


def _deformed_grid(shape: tuple[int, ...], rendering: Rendering, rng: np.random.Generator) -> FloatArray:
    """Return the glyph's pixel coordinates that each canvas point samples: (row and column, 64, 64)."""
    angle = np.deg2rad(rng.normal(0, rendering.rotation))
    slant = rng.normal(0, rendering.shear)
    stretch = rendering.width * np.exp(rng.normal(0, rendering.width_spread))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    # In (row, column) order, from canvas to glyph: undo the rotation, then the slant, then the stretch.
    matrix = np.array([[1, 0], [slant / stretch, 1 / stretch]]) @ rotation
    axis = np.linspace(-REACH, REACH, CANVAS)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij")) + _displacement(rendering, rng)
    center = (np.array(shape) - 1) / 2
    return np.tensordot(matrix, points, axes=1) * GLYPH + center[:, None, None]


def _displacement(rendering: Rendering, rng: np.random.Generator) -> FloatArray:
    """Return a smooth random displacement of the canvas, (row and column, 64, 64): a sum of long cosine waves."""
    waves = np.arange(rendering.warp_waves)
    basis = np.cos(np.pi * np.outer((np.arange(CANVAS) + 0.5) / CANVAS, waves))  # (64, waves)
    coefficients = rng.normal(0, rendering.warp, (2, len(waves), len(waves)))
    return np.asarray(basis @ coefficients @ basis.T)


def _fill_frame(field: FloatArray, rendering: Rendering, rng: np.random.Generator) -> FloatArray:
    """Return the digit cropped to its bounding box, scaled to the frame's height and centered up to a small shift."""
    from scipy import ndimage

    rows, columns = np.nonzero(field > 0)
    left, right = columns.min(), columns.max() + 1
    height = rows.max() + 1 - rows.min()
    scale = max(height, (right - left) / rendering.max_width)  # canvas cells across the frame's width
    pixels = (np.arange(FRAME) + 0.5) / FRAME
    down = rows.min() + pixels * height
    across = (left + right) / 2 + (pixels - 0.5 + rng.normal(0, rendering.shift)) * scale
    grid = np.stack(np.meshgrid(down - 0.5, across - 0.5, indexing="ij"))
    return np.asarray(ndimage.map_coordinates(field, grid, order=1, mode="nearest"))
