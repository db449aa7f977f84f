"""Images gathered, shifted over black, mirrored and normalised in one pass: what `aol.lab.data.augment` does in ten.

Assumes one uint8 tensor [N, C, H, W] on the device, and draws made beforehand.
"""
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gather_images(
    pixels_ptr,
    index_ptr,
    row_ptr,
    column_ptr,
    flip_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    PAD: tl.constexpr,
    CHANNELS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    DRAWN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take one image a program, BLOCK of its values; without DRAWN it stays as it is."""
    image = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = element < CHANNELS * H * W
    channel = element // (H * W)
    row = element // W % H
    column = element % W
    if DRAWN:
        flip = tl.load(flip_ptr + image).to(tl.int1)
        column = tl.where(flip, W - 1 - column, column) + (tl.load(column_ptr + image).to(tl.int32) - PAD)
        row = row + (tl.load(row_ptr + image).to(tl.int32) - PAD)
    inside = live & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    source = tl.load(index_ptr + image) * (CHANNELS * H * W) + (channel * H + row) * W + column
    value = tl.load(pixels_ptr + source, mask=inside, other=0).to(tl.float32)
    value = value * tl.load(scale_ptr + channel, mask=live, other=0.0)
    value = value + tl.load(shift_ptr + channel, mask=live, other=0.0)
    tl.store(out_ptr + image * (CHANNELS * H * W) + element, value, mask=live)


def batch(
    pixels: Tensor,
    index: Tensor,
    draws: tuple[Tensor, Tensor, Tensor] | None,
    *,
    pad: int,
    scale: Tensor,
    shift: Tensor,
) -> Tensor:
    """uint8 [N, C, H, W] and int64 [...] → float32 [..., C, H, W], shifted and mirrored by the draws, or as they are.

    `draws` are row, column and flip, as `aol.lab.data.augment.Draws`; `scale` and `shift` [C] are the normalisation.
    """
    channels, height, width = pixels.shape[1:]
    out = torch.empty((*index.shape, channels, height, width), dtype=torch.float32, device=pixels.device)
    index = index.contiguous()
    row, column, flip = (index,) * 3 if draws is None else draws
    block = 1024
    if index.numel():
        gather_images[(index.numel(), triton.cdiv(channels * height * width, block))](
            pixels, index, row.contiguous(), column.contiguous(), flip.contiguous(), scale, shift, out,
            PAD=pad, CHANNELS=channels, H=height, W=width, DRAWN=draws is not None, BLOCK=block,
        )  # fmt: skip
    return out
