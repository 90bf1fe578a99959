import hashlib
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from scipy import ndimage

from candapt.data import digits
from candapt.data.digits import FONTS, Rendering, enlarge, handwritten_digits, rendered_digits, write_demo_data

Labeled: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

# Images of `rendered_digits(100, seed=0)`; recorded results depend on them.
RENDERED_SHA256 = "2d71d0c6d071022743173548614db40706da5442f7b6eaf096698eaefa90708a"


@pytest.fixture(scope="module")
def rendered() -> Labeled:
    return rendered_digits(1000, seed=0)


@pytest.fixture(scope="module")
def handwritten() -> Labeled:
    return handwritten_digits()


@pytest.mark.parametrize(("domain", "count"), [("rendered", 1000), ("handwritten", 1797)])
def test_both_domains_hold_block_counts(domain: str, count: int, request: pytest.FixtureRequest) -> None:
    images, labels = request.getfixturevalue(domain)
    assert images.shape == (count, 8, 8)
    assert images.dtype == np.float32
    assert labels.shape == (count,)
    assert labels.dtype == np.int64
    assert images.min() == 0
    assert images.max() == 16
    assert np.array_equal(images, np.round(images))


def test_rendered_digits_never_change() -> None:
    images, labels = rendered_digits(100, seed=0)
    assert hashlib.sha256(images.tobytes()).hexdigest() == RENDERED_SHA256
    assert np.array_equal(labels, np.arange(100) % 10)


def test_same_seed_same_images(rendered: Labeled) -> None:
    again, labels = rendered_digits(1000, seed=0)
    assert np.array_equal(again, rendered[0])
    assert np.array_equal(labels, rendered[1])


def test_another_seed_changes_every_image(rendered: Labeled) -> None:
    other, _ = rendered_digits(100, seed=1)
    assert (other != rendered[0][:100]).any(axis=(1, 2)).all()


def test_an_image_does_not_depend_on_how_many_are_drawn(rendered: Labeled) -> None:
    few, labels = rendered_digits(25, seed=0)
    assert np.array_equal(few, rendered[0][:25])
    assert np.array_equal(labels, rendered[1][:25])


def test_global_random_state_is_neither_used_nor_changed(rendered: Labeled) -> None:
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    images, _ = rendered_digits(10, seed=0)
    assert np.array_equal(images, rendered[0][:10])
    assert np.random.random() == expected


@pytest.mark.parametrize("count", [0, 1, 10, 37])
def test_classes_are_balanced(count: int) -> None:
    images, labels = rendered_digits(count, seed=3)
    occurrences = np.bincount(labels, minlength=10)
    assert images.shape == (count, 8, 8)
    assert len(occurrences) == 10
    assert occurrences.max() - occurrences.min() <= 1


def test_images_of_a_class_differ(rendered: Labeled) -> None:
    images, labels = rendered
    for digit in range(10):
        same = images[labels == digit].reshape(-1, 64)
        assert len(np.unique(same, axis=0)) == len(same)


def test_digits_fill_the_height_like_the_handwritten_ones(rendered: Labeled, handwritten: Labeled) -> None:
    for images, _ in (rendered, handwritten):
        assert (images.sum(axis=2) > 0).mean() > 0.999
        assert (images[:, [0, -1]].sum(axis=2) > 0).all()


def test_ink_statistics_are_near_those_of_the_unlabeled_target(rendered: Labeled, handwritten: Labeled) -> None:
    print_, hand = rendered[0], handwritten[0]
    assert print_.sum(axis=(1, 2)).mean() == pytest.approx(hand.sum(axis=(1, 2)).mean(), rel=0.06)
    assert np.abs(print_.mean(axis=(0, 2)) - hand.mean(axis=(0, 2))).max() < 1  # by row, of about 5
    assert np.abs(print_.mean(axis=(0, 1)) - hand.mean(axis=(0, 1))).max() < 2.5  # by column, of up to 10
    empty_columns = [(images.sum(axis=1) == 0).mean() for images in (print_, hand)]
    assert empty_columns[0] == pytest.approx(empty_columns[1], abs=0.05)


def test_nearest_class_mean_recognizes_rendered_digits(rendered: Labeled) -> None:
    images, labels = rendered
    means = np.stack([images[labels == digit].mean(axis=0) for digit in range(10)])
    fresh, truth = rendered_digits(300, seed=7)
    distances = ((fresh[:, None] - means) ** 2).sum(axis=(2, 3))
    assert (distances.argmin(axis=1) == truth).mean() > 0.7


def test_glyph_file_holds_the_fonts_in_order() -> None:
    with np.load(digits.GLYPHS, allow_pickle=False) as file:
        assert tuple(file["fonts"]) == FONTS
        assert file["widths"].shape == (len(FONTS), 10)
        assert file["bits"].shape[:3] == (len(FONTS), 10, digits.GLYPH)


