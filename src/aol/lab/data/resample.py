"""Cut, resize and mirror images of different sizes as one batch, on any device: two matrix products.

Resizing is bilinear with antialiasing, as Pillow's and torchvision's: output pixel i lies at c = (i + 1/2) · step of
the cut, and takes the pixels j around it by 1 - |j + 1/2 - c| / max(step, 1) where that is positive, in shares of one.
Along each axis that is a matrix with `size` rows, so that a batch is Y · X · Zᵀ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ragged(NamedTuple):
    """N images of any sizes in one tensor: `pixels` uint8 `[M]`, each image [3, height, width] from its `start` on.

    `start`, `height` and `width` are int64 `[N]`. Without `planar` images are [height, width, 3]. After the last image
    follow spare bytes, which the rows read of it may reach into.
    """

    pixels: Tensor
    start: Tensor
    height: Tensor
    width: Tensor
    planar: bool = True

    @staticmethod
    def empty(sizes: Tensor, device: torch.device) -> Ragged:
        """Return room for images of `sizes [N, 2]`, height and width; the pixels are not set."""
        height, width = sizes.to(torch.int64).unbind(1)
        ends = (3 * height * width).cumsum(0)
        pixels = torch.empty(int(ends[-1]) + 3 * (int(sizes.max()) + 8), dtype=torch.uint8, device=device)
        return Ragged(pixels, (ends - 3 * height * width).to(device), height.to(device), width.to(device))


class View(NamedTuple):
    """How n outputs come from their images, along rows and columns.

    Pixels from `low` to below `high` (int64 `[n, 2]`) are resized, `step` of them to one (float32 `[n, 2]`); the first
    `skip` outputs (float32 `[n, 2]`) are cut off; `flip` (bool `[n]`) mirrors.
    """

    low: Tensor
    high: Tensor
    step: Tensor
    skip: Tensor
    flip: Tensor


def view_of(sizes: Tensor, boxes: Tensor, size: int) -> View:
    """Return the views of `boxes [n, 5]` in images of `sizes int64 [n, 2]`, resized to `size`.

    >>> view_of(torch.tensor([[9, 9]]), torch.tensor([[2.0, 3.0, 8.0, 4.0, 1.0]]), 4).step.tolist()
    [[2.0, 1.0]]
    """
    step = (boxes[:, 2:4] / size).to(torch.float32)
    return View(torch.zeros_like(sizes), sizes, step, (boxes[:, :2] / step).to(torch.float32), boxes[:, 4].bool())


def resample(images: Ragged, index: Tensor, view: View, *, size: int) -> Tensor:
    """Return views of the images `index [n]`, which are planar, as float32 `[n, 3, size, size]`, 0 to 255, not rounded.

    >>> pixels = torch.arange(0, 96, 2, dtype=torch.uint8).view(4, 4, 3).permute(2, 0, 1)
    >>> images = Ragged.empty(torch.tensor([[4, 4]]), torch.device("cpu"))
    >>> images.pixels[:48] = pixels.reshape(-1)
    >>> view = view_of(torch.tensor([[4, 4]]), torch.tensor([[0.0, 0.0, 4.0, 4.0, 1.0]]), 2)
    >>> resample(images, torch.tensor([0]), view, size=2)[0, 0]
    tensor([[30.8571, 21.4286],
            [68.5714, 59.1429]])
    """
    height, width = images.height[index], images.width[index]
    vertical, horizontal = (_shares(view, axis, size, int(view.high[:, axis].max())) for axis in (0, 1))
    horizontal = torch.where(view.flip[:, None, None], horizontal.flip(1), horizontal)
    row, column = (torch.arange(each.shape[2], device=index.device) for each in (vertical, horizontal))
    # Rows and columns beyond an image have no share: its last ones are read for them, for valid memory.
    place = torch.minimum(row, height[:, None] - 1) * width[:, None]  # [n, rows]
    place = place[:, :, None] + torch.minimum(column, width[:, None] - 1)[:, None]
    plane = (height * width)[:, None] * torch.arange(3, device=index.device)
    start = images.start[index][:, None] + plane
    pixels = images.pixels[start[:, :, None, None] + place[:, None]].to(torch.float32)
    return vertical[:, None] @ pixels @ horizontal[:, None].transpose(2, 3)


def _shares(view: View, axis: int, size: int, extent: int) -> Tensor:
    """Return each output pixel's shares of the input pixels 0 to `extent - 1`: `[n, size, extent]`."""
    low, high, step, skip = (each[:, axis, None, None] for each in view[:4])
    output = torch.arange(size, device=low.device, dtype=torch.float32)[:, None] + 0.5
    pixel = torch.arange(extent, device=low.device)
    centre = low + (output + skip) * step
    share = (1 - (pixel + 0.5 - centre).abs() / step.clamp(min=1)).clamp(min=0) * ((pixel >= low) & (pixel < high))
    return share / share.sum(2, keepdim=True)
