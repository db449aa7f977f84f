"""Crops and flips of small images, for a whole batch of R runs at once, on the device.

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

from aol.lab.data.images import Augmentation


class Draws(NamedTuple):
    """What happens to each sample; all of one shape."""

    row: Tensor  # int64 in 0..2·pad: `pad` is no shift
    column: Tensor
    flip: Tensor  # bool


def draw(samples: int, augmentation: Augmentation, *, generator: Sequence[torch.Generator]) -> Draws:
    """Draw shifts and flips for `samples` samples of R runs, `[R, samples]`, on the device of the R generators.

    A run's draws are the same alone and among others.
    """
    rows, columns, flips = [], [], []
    for own in generator:
        chosen = partial(torch.randint, size=(samples,), generator=own, device=own.device)
        rows.append(chosen(2 * augmentation.pad + 1))
        columns.append(chosen(2 * augmentation.pad + 1))
        flips.append(chosen(2).bool() if augmentation.flip else torch.zeros_like(rows[-1], dtype=torch.bool))
    return Draws(torch.stack(rows), torch.stack(columns), torch.stack(flips))


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
