"""Images of different sizes, and their views by two matrix products: the oracle of the kernel that cuts and resizes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aol.lab.data.encoded_images import Ragged
from tests.support.tiny_sets import pixels

SIZES = [(40, 48), (48, 40), (97, 331), (300, 60), (33, 33), (7, 9), (64, 64), (1, 1), (120, 500)]


def images() -> list[Tensor]:
    """Noise, on which a wrong pixel shows, and smooth pictures: uint8 [H, W, 3]."""
    random = np.random.default_rng(0)
    noise = [torch.from_numpy(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]
    return noise + [torch.from_numpy(pixels(seed, *size).copy()) for seed, size in enumerate(SIZES)]


def sizes(given: list[Tensor]) -> Tensor:
    return torch.tensor([image.shape[:2] for image in given])


def ragged(given: list[Tensor]) -> Ragged:
    joined = Ragged.empty(sizes(given), torch.device("cpu"))
    for start, image in zip(joined.start.tolist(), given, strict=True):
        joined.pixels[start : start + image.numel()] = image.permute(2, 0, 1).reshape(-1)
    return joined


def resample(images: Ragged, index: Tensor, boxes: Tensor, *, size: int) -> Tensor:
    """Return `boxes [n, 5]` of the images `index [n]` as float32 `[n, 3, size, size]`, 0 to 255: Y · X · Zᵀ.

    Output pixel i lies at c = (i + 1/2) · step of the cut, and takes the pixels j around it by
    1 - |j + 1/2 - c| / max(step, 1) where that is positive, in shares of one.
    """
    vertical, horizontal = (
        _shares(boxes, axis, size, extent[index]) for axis, extent in enumerate((images.height, images.width))
    )
    horizontal = torch.where(boxes[:, 4, None, None].bool(), horizontal.flip(1), horizontal)
    views = []
    for y, z, place in zip(vertical, horizontal, index.tolist(), strict=True):
        height, width, start = (int(part[place]) for part in (images.height, images.width, images.start))
        pixels = images.pixels[start : start + 3 * height * width].view(3, height, width)
        views.append(y[:, :height] @ pixels.to(torch.float32) @ z[:, :width].T)
    return torch.stack(views)


def _shares(boxes: Tensor, axis: int, size: int, extent: Tensor) -> Tensor:
    """Return the shares of the input pixels below `extent [n]` in each output pixel: `[n, size, most]`."""
    step = (boxes[:, axis + 2, None, None] / size).to(torch.float32)
    skip = (boxes[:, axis, None, None] / step).to(torch.float32)
    output = torch.arange(size, dtype=torch.float32)[:, None] + 0.5
    pixel = torch.arange(int(extent.max()))
    share = (1 - (pixel + 0.5 - (output + skip) * step).abs() / step.clamp(min=1)).clamp(min=0)
    share = share * (pixel < extent[:, None, None])
    return share / share.sum(2, keepdim=True)


def batch(images: Ragged, index: Tensor, boxes: Tensor, *, size: int, scale: Tensor, shift: Tensor) -> Tensor:
    """What the kernel returns: normalised views."""
    return resample(images, index, boxes, size=size) * scale[:, None, None] + shift[:, None, None]