def test_glyph_file_matches_the_fonts() -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.glyphs import render

    for font in FONTS:
        for digit in range(10):
            shipped, drawn = digits._bitmap(font, digit), render(font, digit)
            # Versions of FreeType may differ along the outline.
            assert abs(shipped.shape[1] - drawn.shape[1]) <= 1
            width = min(shipped.shape[1], drawn.shape[1])
            assert (shipped[:, :width] != drawn[:, :width]).mean() < 0.05


@pytest.mark.parametrize("font", FONTS)
def test_every_font_has_ten_connected_digits(font: str) -> None:
    glyphs = [digits._glyph(font, digit) for digit in range(10)]
    assert len({(glyph > 0).tobytes() for glyph in glyphs}) == 10
    for glyph in glyphs:
        assert ndimage.label(glyph > 0, np.ones((3, 3)))[1] == 1
        rows, columns = np.nonzero(glyph > 0)
        assert np.ptp(rows) + 1 == pytest.approx(digits.GLYPH, abs=1)
        assert 0.3 < (np.ptp(columns) + 1) / digits.GLYPH < 1


def test_holes_tell_zero_six_eight_and_nine_from_the_rest() -> None:
    for font in FONTS:
        holes = [ndimage.label(digits._glyph(font, digit) <= 0)[1] - 1 for digit in range(10)]
        assert [holes[digit] for digit in (0, 1, 3, 5, 6, 7, 8, 9)] == [1, 0, 0, 0, 1, 0, 2, 1]


def test_without_variety_only_the_font_is_random() -> None:
    still = Rendering(rotation=0, shear=0, width_spread=0, pen_spread=0, warp=0, shift=0)
    images, labels = rendered_digits(1000, seed=0, rendering=still)
    for digit in range(10):
        distinct = np.unique(images[labels == digit], axis=0)
        assert len(FONTS) - 4 <= len(distinct) <= len(FONTS)  # with 100 draws a font or two may be missing


@pytest.mark.parametrize("field", ["rotation", "shear", "width_spread", "pen_spread", "warp", "shift"])
def test_each_kind_of_variety_changes_images(field: str) -> None:
    none = dict.fromkeys(("rotation", "shear", "width_spread", "pen_spread", "warp", "shift"), 0)
    still, _ = rendered_digits(20, seed=0, rendering=Rendering(**none))
    varied, _ = rendered_digits(20, seed=0, rendering=Rendering(**{**none, field: getattr(Rendering(), field)}))
    assert (still != varied).any(axis=(1, 2)).mean() > 0.5


def test_a_thicker_pen_leaves_more_ink() -> None:
    inks = [rendered_digits(50, seed=0, rendering=Rendering(pen=pen))[0].sum() for pen in (0.06, 0.08, 0.1)]
    assert inks == sorted(inks)


def test_the_thinnest_pen_leaves_ink() -> None:
    images, _ = rendered_digits(100, seed=0, rendering=Rendering(pen=0, max_thinning=1))
    assert (images.sum(axis=(1, 2)) > 0).all()


def test_block_counts_count_ink() -> None:
    bitmap = np.zeros((1, 32, 32), dtype=bool)
    bitmap[0, 4:8, 0:3] = True
    counts = digits._block_counts(bitmap)
    assert counts[0, 1, 0] == 12
    assert counts.sum() == 12


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_extreme_variety_still_leaves_ink_in_every_frame(seed: int) -> None:
    wild = Rendering(rotation=40, shear=0.5, width_spread=0.4, pen_spread=0.03, warp=0.08)
    images, _ = rendered_digits(100, seed=seed, rendering=wild)
    assert (images.sum(axis=(1, 2)) > 0).all()


def test_enlarge_doubles_the_side_and_scales_to_one(handwritten: Labeled) -> None:
    images = enlarge(handwritten[0][:20])
    assert images.shape == (20, digits.SIDE, digits.SIDE)
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1


def test_demo_data_hold_both_domains_and_the_target_labels_apart(
    handwritten: Labeled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "RENDERED", 20)
    folder = tmp_path / "data"
    write_demo_data(folder, seed=3)
    x, y = rendered_digits(20, seed=3)
    with np.load(folder / "rendered.npz", allow_pickle=False) as source:
        assert np.array_equal(source["x"], enlarge(x))
        assert np.array_equal(source["y"], y)
    with np.load(folder / "handwritten.npz", allow_pickle=False) as target:
        assert target.files == ["x"]
        assert np.array_equal(target["x"], enlarge(handwritten[0]))
    header, *rows = (folder / "handwritten-labels.csv").read_text(encoding="utf-8").splitlines()
    assert header == "path,label"
    assert rows == [f"{row},{label}" for row, label in enumerate(handwritten[1])]
