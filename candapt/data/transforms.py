"""The two views of an image: one drawn at random to train on, one fixed to evaluate."""

import math

import torch
from PIL import Image
from torch import Tensor

from candapt.data.torchvision_ops import declare_missing_operators
from candapt.settings import ImageSettings

declare_missing_operators()  # before torchvision is imported

from torchvision.transforms.v2 import InterpolationMode  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402


class Views:
    """Makes the training and the evaluation view of an image.

    All randomness comes from the generator that is passed in, so several threads can make views at the same time and
    the global generator stays as it is.
    """

    ZOOM = (0.25, 1.0)  # share of the image's area that the strong augmentation cuts out
    ASPECT = (3 / 4, 4 / 3)  # width by height of that cut
    JITTER = 0.4  # brightness, contrast and saturation are multiplied by up to 1 ± this
    HUE = 0.1  # hue is turned by up to ± this share of the color circle

    def __init__(self, settings: ImageSettings) -> None:
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
        size = (self.settings.resize, self.settings.resize)
        return image if image.size == size else F.resize(image, size, InterpolationMode.BICUBIC, antialias=True)

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
        place, size = (top, left, height, width), self.shape[1:]
        zoomed: Image.Image = F.resized_crop(image, *place, size, InterpolationMode.BICUBIC, antialias=True)
        return zoomed

    @staticmethod
    def _flip(image: Image.Image, generator: torch.Generator | None) -> Image.Image:
        return F.horizontal_flip(image) if torch.rand((), generator=generator) < 0.5 else image

    def _jitter(self, image: Image.Image, generator: torch.Generator | None) -> Image.Image:
        brightness, contrast, saturation = (_uniform(1 - self.JITTER, 1 + self.JITTER, generator) for _ in range(3))
        hue = _uniform(-self.HUE, self.HUE, generator)
        image = F.adjust_contrast(F.adjust_brightness(image, brightness), contrast)
        return image if self.settings.grey else F.adjust_hue(F.adjust_saturation(image, saturation), hue)

    def _normalize(self, image: Image.Image) -> Tensor:
        values = F.to_dtype(F.pil_to_tensor(image), torch.float32, scale=True)
        normalized: Tensor = F.normalize(values, list(self.settings.mean), list(self.settings.std), inplace=True)
        return normalized


def _uniform(low: float, high: float, generator: torch.Generator | None) -> float:
    """A random number between the two."""
    return low + (high - low) * float(torch.rand((), generator=generator))
