"""Images of different sizes cut, resized, mirrored and normalised in one pass.

Each output pixel reads the few pixels around its place, so that nothing large is written in between.
"""
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aol.lab.data.encoded_images import Ragged


@triton.jit
def _share(pixel, extent, centre, reach):
    """Return the share of a pixel in the output at `centre`, before they are made to sum to one."""
    share = tl.maximum(1.0 - tl.abs(pixel.to(tl.float32) + 0.5 - centre) / reach, 0.0)
    return tl.where((pixel >= 0) & (pixel < extent), share, 0.0)


@triton.jit
def resample_images(
    pixels_ptr,
    start_ptr,
    height_ptr,
    width_ptr,
    index_ptr,
    step_ptr,
    skip_ptr,
    flip_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take one row of one output a program."""
    image = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    source = tl.load(index_ptr + image)
    first = pixels_ptr + tl.load(start_ptr + source)
    width = tl.load(width_ptr + source).to(tl.int32)  # within an image, 32 bits suffice
    height = tl.load(height_ptr + source).to(tl.int32)
    plane = height * width
    step_y, step_x = tl.load(step_ptr + 2 * image), tl.load(step_ptr + 2 * image + 1)
    column = tl.arange(0, BLOCK)
    live = column < SIZE
    place = tl.where(tl.load(flip_ptr + image).to(tl.int1), SIZE - 1 - column, column)
    reach_y, reach_x = tl.maximum(step_y, 1.0), tl.maximum(step_x, 1.0)
    centre_y = (row + 0.5 + tl.load(skip_ptr + 2 * image)) * step_y
    centre_x = (place + 0.5 + tl.load(skip_ptr + 2 * image + 1)) * step_x
    first_y = tl.floor(centre_y - reach_y).to(tl.int32)
    first_x = tl.floor(centre_x - reach_x).to(tl.int32)
    taps_y, taps_x = (2.0 * reach_y).to(tl.int32) + 2, (2.0 * reach_x).to(tl.int32) + 2
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    total_y = 0.0
    total_x = tl.zeros((BLOCK,), tl.float32)
    for across in range(taps_x):
        total_x += _share(first_x + across, width, centre_x, reach_x)
    for down in range(taps_y):
        y = first_y + down
        share_y = _share(y, height, centre_y, reach_y)
        total_y += share_y
        for across in range(taps_x):
            x = first_x + across
            share = share_y * _share(x, width, centre_x, reach_x)
            inside = live & (share > 0.0)
            at = first + y * width + x
            red += share * tl.load(at, mask=inside, other=0).to(tl.float32)
            green += share * tl.load(at + plane, mask=inside, other=0).to(tl.float32)
            blue += share * tl.load(at + 2 * plane, mask=inside, other=0).to(tl.float32)
    total = total_y * total_x
    out = out_ptr + image * (3 * SIZE * SIZE) + row * SIZE + column
    tl.store(out, red / total * tl.load(scale_ptr) + tl.load(shift_ptr), mask=live)
    tl.store(out + SIZE * SIZE, green / total * tl.load(scale_ptr + 1) + tl.load(shift_ptr + 1), mask=live)
    tl.store(out + 2 * SIZE * SIZE, blue / total * tl.load(scale_ptr + 2) + tl.load(shift_ptr + 2), mask=live)


def batch(images: Ragged, index: Tensor, boxes: Tensor, *, size: int, scale: Tensor, shift: Tensor) -> Tensor:
    """Return `boxes [n, 5]` of the images `index [n]`, resized and normalised: float32 `[n, 3, size, size]`.

    Boxes are top, left, height, width and mirrored. `scale` and `shift` [3] are the normalisation.
    """
    out = torch.empty((index.numel(), 3, size, size), dtype=torch.float32, device=images.pixels.device)
    if index.numel():
        step = (boxes[:, 2:4] / size).to(torch.float32)  # so many pixels become one
        skip = (boxes[:, :2] / step).to(torch.float32)  # outputs that are cut off before the first
        view = (index, step, skip, boxes[:, 4].bool())
        given = (part.contiguous() for part in (images.start, images.height, images.width, *view))
        resample_images[(index.numel(), size)](
            images.pixels, *given, scale, shift, out, SIZE=size, BLOCK=triton.next_power_of_2(size)
        )
    return out
