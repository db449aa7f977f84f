"""Convolutions as matrix products: the windows of a map as rows of a matrix (im2col), and back (col2im)."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor


class Windows(NamedTuple):
    """Kernel, stride and padding of a convolution, each (height, width)."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def places(self, shape: torch.Size) -> tuple[int, int]:
        """Return height and width of the result for a map […, H, W]."""
        sides = zip(shape[-2:], self.kernel, self.stride, self.padding, strict=True)
        high, wide = ((side + 2 * padding - kernel) // stride + 1 for side, kernel, stride, padding in sides)
        return high, wide

    def size(self, shape: torch.Size) -> int:
        """Return how many values the columns of a map […, C, H, W] have."""
        high, wide = self.places(shape)
        return shape[:-2].numel() * high * wide * self.kernel[0] * self.kernel[1]


def columns(x: Tensor, windows: Windows) -> Tensor:
    """Return the windows of maps […, C, H, W] as rows, […, H', W', k·k·C]; a window's channels lie last.

    A convolution is their product with the kernels [O, C, k, k] in that order. Windows that do not overlap cost a copy
    at most; others k·k / stride² times the memory of the map.

    >>> columns(torch.arange(9.0).view(1, 3, 3), Windows((2, 2)))[0].tolist()
    [[0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 5.0]]
    """
    return cast(Tensor, _Columns.apply(x, windows))  # type: ignore[no-untyped-call]


class _Columns(torch.autograd.Function):
    """The gradient of `Tensor.unfold` would add to memory one by one; here each pixel sums its windows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, windows: Windows) -> Tensor:
        ctx.windows, ctx.shape = windows, x.shape
        (height, width), (down, right), (top, left) = windows
        last = F.pad(x, (left, left, top, top)).movedim(-3, -1)
        return last.unfold(-3, height, down).unfold(-3, width, right).movedim(-3, -1).flatten(-3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (height, width), (down, right), (top, left) = ctx.windows
        channels, high, wide = ctx.shape[-3:]
        parts = grads[0].reshape(*grads[0].shape[:-1], height, width, channels)
        rows, places = parts.shape[-5:-3]
        total: Any = 0
        for y in range(height):
            for x in range(width):
                part = parts[..., y, x, :]  # [..., H', W', C] → the pixels that it is from, with zeros between them
                if down > 1 or right > 1:
                    part = F.pad(part[..., None, :, None, :], (0, 0, 0, right - 1, 0, 0, 0, down - 1))
                    part = part.flatten(-5, -4).flatten(-3, -2)
                after = (high + top - y - rows * down, wide + left - x - places * right)
                total = total + F.pad(part, (0, 0, x - left, after[1], y - top, after[0]))
        return total.movedim(-1, -3), None
