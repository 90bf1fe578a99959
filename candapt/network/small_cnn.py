"""The network for small grey images, such as digits."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three convolutions with batch norm, then one layer, for grey images from 8x8 to 32x32 and above."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128), num_features: int = 256) -> None:
        """Each width is a convolution that halves height and width."""
        super().__init__()
        self.num_features = num_features
        self.stages = nn.Sequential(*map(_conv_stage, (1, *widths[:-1]), widths))
        self.head = nn.Sequential(
            nn.Linear(4 * widths[-1], num_features, bias=False), nn.BatchNorm1d(num_features), nn.ReLU()
        )

    def forward_features(self, images: Tensor) -> Tensor:
        """Maps of the last stage, shape (n, widths[-1], h / 8, w / 8)."""
        maps: Tensor = self.stages(images)
        return maps

    def forward_head(self, maps: Tensor) -> Tensor:
        """Features (n, num_features) of the maps."""
        features: Tensor = self.head(_quarters(maps).flatten(1))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Features (n, num_features) of images (n, 1, h, w)."""
        return self.forward_head(self.forward_features(images))


def _quarters(maps: Tensor) -> Tensor:
    """Mean of each quarter of the maps, (n, c, h, w) to (n, c, 4), whatever their size.

    A digit's parts so keep their places. This is `AdaptiveAvgPool2d(2)` in operations that every exporter knows.
    """
    height, width = maps.shape[2:]
    halves = maps[:, :, : (height + 1) // 2].mean(2), maps[:, :, height // 2 :].mean(2)  # (n, c, w) each
    quarters = [part.mean(2) for half in halves for part in (half[..., : (width + 1) // 2], half[..., width // 2 :])]
    return torch.stack(quarters, dim=2)


def _conv_stage(inputs: int, outputs: int) -> nn.Module:
    """Half the height and width, another number of channels."""
    convolution = _Convolution(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


class _Convolution(nn.Conv2d):
    """Its maps keep the channels of a pixel together in memory: so a CPU pools them ten times as fast.

    Maps and not weights are so arranged: weights stay as they are stored.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The convolution; what follows keeps the arrangement."""
        return super().forward(input).contiguous(memory_format=torch.channels_last)
