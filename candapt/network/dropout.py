"""Dropout in a fraction of the time that torch's own takes on a CPU, and the same for batches that processes share."""

import torch
from torch import Tensor, nn

from candapt.network.sharing import own_rows, whole_shape


def drop_out(x: Tensor, probability: float) -> Tensor:
    """Zero values of a batch at random and scale up the rest; the last axis but one is that of the samples.

    Where the probability is a whole number of 256ths, as one half is, a random byte decides on each value: eight of
    them come from one draw.
    """
    if probability == 1:
        return torch.zeros_like(x)
    shape, limit, scale = whole_shape(x, x.dim() - 2), probability * 256, 1 / (1 - probability)
    if limit != int(limit):
        kept = own_rows(torch.rand(shape, dtype=x.dtype, device=x.device), -2) >= probability
        return x * scale * kept
    draws = torch.empty(-(-shape.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    numbers = own_rows(draws.view(torch.uint8)[: shape.numel()].view(shape), -2)
    # A shift by all other bits leaves the sign: -1 from the limit on, else 0. Processors compare bytes one by one.
    kept = numbers.to(torch.int16).neg_().add_(int(limit) - 1).bitwise_right_shift_(15)
    return x * -scale * kept


class Dropout(nn.Dropout):
    """Dropout of a network's own layers."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero some of the values in training."""
        return drop_out(x, self.p) if self.training and self.p else x
