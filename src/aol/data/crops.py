"""Random and central crops of large images, one image at a time, on uint8 tensors [C, H, W].

Assumes a decoded image and, for training, a numpy generator of this sample, from (seed, epoch, index): neither the
number of workers nor the order of reading changes a result. Sizes round as torchvision's do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch.nn.functional as F
from torch import Tensor


class Transform(Protocol):
    """Turns a decoded image uint8 [C, H, W] of any size into one of the network's size."""

    @property
    def size(self) -> int:
        """Return the side of the result."""

    def __call__(self, image: Tensor, generator: np.random.Generator) -> Tensor:
        """Return uint8 [C, size, size]."""


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of one sample in one epoch.

    >>> sample_generator(0, 3, 7).random() == sample_generator(0, 3, 7).random()
    True
    >>> sample_generator(0, 3, 7).random() == sample_generator(0, 4, 7).random()
    False
    """
    return np.random.Generator(np.random.PCG64([seed, epoch, index]))


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 [C, H, W] bilinearly with antialiasing, as Pillow's BILINEAR does (to one grey level).

    >>> import torch
    >>> resize(torch.full((3, 6, 4), 9, dtype=torch.uint8), 3, 2).unique()
    tensor([9], dtype=torch.uint8)
    """
    if image.shape[-2:] == (height, width):
        return image
    return F.interpolate(image.unsqueeze(0), (height, width), mode="bilinear", antialias=True).squeeze(0)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Training: a crop of 8 % to 100 % of the area, aspect 3/4 to 4/3, resized to `size`, mirrored or not.

    >>> import torch
    >>> image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    >>> RandomResizedCrop(32)(image, sample_generator(0, 0, 0)).shape
    torch.Size([3, 32, 32])
    """

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    def box(self, height: int, width: int, generator: np.random.Generator) -> tuple[int, int, int, int]:
        """Draw top, left, height and width: ten tries, then the largest central crop of allowed aspect."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * generator.random())
            aspect = math.exp(low + (high - low) * generator.random())
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                # `random` alone: the stream of numpy's other methods may change between its versions.
                top = int(generator.random() * (height - h + 1))
                left = int(generator.random() * (width - w + 1))
                return top, left, h, w
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = (width, round(width / aspect)) if width / height < aspect else (round(height * aspect), height)
        w, h = max(1, min(w, width)), max(1, min(h, height))
        return (height - h) // 2, (width - w) // 2, h, w

    def __call__(self, image: Tensor, generator: np.random.Generator) -> Tensor:
        """Crop uint8 [C, H, W] at random to uint8 [C, size, size]."""
        top, left, height, width = self.box(image.shape[-2], image.shape[-1], generator)
        mirrored = self.flip and generator.random() < 0.5
        out = resize(image[:, top : top + height, left : left + width], self.size, self.size)
        return (out.flip(-1) if mirrored else out).contiguous()


@dataclass(frozen=True)
class ResizeCenterCrop:
    """Evaluation: the shorter side resized to `resize`, then the central `size` × `size`.

    >>> import torch
    >>> image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    >>> ResizeCenterCrop(28, resize=32)(image, sample_generator(0, 0, 0)).shape
    torch.Size([3, 28, 28])
    """

    size: int = 224
    resize: int = 256

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.resize:
            raise ValueError(f"size must be above 0 and at most resize ({self.resize}), got {self.size}")

    def __call__(self, image: Tensor, generator: np.random.Generator) -> Tensor:
        """Crop uint8 [C, H, W] centrally to uint8 [C, size, size]; nothing is drawn."""
        height, width = image.shape[-2:]
        short = min(height, width)
        out = resize(image, int(self.resize * height / short), int(self.resize * width / short))
        top, left = (round((side - self.size) / 2) for side in out.shape[-2:])
        return out[:, top : top + self.size, left : left + self.size].contiguous()


def crops_for(size: int) -> tuple[RandomResizedCrop, ResizeCenterCrop]:
    """Return the training and evaluation crops for a network of input `size`, at the paper's 256 : 224.

    >>> crops_for(224)[1]
    ResizeCenterCrop(size=224, resize=256)
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    return RandomResizedCrop(size), ResizeCenterCrop(size, round(size * 256 / 224))
