"""A small convolutional network for the 8×8 digits: quick enough to train on one CPU core in seconds.

Assumes images of at least 4×4 pixels. Widths are multiples of 16, which CPU convolutions are blocked by.
"""

from __future__ import annotations

from torch import Tensor, nn

from aol.lab.nets.layers import Head, Network
from aol.lab.nets.norm_relu import norm_relu


class CNN(Network):
    """Three 3×3 convolutions with batch norm, the last two strided, flat mean, linear: [B, C, H, W] → [B, K].

    >>> import torch
    >>> net = CNN(10)
    >>> net(torch.zeros(2, 1, 8, 8)).shape, sum(p.numel() for p in net.parameters())
    (torch.Size([2, 10]), 24058)
    """

    channelwise_entry = "conv1"

    def __init__(self, num_classes: int, in_channels: int = 1, *, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, 2, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.head = Head(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] → logits [B, K]."""
        x = norm_relu(self.norm1, self.conv1(x))
        x = norm_relu(self.norm2, self.conv2(x))
        x = norm_relu(self.norm3, self.conv3(x))
        # Averaged so, the gradient has its channels last in memory, as the map.
        return self.head(x.movedim(1, -1).mean((1, 2)))  # type: ignore[no-any-return]
