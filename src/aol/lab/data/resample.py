"""Cut, resize and mirror images of different sizes as one batch, on any device: two matrix products.

Resizing is bilinear with antialiasing, as Pillow's and torchvision's: output pixel i lies at c = (i + 1/2) · step of
the cut, and takes the pixels j around it by 1 - |j + 1/2 - c| / max(step, 1) where that is positive, in shares of one.
Along each axis that is a matrix with `size` rows, so that a batch is Y · X · Zᵀ. Nothing is read back to the host, and
all shapes are fixed: fit for a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from aol.lab.data.crops import RandomResizedCrop, ResizeCenterCrop


class Ragged(NamedTuple):
    """N images of any sizes in one tensor: `pixels` uint8 `[M]`, each image [height, width, 3] from its `start` on.

    With `planar` each is [3, height, width]. `start`, `height` and `width` are int64 `[N]`. After the last image follow
    spare bytes, which the rows read of it may reach into.

    >>> image = torch.arange(24, dtype=torch.uint8).view(2, 4, 3)
    >>> Ragged.of([image, image]).start.tolist()
    [0, 24]
    """

    pixels: Tensor
    start: Tensor
    height: Tensor
    width: Tensor
    planar: bool = False

    @staticmethod
    def of(images: Sequence[Tensor], *, planar: bool = False) -> Ragged:
        """Return images uint8 [H, W, 3] one after the other, on the CPU."""
        ragged = Ragged.empty(torch.tensor([image.shape[:2] for image in images]), torch.device("cpu"))
        for start, image in zip(ragged.start.tolist(), images, strict=True):
            ragged.pixels[start : start + image.numel()] = (image.permute(2, 0, 1) if planar else image).reshape(-1)
        return ragged._replace(planar=planar)

    @staticmethod
    def empty(sizes: Tensor, device: torch.device) -> Ragged:
        """Return room for images of `sizes [N, 2]`, height and width; the pixels are not set."""
        height, width = sizes.to(torch.int64).unbind(1)
        ends = (3 * height * width).cumsum(0)
        pixels = torch.empty(int(ends[-1]) + 3 * (int(sizes.max()) + 8), dtype=torch.uint8, device=device)
        start = ends - 3 * height * width
        return Ragged(pixels, start.to(device), height.to(device), width.to(device))


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

    def at(self, index: Tensor) -> View:
        """Return the views of some images."""
        return View(*(each[index] for each in self))


def crop_view(box: Tensor, size: int) -> View:
    """Return the views of boxes `int64 [n, 5]`, as `RandomResizedCrop.boxes` draws them, resized to `size`.

    >>> crop_view(torch.tensor([[2, 3, 8, 4, 1]]), 4).step.tolist()
    [[2.0, 1.0]]
    """
    low, extent = box[:, :2], box[:, 2:4]
    step = extent.to(torch.float32) / size
    return View(low, low + extent, step, torch.zeros_like(step), box[:, 4].bool())


def centre_view(sizes: Tensor, crop: ResizeCenterCrop) -> View:
    """Return the central views of images of `sizes int64 [n, 2]`: the shorter side resized, then the centre.

    >>> centre_view(torch.tensor([[32, 64]]), ResizeCenterCrop(28, resize=32)).skip.tolist()
    [[2.0, 18.0]]
    """
    short = sizes.amin(1, keepdim=True)
    # Exact in float64, as the integers of `ResizeCenterCrop`.
    resized = (crop.resize * sizes.to(torch.float64) / short).floor()
    skip = ((resized - crop.size) / 2).round()
    step = (sizes.to(torch.float64) / resized).to(torch.float32)
    none = torch.zeros(len(sizes), dtype=torch.bool, device=sizes.device)
    return View(torch.zeros_like(sizes), sizes, step, skip.to(torch.float32), none)


def largest_crops(sizes: Tensor, crop: RandomResizedCrop | ResizeCenterCrop) -> tuple[int, int]:
    """Return the most rows and columns that any crop of images of `sizes int64 [n, 2]` takes, multiples of 8.

    >>> largest_crops(torch.tensor([[256, 1000]]), RandomResizedCrop(224))
    (256, 344)
    """
    other = sizes.flip(1).to(torch.float64)
    if isinstance(crop, RandomResizedCrop):
        stretch = torch.tensor([1 / crop.ratio[0], crop.ratio[1]], dtype=torch.float64, device=sizes.device)
        most = torch.minimum(sizes.to(torch.float64), (other * stretch).round() + 1)
    else:
        short = torch.minimum(sizes.to(torch.float64), other)
        step = (short / crop.resize).clamp(min=1) * 1.1  # a side is rounded down when resized
        most = torch.minimum(sizes.to(torch.float64), (short * crop.size / crop.resize * 1.1 + 2 * step + 2).ceil())
    rows, columns = (int(-(-side // 8) * 8) for side in most.amax(0).tolist())
    return rows, columns


def _shares(first: Tensor, view: View, axis: int, size: int, extent: int) -> Tensor:
    """Return each output pixel's shares of the input pixels `first` to `first + extent - 1`: `[n, size, extent]`."""
    low, high, step = (each[:, axis, None, None] for each in (view.low, view.high, view.step))
    output = torch.arange(size, device=low.device, dtype=torch.float32)[:, None] + 0.5
    pixel = first[:, None, None] + torch.arange(extent, device=low.device)
    centre = low + (output + view.skip[:, axis, None, None]) * step
    share = (1 - (pixel + 0.5 - centre).abs() / step.clamp(min=1)).clamp(min=0) * ((pixel >= low) & (pixel < high))
    return share / share.sum(2, keepdim=True)


