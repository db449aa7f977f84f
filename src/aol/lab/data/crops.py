"""Random and central crops of large images, one image at a time, on uint8 tensors [C, H, W].

Assumes a decoded image and, for training, a numpy generator of this sample, from (seed, epoch, index): neither the
number of workers nor the order of reading changes a result. `RandomResizedCrop.boxes` draws the same boxes for many
samples at once; `resample.py` cuts and resizes them as one batch. Sizes round as torchvision's do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
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
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, index, 0, 0]))


def sample_uniforms(seed: int, epoch: int, index: npt.NDArray[np.int64], blocks: int) -> npt.NDArray[np.float64]:
    """Return the first 4 · `blocks` values of `sample_generator(seed, epoch, i).random()` for each i in `index [n]`.

    Philox4x64-10 (Salmon et al., 2011) for all samples at once: `[n, 4 * blocks]`.

    >>> sample_uniforms(0, 3, np.array([7]), 1)[0, 0].item() == sample_generator(0, 3, 7).random()
    True
    """
    shape = (len(index), blocks)
    words: list[npt.NDArray[np.uint64]] = [np.zeros(shape, np.uint64) for _ in range(4)]
    words[0] += np.arange(1, blocks + 1, dtype=np.uint64)
    words[1] += index.astype(np.uint64)[:, None]
    keys = [seed, epoch]
    for _ in range(10):
        (high0, low0), (high1, low1) = _product(_PHILOX[0], words[0]), _product(_PHILOX[1], words[2])
        words = [high1 ^ words[1] ^ np.uint64(keys[0]), low1, high0 ^ words[3] ^ np.uint64(keys[1]), low0]
        keys = [(key + step) % 2**64 for key, step in zip(keys, _PHILOX_STEPS, strict=True)]
    drawn = np.stack(words, axis=2).reshape(len(index), 4 * blocks)
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


_PHILOX = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_PHILOX_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def _product(a: int, b: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the high and the low 64 bits of `a * b`."""
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    a0, a1 = np.uint64(a & (2**32 - 1)), np.uint64(a >> 32)
    b0, b1 = b & mask, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    cross = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> half) + (cross >> half), np.uint64(a) * b


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
        return self._central(height, width)

    def _central(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return the largest central crop of allowed aspect."""
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = (width, round(width / aspect)) if width / height < aspect else (round(height * aspect), height)
        w, h = max(1, min(w, width)), max(1, min(h, height))
        return (height - h) // 2, (width - w) // 2, h, w

    def boxes(
        self, height: npt.NDArray[np.int64], width: npt.NDArray[np.int64], *, seed: int, epoch: int
    ) -> npt.NDArray[np.int64]:
        """Draw what `box` draws for samples 0 to n - 1, images of `height [n]` and `width [n]`, and whether to mirror.

        Returns top, left, height, width and mirrored (0 or 1), `[n, 5]`.

        >>> boxes = RandomResizedCrop(32).boxes(np.array([40, 50]), np.array([60, 50]), seed=0, epoch=2)
        >>> tuple(boxes[1, :4].tolist()) == RandomResizedCrop(32).box(50, 50, sample_generator(0, 2, 1))
        True
        """
        index = np.arange(len(height))
        found, fits = self._boxes(height, width, sample_uniforms(seed, epoch, index, 2), 2)
        if (again := index[~fits]).size:  # few: most first tries fit
            found[again], _ = self._boxes(height[again], width[again], sample_uniforms(seed, epoch, again, 6), 10)
        return found

    def _boxes(
        self, height: npt.NDArray[np.int64], width: npt.NDArray[np.int64], uniforms: npt.NDArray[np.float64], tries: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return `boxes` after some tries, and where one of them fits; the others have the central crop."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        drawn = uniforms[:, : 2 * tries].reshape(-1, tries, 2)
        area = (height * width)[:, None] * (self.scale[0] + (self.scale[1] - self.scale[0]) * drawn[..., 0])
        aspect = np.exp(low + (high - low) * drawn[..., 1])
        w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        fit = (w > 0) & (w <= width[:, None]) & (h > 0) & (h <= height[:, None])
        fits: npt.NDArray[np.bool_] = np.any(fit, axis=1)
        first, rows = fit.argmax(1), np.arange(len(height))
        box = np.zeros((len(height), 5), np.int64)
        box[:, 2], box[:, 3] = h[rows, first], w[rows, first]
        for axis, side in enumerate((height, width)):
            box[:, axis] = uniforms[rows, 2 * first + 2 + axis] * (side - box[:, 2 + axis] + 1)
        for row in rows[~fits]:
            box[row, :4] = self._central(int(height[row]), int(width[row]))
        place = np.where(fits, 2 * first + 4, 2 * tries)
        box[:, 4] = self.flip & (uniforms[rows, np.minimum(place, uniforms.shape[1] - 1)] < 0.5)
        return box, fits

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
