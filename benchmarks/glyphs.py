"""Write `candapt/data/glyphs.npz`, the digits of 17 fonts as bitmaps: `python -m benchmarks.glyphs`.

Needs matplotlib, which candapt itself does not, for the font files that it ships:

- DejaVu Sans and DejaVu Serif (regular, bold, oblique or italic, and both), from the DejaVu project;
- STIXGeneral (regular, bold, italic, and both), from the STIX project;
- Computer Modern (cmr10, cmb10, cmss10, cmti10, cmtt10) by Donald Knuth, as TrueType from the BaKoMa collection.

Left out are symbol fonts without digits, DejaVu Sans Mono (its zero has a dot inside) and cmmi10 (old-style digits,
whose one is a small capital I).

The bitmaps may change by a few pixels with the version of FreeType inside Pillow, and a single pixel changes the
rendered digits. That is why candapt ships the bitmaps; do not replace them without need.
"""

from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from candapt.data.digits import FONTS, GLYPH, GLYPHS


def main() -> None:
    bitmaps = [[render(font, digit) for digit in range(10)] for font in FONTS]
    widths = np.array([[bitmap.shape[1] for bitmap in row] for row in bitmaps], dtype=np.int64)
    ink = np.zeros((*widths.shape, GLYPH, widths.max()), dtype=bool)
    for index, width in np.ndenumerate(widths):
        ink[index][:, :width] = bitmaps[index[0]][index[1]]
    np.savez_compressed(GLYPHS, fonts=np.array(FONTS), widths=widths, bits=np.packbits(ink, axis=-1))
    print(f"{GLYPHS}: {widths.size} bitmaps, {GLYPHS.stat().st_size:,} bytes")


def render(font: str, digit: int) -> npt.NDArray[np.bool_]:
    """Return a digit's ink, cropped to its bounding box and scaled to the height of all glyphs."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")
    # Every Pillow has the basic layout engine; the other one depends on an optional library.
    face = ImageFont.truetype(str(path), 2 * GLYPH, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = face.getbbox(str(digit))
    image = Image.new("L", (round(right - left), round(bottom - top)))
    ImageDraw.Draw(image).text((-left, -top), str(digit), fill=255, font=face)
    image = image.resize((round(GLYPH * image.width / image.height), GLYPH), Image.Resampling.BILINEAR)
    return np.asarray(image) > 127


if __name__ == "__main__":
    main()
