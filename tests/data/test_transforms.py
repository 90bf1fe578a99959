"""Views against plain Pillow and numpy, and against torchvision's own transforms."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from candapt.data.decoding import read_image
from candapt.data.transforms import Views
from candapt.errors import UserError
from candapt.settings import IMAGENET_MEAN, IMAGENET_STD, ImageSettings

from torchvision.transforms import v2  # isort: skip  (after candapt, which declares the operators that it looks for)


def photo(width: int = 300, height: int = 210) -> Image.Image:
    """Smooth shapes with some noise, so that resizing and cropping show."""
    rng = np.random.default_rng(3)
    coarse = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int64)
    return Image.fromarray(np.clip(smooth + rng.integers(-20, 20, smooth.shape), 0, 255).astype(np.uint8))


def plain(image: Image.Image, settings: ImageSettings, top: int, left: int) -> np.ndarray:
    """Resize with Pillow, crop and normalize with numpy, shape (c, h, w)."""
    resized = np.asarray(image.resize((settings.resize, settings.resize), Image.Resampling.BICUBIC), np.float64) / 255
    size = settings.size
    crop = resized[top : top + size, left : left + size].reshape(size, size, settings.channels)
    return ((crop - settings.mean) / settings.std).transpose(2, 0, 1)


def test_evaluation_is_a_bicubic_resize_and_the_center() -> None:
    settings = ImageSettings()
    view = Views(settings).evaluation(photo())
    assert view.dtype == torch.float32
    np.testing.assert_allclose(view.numpy(), plain(photo(), settings, 16, 16), atol=1e-5)


@pytest.mark.parametrize("grey", [False, True])
def test_other_sizes_and_gray(grey: bool) -> None:
    settings = (
        ImageSettings.for_input(28, (0.4,), (0.3,), resize=32)
        if grey
        else ImageSettings.for_input(96, IMAGENET_MEAN, IMAGENET_STD)
    )
    image = photo().convert("L") if grey else photo()
    margin = (settings.resize - settings.size) // 2
    view = Views(settings).evaluation(image)
    assert view.shape == Views(settings).shape
    np.testing.assert_allclose(view.numpy(), plain(image, settings, margin, margin), atol=1e-5)


def test_the_papers_training_view_is_a_crop_maybe_flipped() -> None:
    settings, image = ImageSettings(size=20, resize=24), photo()
    crops = np.stack([plain(image, settings, top, left) for top in range(5) for left in range(5)])
    places = np.concatenate([crops, crops[..., ::-1]])  # those from 25 on are flipped
    views = [Views(settings).training(image, torch.Generator().manual_seed(seed)).numpy() for seed in range(300)]
    drawn = [place for view in views for place in np.flatnonzero(np.abs(places - view).max((1, 2, 3)) < 1e-5)]
    assert len(drawn) == 300
    assert len(set(drawn)) == len(places)  # every place, flipped and not, comes up
    assert 110 < sum(place >= 25 for place in drawn) < 190


def composed(settings: ImageSettings, *crop: v2.Transform) -> v2.Compose:
    """The authors' transform as torchvision composes it."""
    resize = v2.Resize((settings.resize, settings.resize), v2.InterpolationMode.BICUBIC)
    normalize = v2.Normalize(list(settings.mean), list(settings.std))
    return v2.Compose([resize, *crop, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), normalize])


@pytest.mark.parametrize(("size", "resize"), [(224, 256), (64, 73), (299, 342), (32, 32)])
def test_evaluation_is_torchvisions(size: int, resize: int) -> None:
    settings = ImageSettings(size=size, resize=resize)
    expected = composed(settings, v2.CenterCrop(size))(photo())
    torch.testing.assert_close(Views(settings).evaluation(photo()), expected.as_subclass(torch.Tensor))


def test_the_papers_training_view_is_drawn_like_torchvisions() -> None:
    """The same crops, flipped and not, come up; neither draws others."""
    settings, image = ImageSettings(size=22, resize=24), photo(24, 24)
    reference, views = composed(settings, v2.RandomCrop(22), v2.RandomHorizontalFlip()), Views(settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = {np.round(reference(image).numpy(), 4).tobytes() for _ in range(200)}
        ours = {np.round(views.training(image).numpy(), 4).tobytes() for _ in range(200)}
    assert ours == theirs
    assert len(ours) == 2 * 3 * 3


@pytest.mark.parametrize("side", [700, 1024, 2100, 4200])
def test_a_jpeg_decoded_smaller_looks_the_same(tmp_path: Path, side: int) -> None:
    """Reduced decoding leaves at least twice the resize size, and moves a view by a level or two of 255."""
    settings, path = ImageSettings(size=56, resize=64), tmp_path / "a.jpg"
    width = side // 4
    photo(width, width * 3 // 4).save(path, quality=90)
    whole, reduced = read_image(path), read_image(path, min_size=settings.min_size)
    assert (reduced.size == whole.size) is (min(whole.size) < 2 * settings.min_size)
    assert min(reduced.size) >= min(settings.min_size, *whole.size)
    difference = Views(settings).evaluation(whole) - Views(settings).evaluation(reduced)
    levels = difference.abs().mul(torch.tensor(settings.std)[:, None, None] * 255)
    assert levels.mean() < 2
    assert levels.max() < 16


@pytest.mark.parametrize("augmentation", ["paper", "strong"])
def test_training_views_follow_the_generator_alone(augmentation: str) -> None:
    views = Views(ImageSettings(size=20, resize=24, augmentation=augmentation))  # type: ignore[arg-type]
    state = torch.random.get_rng_state()
    first, again, other = (views.training(photo(), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("size", [(300, 210), (1, 1), (7, 500)])
@pytest.mark.parametrize("grey", [False, True])
def test_strong_views_of_any_image(size: tuple[int, int], grey: bool) -> None:
    mean = (0.5,) if grey else IMAGENET_MEAN
    views = Views(ImageSettings.for_input(32, mean, mean, augmentation="strong"))
    image = photo(*size).convert("L") if grey else photo(*size)
    for seed in range(20):
        view = views.training(image, torch.Generator().manual_seed(seed))
        assert view.shape == views.shape
        assert view.isfinite().all()


def test_none_trains_on_the_evaluation_view() -> None:
    views = Views(ImageSettings(size=20, resize=24, augmentation="none"))
    assert torch.equal(views.training(photo(), torch.Generator()), views.evaluation(photo()))


def test_global_generator_by_default() -> None:
    views = Views(ImageSettings(size=20, resize=24))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        first = views.training(photo())
    assert torch.equal(first, views.training(photo(), torch.Generator().manual_seed(5)))


def test_settings_for_a_network() -> None:
    assert ImageSettings.for_input(224, IMAGENET_MEAN, IMAGENET_STD) == ImageSettings()
    assert ImageSettings.for_input(28, (0.5,), (0.5,), resize=28).grey


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 257},
        {"size": 0},
        {"grey": True},
        {"mean": (0.5,)},
        {"std": (1.0, 1.0, 0.0)},
        {"augmentation": "weak"},
    ],
)
def test_settings_that_contradict_each_other(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        dataclasses.replace(ImageSettings(), **wrong)  # type: ignore[arg-type]
