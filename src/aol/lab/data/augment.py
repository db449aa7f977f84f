"""Crop, flip and normalisation of small images, for a whole batch of R runs at once, on the device.

Assumes one uint8 tensor [N, C, H, W] on the training device. All randomness is drawn beforehand, an epoch at a time, so
that a batch is a pure function of (indices, shifts, flips): no host work, no synchronisation, fit for a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from aol.lab.data.images import Augmentation, Normalisation


class Draws(NamedTuple):
    """What happens to each sample: `row`, `column` int64 in 0..2·pad, `flip` bool; all of one shape.

    A row or column equal to `pad` means no shift.
    """

    row: Tensor
    column: Tensor
    flip: Tensor

    def batch(self, positions: slice | Tensor) -> Draws:
        """Return the draws at some positions of the last axis."""
        return Draws(*(drawn[..., positions] for drawn in self))


def draw(samples: int, augmentation: Augmentation, *, generator: torch.Generator | Sequence[torch.Generator]) -> Draws:
    """Draw shifts and flips for `samples` samples: [samples], or [R, samples] from R generators.

    With one generator a run, a run's draws are the same alone and among others. They are on the generator's device.

    >>> one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    >>> draw(5, Augmentation(pad=4, flip=True), generator=[one, two]).row.shape
    torch.Size([2, 5])
    """
    if not isinstance(generator, torch.Generator):
        rows = [draw(samples, augmentation, generator=g) for g in generator]
        return Draws(*(torch.stack(parts) for parts in zip(*rows, strict=True)))
    chosen = partial(torch.randint, size=(samples,), generator=generator, device=generator.device)
    row, column = chosen(2 * augmentation.pad + 1), chosen(2 * augmentation.pad + 1)
    flip = chosen(2).bool() if augmentation.flip else torch.zeros_like(row, dtype=torch.bool)
    return Draws(row, column, flip)


def crop_flip(images: Tensor, index: Tensor, draws: Draws, *, pad: int) -> Tensor:
    """Gather, shift over black and mirror: uint8 [N, C, H, W] and int64 [...] give uint8 [..., C, H, W].

    Equal, image by image, to padding all sides with `pad` zeros, cutting H×W at (row, column), then mirroring.

    >>> images = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> d = Draws(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([False, True]))
    >>> crop_flip(images, torch.tensor([0, 0]), d, pad=1).tolist()
    [[[[0, 0], [1, 2]]], [[[2, 1], [4, 3]]]]
    """
    _, channels, height, width = images.shape
    if index.numel() == 0:
        return images.new_empty((*index.shape, channels, height, width))
    place = partial(torch.arange, device=images.device)
    flat = index.reshape(-1)
    black = F.pad(images.index_select(0, flat), (pad, pad, pad, pad))
    line = place(len(flat) * channels).view(-1, channels, 1) * black.shape[-2] + place(height)
    begin = (line + draws.row.reshape(-1, 1, 1)) * black.shape[-1] + draws.column.reshape(-1, 1, 1)  # [n, C, H]
    # Every W pixels in a row, wherever they begin, are a row of this view: whole rows are copied, not single pixels.
    rows = black.flatten().unfold(0, width, 1).index_select(0, begin.flatten())
    cut = rows.view(*index.shape, channels, height, width)
    return torch.where(draws.flip[..., None, None, None], cut.flip(-1), cut)


def training_batch(images: Tensor, index: Tensor, draws: Draws, *, pad: int, normalisation: Normalisation) -> Tensor:
    """Return the augmented network input of a batch: indices [R, B] (or [B]) give float32 [R, B, C, H, W].

    Padding is black before normalisation, as in the usual pipeline.

    >>> from aol.lab.data.images import centred
    >>> images = torch.full((5, 1, 4, 4), 128, dtype=torch.uint8)
    >>> index = torch.tensor([[0, 4, 2]])
    >>> d = draw(3, Augmentation(pad=0, flip=True), generator=[torch.Generator().manual_seed(0)])
    >>> training_batch(images, index, d, pad=0, normalisation=centred(1)).unique()
    tensor([0.])
    """
    if not (index.shape == draws.row.shape == draws.column.shape == draws.flip.shape):
        raise ValueError(f"index and draws must have one shape, got {list(index.shape)} and {list(draws.row.shape)}")
    return normalisation(crop_flip(images, index, draws, pad=pad))
