"""The two views of an image: one drawn at random to train on, one fixed to evaluate."""

import math
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from PIL import Image
from torch import Tensor

from candapt import torchvision_ops  # noqa: F401  (must come before torchvision)
from candapt.errors import UserError

from torchvision.transforms.v2 import InterpolationMode  # isort: skip
from torchvision.transforms.v2 import functional as F  # isort: skip

Augmentation = Literal["paper", "strong", "none"]

MAX_SIDE = 8192
"""Largest height and width that an image is resized to."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageSettings:
    """How an image becomes the network's input; the defaults are the authors'."""

    size: int = 224
    """Height and width of the network's input in pixels, cut from the resized image."""
    resize: int = 256
    """Height and width to which a whole image is first resized (bicubic; the aspect ratio is not kept)."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    """Mean of each channel, subtracted from values in [0, 1]."""
    std: tuple[float, ...] = IMAGENET_STD
    """Standard deviation of each channel, by which the difference is divided."""
    grey: bool = False
    """Give the network one grey channel in place of red, green and blue."""
    augmentation: Augmentation = "paper"
    """Training view: `paper` (random crop, flip), `strong` (random zoom, flip, colors) or `none` (as evaluated)."""
    shrink: bool = True
    """Let a decoder shrink large JPEGs down to `min_size`."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if not 0 < self.size <= self.resize <= MAX_SIDE:
            raise UserError(
                f"the input size {self.size} must be above 0 and at most the resize size {self.resize}, and that at "
                f"most {MAX_SIDE}."
            )
        if not len(self.mean) == len(self.std) == self.channels:
            raise UserError(
                f"mean and std must have {self.channels} value(s) each for {'grey' if self.grey else 'color'} images, "
                f"but have {len(self.mean)} and {len(self.std)}."
            )
        if min(self.std) <= 0:
            raise UserError(f"every value of std must be above 0, but std is {self.std}.")
        if self.augmentation not in get_args(Augmentation):
            raise UserError(f"augmentation must be one of {get_args(Augmentation)}, not {self.augmentation!r}.")

    @property
    def channels(self) -> int:
        """Number of channels of the network's input."""
        return 1 if self.grey else 3

    @property
    def min_size(self) -> int | None:
        """Smallest side down to which a decoder may shrink an image before it is resized; None if it may not.

        Twice the resize size: the bicubic filter then still sees finer pixels than it makes. On 20 photos enlarged to
        2100 pixels, ResNet-50 features kept a cosine of 0.9990 at worst to those of the full image; with the resize
        size itself it was 0.92. It also covers the zoom of the strong augmentation.
        """
        return 2 * self.resize if self.shrink else None

    @classmethod
    def for_input(
        cls,
        size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        resize: int | None = None,
        augmentation: Augmentation = "paper",
        shrink: bool = True,
    ) -> Self:
        """Settings for a network's expected input; one mean makes them grey.

        Args:
            size: side of the network's input.
            mean: mean of each channel.
            std: standard deviation of each channel.
            resize: side before the crop; by default the paper's proportion, 256 to 224.
            augmentation: kind of training view.
            shrink: let the decoder shrink large JPEGs.
        """
        resize = round(size * 256 / 224) if resize is None else resize
        grey = len(mean) == 1
        return cls(size, resize, tuple(mean), tuple(std), grey=grey, augmentation=augmentation, shrink=shrink)


class Views:
    """Makes the training and the evaluation view of an image.

    What is random is drawn from the generator that is passed in, and from nothing else, so views can be made in several
    threads at once and the global generator stays as it is.
    """

    ZOOM = (0.25, 1.0)
    """Share of the image's area that the strong augmentation cuts out."""
    ASPECT = (3 / 4, 4 / 3)
    """Width by height of that cut."""
    JITTER = 0.4
    """Brightness, contrast and saturation are multiplied by up to 1 ± this."""
    HUE = 0.1
    """Hue is turned by up to ± this share of the color circle."""

    def __init__(self, settings: ImageSettings) -> None:
        """Keep the settings."""
        self.settings = settings

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one view: channels, height, width."""
        return self.settings.channels, self.settings.size, self.settings.size

    def evaluation(self, image: Image.Image) -> Tensor:
        """The whole image resized, then its center, shape (c, h, w)."""
        return self._normalize(F.center_crop(self._resize(image), [self.settings.size]))

    def training(self, image: Image.Image, generator: torch.Generator | None = None) -> Tensor:
        """A view drawn from the generator (by default torch's global one), shape (c, h, w)."""
        if self.settings.augmentation == "none":
            return self.evaluation(image)
        if self.settings.augmentation == "paper":
            return self._normalize(self._flip(self._random_crop(self._resize(image), generator), generator))
        zoomed = self._flip(self._random_zoom(image, generator), generator)
        return self._normalize(self._jitter(zoomed, generator))

    def _resize(self, image: Image.Image) -> Image.Image:
        side = self.settings.resize
        if image.size == (side, side):
            return image
        resized: Image.Image = F.resize(image, [side, side], InterpolationMode.BICUBIC, antialias=True)
        return resized

    def _random_crop(self, image: Image.Image, generator: torch.Generator | None) -> Image.Image:
        size, room = self.settings.size, self.settings.resize - self.settings.size
        top, left = torch.randint(room + 1, (2,), generator=generator).tolist()
        cropped: Image.Image = F.crop(image, top, left, size, size)
        return cropped

    def _random_zoom(self, image: Image.Image, generator: torch.Generator | None) -> Image.Image:
        """Resize a random part of the image to the input size; area and aspect ratio are drawn, then the place."""
        area = _uniform(*self.ZOOM, generator)
        aspect = math.exp(_uniform(math.log(self.ASPECT[0]), math.log(self.ASPECT[1]), generator))
        # Shares of width and height, so a long image is not cut to a square; one above 1 is held at the whole side.
        width = max(1, round(image.width * min(1.0, math.sqrt(area * aspect))))
        height = max(1, round(image.height * min(1.0, math.sqrt(area / aspect))))
        left = int(_uniform(0, image.width - width + 1, generator))
        top = int(_uniform(0, image.height - height + 1, generator))
        side = self.settings.size
        zoomed: Image.Image = F.resized_crop(
            image, top, left, height, width, [side, side], InterpolationMode.BICUBIC, antialias=True
        )
        return zoomed

    @staticmethod
    def _flip(image: Image.Image, generator: torch.Generator | None) -> Image.Image:
        return F.horizontal_flip(image) if torch.rand((), generator=generator) < 0.5 else image

    def _jitter(self, image: Image.Image, generator: torch.Generator | None) -> Image.Image:
        factors = [_uniform(1 - self.JITTER, 1 + self.JITTER, generator) for _ in range(3)]
        hue = _uniform(-self.HUE, self.HUE, generator)
        image = F.adjust_contrast(F.adjust_brightness(image, factors[0]), factors[1])
        if not self.settings.grey:
            image = F.adjust_hue(F.adjust_saturation(image, factors[2]), hue)
        return image

    def _normalize(self, image: Image.Image) -> Tensor:
        values = F.to_dtype(F.pil_to_tensor(image), torch.float32, scale=True)
        normalized: Tensor = F.normalize(values, list(self.settings.mean), list(self.settings.std), inplace=True)
        return normalized


def _uniform(low: float, high: float, generator: torch.Generator | None) -> float:
    """One number between the two."""
    return low + (high - low) * float(torch.rand((), generator=generator))
