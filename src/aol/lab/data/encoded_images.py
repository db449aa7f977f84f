"""A split of images of any size, decoded by Pillow when asked for; a bad one is an error that names its file.

Every image becomes RGB and upright: the rotation that a camera notes in EXIF is applied. What training shows of an
image is a function of (seed, epoch, sample): neither the number of workers nor the order of reading changes it.
"""

from __future__ import annotations

import copy
import math
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from aol import _seeds
from aol._need import need
from aol.lab.data.images import DataError, Labelled

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE = 224  # pixels of network input, if no other is asked for
LARGEST = 2**26  # pixels of an image: 8,192 × 8,192
_CENTRE = 224 / 256  # the part of the shorter side that evaluation shows
_TRIES, _LEAST, _ASPECT = 10, 0.08, 4 / 3
_CROPS = 1_000_002  # this use's place in the path of a seed
_ORIENTATION = 0x0112  # EXIF tag: 1 upright, 2 to 8 mirrored or rotated


class StoredImages(Labelled, ABC):
    """A split whose images are decoded when asked for. It goes to worker processes as a pickle."""

    shape = (3, SIZE, SIZE)

    def __init__(self, name: str, classes: Sequence[str], labels: Tensor, where: np.ndarray) -> None:
        self.name, self.classes, self.labels = name, tuple(classes), labels
        self._where = where  # files or rows, as one array: of a million strings, every worker would get a copy

    def subset(self, index: Tensor, name: str) -> Self:
        """Return the images at `index [n]` as a split of their own."""
        part = copy.copy(self)
        part.name, part.labels, part._where = name, self.labels[index], self._where[index.numpy()]
        return part

    @abstractmethod
    def encoded(self, place: int) -> str | BinaryIO:
        """Return the path of an image, or its content as a file."""

    @abstractmethod
    def names(self, index: Tensor) -> list[str]:
        """Return what the samples `index [n]` are called in the data set: a path inside it, or split and row."""

    @contextmanager
    def opened(self, place: int) -> Iterator[Image]:
        """Open an image, and read its header; what Pillow raises on bad bytes becomes a `DataError`."""
        pillow, file = need("PIL.Image", "decoding images"), self.encoded(place)
        if isinstance(file, str) and not stat.S_ISREG(os.stat(file).st_mode):
            raise DataError(f"{file}: a pipe, a socket or a device, and not an image")
        try:
            with pillow.open(file) as image:
                if image.width * image.height > LARGEST:
                    raise pillow.DecompressionBombError
                if image.format == "EPS":  # a program, which Pillow would let Ghostscript run
                    raise pillow.UnidentifiedImageError("cannot identify")
                yield image
        except Exception as reason:  # OSError, SyntaxError, struct.error, …
            if isinstance(reason, MemoryError) or getattr(reason, "errno", None):  # the file cannot be read
                raise
            said = "not an image" if "cannot identify" in str(reason) else f"a damaged image ({reason})"
            if isinstance(reason, pillow.DecompressionBombError):
                said = f"more than {LARGEST:,} pixels"
            name = file if isinstance(file, str) else self.names(torch.tensor([place]))[0]
            raise DataError(f"{name}: {said}") from None

    def size_of(self, place: int) -> tuple[int, int]:
        """Return height and width of an image, upright, from its header."""
        with self.opened(place) as image:
            turned = _orientation(image) in range(5, 9) and image.format != "TIFF"  # whose sizes are upright
            return (image.width, image.height) if turned else (image.height, image.width)

    def whole(self, place: int) -> Tensor:
        """Return all pixels of an image: uint8 [3, H, W]."""
        with self.opened(place) as image:
            return torch.from_numpy(np.array(_upright(image).convert("RGB"))).permute(2, 0, 1)

    def view(self, place: int, draws: Tensor | None, size: int) -> Tensor:
        """Return the centre of an image, or the crop that `draws [23]` give: uint8 [size, size, 3].

        A JPEG is decoded at 1/2, 1/4 or 1/8 of its sides where that suffices, which takes less time.
        """
        with self.opened(place) as header:
            image = _upright(header)
            height, width = image.height, image.width
            sides = torch.tensor([[height, width]])
            boxes = centre_boxes(sides) if draws is None else crop_boxes(sides, draws[None])
            top, left, rows, columns, mirrored = boxes[0].tolist()
            reduction = min(rows, columns) / size
            drafted = image.draft(None, (math.ceil(width / reduction), math.ceil(height / reduction)))
            scale = drafted[1][2] / width if drafted else 1.0
            right, bottom = min(left + columns, width) * scale, min(top + rows, height) * scale
            box = (left * scale, top * scale, right, bottom)
            pixels = np.array(image.convert("RGB").resize((size, size), 2, box))  # bilinear, with antialiasing
        return torch.from_numpy(pixels[:, ::-1].copy() if mirrored else pixels)


