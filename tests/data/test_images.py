"""Folders of images with everything that is found in them."""

import io
import logging
import os
import pickle
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from candapt.data.decoding import BrokenImageError, ImageCheck, check_images, read_image
from candapt.data.domains import Domain, LabeledDomain
from candapt.data.images import ImageSamples, find_images, image_domain, labeled_image_domain
from candapt.data.inventory import describe_images
from candapt.data.transforms import Views
from candapt.errors import UserError
from candapt.settings import ImageSettings

SMALL = ImageSettings(size=12, resize=16)


def gradient(width: int = 24, height: int = 16) -> np.ndarray:
    """Red grows to the right, green downwards."""
    values = np.zeros((height, width, 3), np.uint8)
    values[..., 0] = np.linspace(0, 255, width)[None, :]
    values[..., 1] = np.linspace(0, 255, height)[:, None]
    values[..., 2] = 80
    return values


def save(path: Path, values: np.ndarray | None = None, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient() if values is None else values).save(path, **options)
    return path


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises an image of that size and has no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def truncated_jpeg(path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = save(path, noise, quality=95).read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    return path


class TestFindImages:
    def test_flat_and_nested_in_sorted_order(self, tmp_path: Path) -> None:
        for name in ("b.PNG", "a/z.jpg", "a/y/x.Tiff", "c.webp", "d.jpeg", "e.bmp", "f.ppm", "g.tif"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        for name in ("notes.txt", ".hidden.jpg", "._a.jpg", "a/.cache/q.jpg", "__MACOSX/a/z.jpg", "jpg"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        names = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
        assert names == ["a/y/x.Tiff", "a/z.jpg", "b.PNG", "c.webp", "d.jpeg", "e.bmp", "f.ppm", "g.tif"]

    def test_links_are_followed_without_looping(self, tmp_path: Path) -> None:
        save(tmp_path / "elsewhere" / "a.png")
        folder = tmp_path / "folder"
        save(folder / "deep" / "b.png")
        (folder / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        (folder / "deep" / "up").symlink_to(folder, target_is_directory=True)
        (folder / "file.png").symlink_to(tmp_path / "elsewhere" / "a.png")
        (folder / "nowhere.png").symlink_to(tmp_path / "missing.png")
        names = [path.relative_to(folder).as_posix() for path in find_images(folder)]
        assert names == ["deep/b.png", "file.png", "linked/a.png", "nowhere.png"]
        assert [path.name for path, _ in check_images(find_images(folder)).broken] == ["nowhere.png"]

    def test_odd_names_are_kept(self, tmp_path: Path) -> None:
        names = ["naïve ☃.png", "e\u0301.png", "two\nlines.png", "-x.png", "日本.png"]
        for name in names:
            save(tmp_path / name)
        assert [path.name for path in find_images(tmp_path)] == sorted(names)

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux allows any bytes in a name")
    def test_names_that_are_no_text_can_be_read_and_reported(self, tmp_path: Path) -> None:
        good, bad = os.fsdecode(b"caf\xe9.png"), os.fsdecode(b"\xff.png")
        save(tmp_path / "plain.png").rename(tmp_path / good)
        (tmp_path / bad).touch()
        domain, check = image_domain(tmp_path, SMALL)
        assert domain.names == (good,)
        with pytest.raises(BrokenImageError) as caught:
            read_image(check.broken[0][0])
        str(caught.value).encode()  # printable, whatever the name

    def test_a_fifo_does_not_block(self, tmp_path: Path) -> None:
        if not hasattr(os, "mkfifo"):
            pytest.skip("no named pipes here")
        os.mkfifo(tmp_path / "pipe.jpg")
        assert find_images(tmp_path) == []


class TestReadImage:
    @pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "tiff", "webp"])
    def test_lossless_kinds_come_back_as_they_were(self, tmp_path: Path, suffix: str) -> None:
        path = save(tmp_path / f"a.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
        image = read_image(path)
        assert image.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(image), gradient())

    def test_cmyk_jpeg(self, tmp_path: Path) -> None:
        Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
        np.testing.assert_allclose(
            np.asarray(read_image(tmp_path / "a.jpg")), np.full((16, 16, 3), (255, 0, 0)), atol=3
        )

    def test_gray_palette_and_bilevel(self, tmp_path: Path) -> None:
        grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
        image = Image.fromarray(grey)
        image.save(tmp_path / "grey.png")
        image.convert("P").save(tmp_path / "palette.png")
        image.point(lambda value: 255 * (value > 99)).convert("1").save(tmp_path / "bits.png")
        expected = np.repeat(grey[..., None], 3, axis=2)
        np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "grey.png")), expected)
        np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "palette.png")), expected)
        np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "bits.png")), 255 * (expected > 99))

    def test_transparent_is_white(self, tmp_path: Path) -> None:
        layer = np.zeros((2, 3, 4), np.uint8)
        layer[:, 1] = (200, 0, 0, 255)
        layer[:, 2] = (0, 0, 0, 128)
        Image.fromarray(layer).save(tmp_path / "rgba.png")
        row = np.asarray(read_image(tmp_path / "rgba.png"))[0]
        np.testing.assert_array_equal(row, [(255, 255, 255), (200, 0, 0), (127, 127, 127)])

    def test_transparent_palette_entry_and_color_are_white(self, tmp_path: Path) -> None:
        palette = Image.new("P", (4, 4), 0)
        palette.putpalette([10, 20, 30, 40, 50, 60])
        palette.putpixel((1, 0), 1)
        palette.save(tmp_path / "p.png", transparency=0)
        Image.new("RGB", (4, 4), (1, 2, 3)).save(tmp_path / "rgb.png", transparency=(1, 2, 3))
        Image.new("L", (4, 4), 7).save(tmp_path / "l.png", transparency=7)
        assert [read_image(tmp_path / "p.png").getpixel(at) for at in ((0, 0), (1, 0))] == [(255,) * 3, (40, 50, 60)]
        assert read_image(tmp_path / "rgb.png").getpixel((0, 0)) == (255, 255, 255)
        assert read_image(tmp_path / "l.png").getpixel((0, 0)) == (255, 255, 255)
        assert read_image(tmp_path / "l.png", grey=True).getpixel((0, 0)) == 255

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("sixteen.png", np.array([[0, 257 * 100, 65535]], np.uint16)),
            ("sixteen.tif", np.array([[0, 257 * 100, 65535]], np.uint16)),
            ("int.tif", np.array([[0, 257 * 100, 65535]], np.int32)),
            ("bytes.tif", np.array([[0, 100, 255]], np.int32)),
            ("wide.tif", np.array([[-255_000, -155_000, 0]], np.int32)),
            ("unit.tif", np.array([[0, 100 / 255, 1]], np.float32)),
            ("float.tif", np.array([[0, 100, 255]], np.float32)),
            ("stretched.tif", np.array([[-1, 100 / 255 * 2 - 1, 1]], np.float32)),
            ("nan.tif", np.array([[np.nan, 100 / 255, 1]], np.float32)),
        ],
    )
    def test_deep_gray_is_scaled(self, tmp_path: Path, name: str, values: np.ndarray) -> None:
        path = save(tmp_path / name, values)
        assert np.asarray(read_image(path))[0].tolist() == [[v] * 3 for v in (0, 100, 255)]
        assert np.asarray(read_image(path, grey=True))[0].tolist() == [0, 100, 255]

    def test_dark_sixteen_bit_stays_dark_and_flat_does_not_divide_by_zero(self, tmp_path: Path) -> None:
        dark = save(tmp_path / "dark.png", np.full((2, 2), 200, np.uint16))
        flat = save(tmp_path / "flat.tif", np.full((2, 2), -7, np.float32))
        assert read_image(dark, grey=True).getpixel((0, 0)) == 1
        assert read_image(flat, grey=True).getpixel((0, 0)) == 0

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
    def test_exif_orientation(self, tmp_path: Path, suffix: str, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        turns = {
            1: lambda a: a,
            2: lambda a: a[:, ::-1],
            3: lambda a: a[::-1, ::-1],
            4: lambda a: a[::-1],
            5: lambda a: a.swapaxes(0, 1),
            6: lambda a: np.rot90(a, -1),
            7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
            8: lambda a: np.rot90(a),
        }
        path = save(tmp_path / f"a.{suffix}", exif=exif, **({} if suffix == "tif" else {"quality": 100}))
        expected = turns[orientation](gradient().astype(int))
        assert np.abs(np.asarray(read_image(path), int) - expected).mean() < 4
        assert check_images([path]).sizes == ((expected.shape[1], expected.shape[0]),)

    def test_first_frame_of_many(self, tmp_path: Path) -> None:
        frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
        frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
        frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:], lossless=True)
        frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
        (tmp_path / "a.gif").rename(tmp_path / "gif.jpg")
        for name in ("a.tiff", "a.webp", "gif.jpg"):
            assert read_image(tmp_path / name).getpixel((4, 4)) == (255, 0, 0)

    def test_big_jpeg_is_decoded_smaller_but_not_too_small(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.jpg", gradient(200, 130))
        assert read_image(path).size == (200, 130)
        assert read_image(path, min_size=65).size == (100, 65)
        assert read_image(path, min_size=66).size == (200, 130)
        assert read_image(path, min_size=16).size == (25, 17)

    def test_pixel_limit_comes_before_decoding(self, tmp_path: Path) -> None:
        bomb = tmp_path / "bomb.png"
        bomb.write_bytes(png_header(50_000, 50_000))
        with pytest.raises(BrokenImageError, match=r"bomb\.png.*more pixels than the limit of 178,000,000"):
            read_image(bomb)
        with pytest.raises(UserError, match="limit of 100"):
            read_image(save(tmp_path / "a.png"), max_pixels=100)

    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (truncated_jpeg, "cannot be decoded"),
            (lambda path: path.write_bytes(b""), "not an image"),
            (lambda path: path.write_text("hello"), "not an image"),
            (lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "not an image"),
            (lambda path: path.write_bytes(png_header(8, 8)), "cannot be decoded"),
            (lambda path: None, "does not exist"),
        ],
    )
    def test_broken_files_are_one_sentence(self, tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
        path = tmp_path / "broken.jpg"
        make(path)
        with pytest.raises(UserError, match=reason) as caught:
            read_image(path)
        assert "broken.jpg" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_file_without_rights_is_reported(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.png")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
        assert check_images([path]).broken == ((path, "may not be read by this user"),)

    def test_the_error_crosses_processes(self) -> None:
        error = pickle.loads(pickle.dumps(BrokenImageError(Path("a.jpg"), "is bad")))
        assert (error.path, error.reason) == (Path("a.jpg"), "is bad")


class TestCheckImages:
    @pytest.mark.parametrize("workers", [1, 3])
    def test_sorts_good_from_broken(self, tmp_path: Path, workers: int) -> None:
        good = [save(tmp_path / f"{number}.png", gradient(10 + number, 9)) for number in range(5)]
        bad = truncated_jpeg(tmp_path / "bad.jpg")
        seen: list[tuple[int, int]] = []
        check = check_images([*good[:2], bad, *good[2:]], workers=workers, progress=lambda *at: seen.append(at))
        assert check.paths == tuple(good)
        assert check.sizes == tuple((10 + number, 9) for number in range(5))
        assert [path for path, _ in check.broken] == [bad]
        assert seen == [(done, 6) for done in range(1, 7)]

    def test_thousands_of_files_in_order(self, tmp_path: Path) -> None:
        data = save(tmp_path / "0000.png").read_bytes()
        for number in range(1, 3000):
            (tmp_path / f"{number:04}.png").write_bytes(data if number % 1000 else b"")
        check = check_images(find_images(tmp_path), workers=4)
        assert [path.name for path, _ in check.broken] == ["1000.png", "2000.png"]
        assert len(check.paths) == 2998
        assert list(check.paths) == sorted(check.paths)

    def test_nothing_to_check(self) -> None:
        assert check_images([], workers=2) == ImageCheck((), (), ())

    def test_duplicates_by_content(self, tmp_path: Path) -> None:
        source = [save(tmp_path / "s" / name, gradient(size)) for name, size in (("a.png", 5), ("b.png", 6))]
        target = [save(tmp_path / "t" / name, gradient(size)) for name, size in (("x.png", 6), ("y.png", 7))]
        assert check_images(source).duplicates(check_images(target)) == [(source[1], target[0])]

    def test_description(self, tmp_path: Path) -> None:
        for name, width in (("a/1.png", 5), ("a/2.png", 9), ("a/3.png", 9), ("b/1.png", 40)):
            save(tmp_path / name, gradient(width, 10))
        domain, check = labeled_image_domain(tmp_path, SMALL)
        facts = describe_images(check, domain)
        assert facts["classes"] == {"a": 3, "b": 1}
        assert (facts["images"], facts["broken"], facts["repeated"], facts["imbalance"]) == (4, 0, 1, 3)
        assert facts["grey"] == 0
        assert facts["sizes"] == {"smallest": (5, 10), "median": (9, 10), "largest": (40, 10)}
        assert describe_images(ImageCheck((), (), ())) == {"images": 0, "broken": 0, "repeated": 0, "grey": 0}

    def test_images_without_color_are_counted(self, tmp_path: Path) -> None:
        grey = np.full((8, 8), 90, np.uint8)
        kinds = {
            "L": "l.png",
            "1": "bits.png",
            "LA": "la.png",
            "RGB": "rgb.png",
            "P": "palette.png",
            "CMYK": "cmyk.jpg",
        }
        for mode, name in kinds.items():
            Image.fromarray(grey).convert(mode).save(tmp_path / name)
        save(tmp_path / "deep.png", np.full((8, 8), 9000, np.uint16))
        save(tmp_path / "float.tif", np.full((8, 8), 0.3, np.float32))
        assert check_images(find_images(tmp_path)).grey == 5


class TestImageSamples:
    @pytest.fixture
    def samples(self, tmp_path: Path) -> ImageSamples:
        paths = [save(tmp_path / f"{number}.png", gradient(30 + number, 20)) for number in range(6)]
        return ImageSamples(paths, Views(SMALL))

    def test_evaluation_view(self, samples: ImageSamples) -> None:
        batch = samples.read(torch.tensor([4, 0]))
        assert (len(samples), samples.shape, batch.shape, batch.dtype) == (
            6,
            (3, 12, 12),
            (2, 3, 12, 12),
            torch.float32,
        )
        assert torch.equal(batch[1], samples.views.evaluation(read_image(samples.paths[0])))
        assert samples.read(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 12, 12)

    def test_training_view_depends_on_the_seed_and_the_image_only(self, samples: ImageSamples) -> None:
        state = torch.random.get_rng_state()
        first = samples.read(torch.arange(6), seed=7)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert torch.equal(first, samples.read(torch.arange(6), seed=7))
        assert not torch.equal(first, samples.read(torch.arange(6), seed=8))
        assert torch.equal(first[[5, 2]], samples.read(torch.tensor([5, 2]), seed=7))
        threaded = ImageSamples(samples.paths, samples.views, workers=4)
        assert torch.equal(first, threaded.read(torch.arange(6), seed=7))

    def test_an_image_twice_in_a_batch_gives_two_views(self, samples: ImageSamples) -> None:
        views = samples.read(torch.tensor([3] * 8), seed=1)
        assert len({view.numpy().tobytes() for view in views}) > 1

    def test_gray(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.png", np.full((28, 28), 51, np.uint8))
        settings = ImageSettings(28, 28, (0.0,), (1.0,), grey=True, augmentation="none")
        batch = ImageSamples([path], Views(settings)).read(torch.tensor([0]), seed=0)
        assert torch.allclose(batch, torch.full((1, 1, 28, 28), 0.2))

    def test_a_file_that_vanished_is_named(self, samples: ImageSamples) -> None:
        samples.paths[2].unlink()
        with pytest.raises(UserError, match=r"2\.png"):
            samples.read(torch.tensor([1, 2]))


class TestDomains:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("cat/1.png", "cat/deep/2.jpg", "ant/1.png"):
            save(tmp_path / "data" / name)
        return tmp_path / "data"

    def test_labels_are_the_folders(self, folder: Path) -> None:
        domain, check = labeled_image_domain(folder, SMALL)
        assert isinstance(domain, LabeledDomain)
        assert domain.classes == ("ant", "cat")
        assert domain.names == ("ant/1.png", "cat/1.png", "cat/deep/2.jpg")
        assert domain.labels.tolist() == [0, 1, 1]
        assert check.broken == ()
        assert domain.samples.read(torch.arange(3)).shape == (3, 3, 12, 12)

    def test_the_layout_of_office31(self, folder: Path) -> None:
        folder.rename(folder.parent / "images")
        (folder.parent / ".DS_Store").touch()
        (folder.parent / "README.txt").touch()
        domain, _ = labeled_image_domain(folder.parent, SMALL)
        assert domain.classes == ("ant", "cat")
        assert domain.names[0] == "images/ant/1.png"

    def test_without_labels(self, folder: Path) -> None:
        domain, _ = image_domain(folder, SMALL, workers=2)
        assert type(domain) is Domain
        assert domain.names == ("ant/1.png", "cat/1.png", "cat/deep/2.jpg")

    def test_broken_files_are_left_out_or_refused(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        bad = truncated_jpeg(folder / "cat" / "bad.jpg")
        with caplog.at_level(logging.WARNING):
            domain, check = labeled_image_domain(folder, SMALL)
        assert "1 of 4 image files" in caplog.text
        assert domain.size == len(domain.labels) == 3
        assert [path for path, _ in check.broken] == [bad]
        for load in (labeled_image_domain, image_domain):
            with pytest.raises(UserError, match=r"1 of 4 image files .*bad\.jpg"):
                load(folder, SMALL, strict=True)

    def test_loose_images_are_mentioned(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        save(folder / "loose.png")
        assert labeled_image_domain(folder, SMALL)[0].size == 3
        assert "1 image(s) directly in" in caplog.text

    def test_an_empty_class_is_refused_or_left_out(self, folder: Path) -> None:
        (folder / "bee").mkdir()
        truncated_jpeg(folder / "dog" / "bad.jpg")
        with pytest.raises(UserError, match=r"2 class folder.*'bee', 'dog'"):
            labeled_image_domain(folder, SMALL)
        domain, _ = labeled_image_domain(folder, SMALL, skip_empty=True)
        assert domain.classes == ("ant", "cat")
        assert domain.labels.tolist() == [0, 1, 1]

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda folder: None, "does not exist"),
            (lambda folder: folder.write_text(""), "not a folder"),
            (lambda folder: folder.mkdir(), "no class folders|No image was found"),
            (lambda folder: save(folder / "a" / "bad.txt.png").write_text("x"), "only one class|1 of 1 image files"),
            (lambda folder: [(folder / name).mkdir(parents=True) for name in "ab"], "No image was found"),
        ],
    )
    def test_unusable_folders_are_one_sentence(
        self, tmp_path: Path, make: Callable[[Path], object], message: str
    ) -> None:
        make(tmp_path / "data")
        for load in (labeled_image_domain, image_domain):
            with pytest.raises(UserError, match=message) as caught:
                load(tmp_path / "data", SMALL)
            assert "data" in str(caught.value)

    def test_one_class_with_images_is_not_enough(self, folder: Path) -> None:
        (folder / "cat").rename(folder.parent / "cat")
        with pytest.raises(UserError, match="only one class folder, 'ant'"):
            labeled_image_domain(folder, SMALL)
        (folder / "bee").mkdir()
        with pytest.raises(UserError, match="Only one class"):
            labeled_image_domain(folder, SMALL, skip_empty=True)


def test_every_kind_of_jpeg_truncation_is_found_when_checked_small(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for progressive in (False, True):
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "JPEG", quality=90, progressive=progressive)
        data = file.getvalue()
        for share in (0.3, 0.6, 0.9, 0.98):
            path = tmp_path / f"{progressive}-{share}.jpg"
            path.write_bytes(data[: int(len(data) * share)])
    assert len(check_images(find_images(tmp_path)).broken) == 8
