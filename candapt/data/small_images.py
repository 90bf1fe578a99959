"""Small images in memory, with random training views."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from candapt.data.domains import ArraySamples


class SmallImageSamples(ArraySamples):
    """Images of shape (n, channels, height, width); in training they are turned, zoomed, slanted and shifted a little.

    What the random crop does for photographs. There is no flip, which would make other digits and letters of some.
    """

    ROTATION = math.radians(10)
    """Largest angle either way."""
    ZOOM = 0.1
    """Largest logarithm of the zoom of either axis."""
    SHEAR = 0.1
    """Largest slant either way, as a share of the height."""
    SHIFT = 0.08
    """Largest shift either way along each axis, as a share of the image."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        # What is uncovered at the border looks like the background, which is the darkest value of drawn characters.
        self.background = float(self.array.amin()) if len(self.array) else 0.0

    @property
    def augmentation(self) -> str:
        """Kind of the training views."""
        return "affine"

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The images at `indices`, or with a seed random views of them."""
        images = super().read(indices)
        if seed is None:
            return images
        grid = F.affine_grid(self.random_maps(len(images), seed), list(images.shape), align_corners=False)
        return F.grid_sample(images - self.background, grid, align_corners=False) + self.background

    def random_maps(self, count: int, seed: int) -> Tensor:
        """Affine maps from the places of a view to those of its image, shape (count, 2, 3), in half images."""
        generator = torch.Generator().manual_seed(seed)
        limits = torch.tensor([self.ROTATION, self.ZOOM, self.ZOOM, self.SHEAR, 2 * self.SHIFT, 2 * self.SHIFT])
        angle, wide, high, slant, right, down = ((2 * torch.rand(count, 6, generator=generator) - 1) * limits).unbind(1)
        cos, sin = angle.cos(), angle.sin()
        rows = [cos * wide.exp(), slant - sin * wide.exp(), right, sin * high.exp(), cos * high.exp(), down]
        return torch.stack(rows, 1).view(count, 2, 3)