def _first(view: View, axis: int) -> Tensor:
    """Return the first row or column that a view takes."""
    step = view.step[:, axis]
    first = ((view.skip[:, axis] + 0.5) * step - step.clamp(min=1)).floor().clamp(min=0)
    return view.low[:, axis] + first.to(torch.int64)


def resample(images: Ragged, index: Tensor, view: View, *, size: int, extent: tuple[int, int]) -> Tensor:
    """Return views of the images `index [n]` as `[n, 3, size, size]`, values of 0 to 255, not rounded.

    `extent`: rows and columns read of each image, at least those that its view takes. float32; on CUDA the products are
    those of float16, which differ by less than a quarter of a grey level.

    >>> images = Ragged.of([torch.arange(0, 96, 2, dtype=torch.uint8).view(4, 4, 3)])
    >>> view = crop_view(torch.tensor([[0, 0, 4, 4, 1]]), 2)
    >>> resample(images, torch.tensor([0]), view, size=2, extent=(4, 4))[0, 0]
    tensor([[30.8571, 21.4286],
            [68.5714, 59.1429]])
    """
    rows, columns = extent
    dtype = torch.float16 if images.pixels.is_cuda else torch.float32
    top, left = _first(view, 0), _first(view, 1)
    vertical, horizontal = _shares(top, view, 0, size, rows), _shares(left, view, 1, size, columns)
    horizontal = torch.where(view.flip[:, None, None], horizontal.flip(1), horizontal)
    # Rows below a cut have no share: those below the image are read from its last row, for valid memory.
    row = torch.minimum(top[:, None] + torch.arange(rows, device=top.device), images.height[index][:, None] - 1)
    place = row * images.width[index][:, None] + left[:, None]
    start = images.start[index][:, None] + (place if images.planar else 3 * place)
    length = columns if images.planar else 3 * columns
    if images.planar:
        plane = images.height[index] * images.width[index]
        start = start[..., None] + plane[:, None, None] * torch.arange(3, device=top.device)
    windows = images.pixels.as_strided((images.pixels.numel() - length + 1, length), (1, 1))
    pixels = windows[start].to(dtype).view(-1, rows, 3 * columns)
    mixed = torch.bmm(vertical.to(dtype), pixels)  # columns and colours are still side by side
    if images.planar:
        mixed = mixed.view(-1, size, 3, columns).transpose(1, 2)
    else:
        mixed = mixed.view(-1, size, columns, 3).permute(0, 3, 1, 2)
    mixed = mixed.reshape(-1, 3 * size, columns)
    return torch.bmm(mixed, horizontal.to(dtype).transpose(1, 2)).view(-1, 3, size, size).to(torch.float32)