def _orientation(image: Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF beside whole pixels
        return 1


def _upright(image: Image) -> Image:
    """Rotate or mirror an image as its EXIF data ask for."""
    if _orientation(image) not in range(2, 9):
        return image
    from PIL.ImageOps import exif_transpose

    return exif_transpose(image)


def draw_crops(samples: int, *, seed: int, epoch: int) -> Tensor:
    """Draw what the crops of all samples of a set depend on in an epoch: uniform numbers `[samples, 23]`."""
    return torch.rand(samples, 2 * _TRIES + 3, generator=_seeds.generator(seed, _CROPS, epoch))


def crop_boxes(sizes: Tensor, draws: Tensor) -> Tensor:
    """Return top, left, height, width and mirrored (0 or 1) of random crops of images `sizes [n, 2]`: `[n, 5]`.

    8 % to 100 % of the area, aspect 3/4 to 4/3: ten tries, then the largest central crop of allowed aspect.

    >>> crop_boxes(torch.tensor([[60, 80]]), torch.full((1, 23), 0.5)).tolist()
    [[5.0, 15.0, 51.0, 51.0, 0.0]]
    """
    height, width = torch.split(sizes.to(torch.float64), 1, 1)
    chance = draws.to(torch.float64)
    area = height * width * (_LEAST + (1 - _LEAST) * chance[:, :_TRIES])
    aspect = torch.exp(math.log(_ASPECT) * (2 * chance[:, _TRIES : 2 * _TRIES] - 1))
    rows, columns = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (rows >= 1) & (rows <= height) & (columns >= 1) & (columns <= width)
    fit, first = fits.to(torch.int8).max(1, keepdim=True)
    rows = torch.where(fit > 0, rows.gather(1, first), torch.minimum(height, (width * _ASPECT).round()))
    columns = torch.where(fit > 0, columns.gather(1, first), torch.minimum(width, (height * _ASPECT).round()))
    down, across, flip = torch.split(chance[:, 2 * _TRIES :], 1, 1)
    top = torch.where(fit > 0, down * (height - rows + 1), (height - rows) / 2).floor()
    left = torch.where(fit > 0, across * (width - columns + 1), (width - columns) / 2).floor()
    return torch.cat((top, left, rows, columns, (flip < 0.5).to(torch.float64)), 1)


def centre_boxes(sizes: Tensor) -> Tensor:
    """Return the central square of images `sizes [n, 2]`, 7/8 of the shorter side wide, as `crop_boxes` does."""
    side = sizes.amin(1, keepdim=True).to(torch.float64) * _CENTRE
    return torch.cat(((sizes - side) / 2, side, side, torch.zeros_like(side)), 1)


class Ragged(NamedTuple):
    """N images of any sizes in one tensor: `pixels` uint8 `[M]`, each image [3, height, width] from its `start` on."""

    pixels: Tensor
    start: Tensor  # int64 [N], as height and width
    height: Tensor
    width: Tensor

    @staticmethod
    def empty(sizes: Tensor, device: torch.device) -> Ragged:
        """Return room for images of `sizes [N, 2]`, height and width; the pixels are not set."""
        height, width = sizes.to(torch.int64).unbind(1)
        ends = (3 * height * width).cumsum(0)
        pixels = torch.empty(int(ends[-1]), dtype=torch.uint8, device=device)
        return Ragged(pixels, (ends - 3 * height * width).to(device), height.to(device), width.to(device))
