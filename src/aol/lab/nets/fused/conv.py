"""3×3 convolutions of R runs in Triton, and the sums of each channel that convolutions and gradients leave behind.

A convolution takes the batch norm (and activation) before it on its way in, and leaves on its way out what the
next batch norm needs to be finished: two sums of each channel, one pair a program, always added in one order.
"""
# mypy: ignore-errors
# ruff: noqa: N803, N806

from __future__ import annotations

import triton
import triton.language as tl

from aol.lab.nets.fused.addresses import own_tile, packed_weights, place, shortcut_start, table_row, tile_sums
from aol.lab.nets.fused.tile_ops import convolved, relu

# What a convolution does with its result.
STATISTICS: tl.constexpr = tl.constexpr(0)  # write it raw, with mean and squared deviations of each channel
ACTIVATE: tl.constexpr = tl.constexpr(1)  # write relu(scale·y + shift)
ADD_ACTIVATE: tl.constexpr = tl.constexpr(2)  # write relu(scale·y + shift + shortcut)


@triton.jit
def shortcut(x_ptr, b, h, w, n, live, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr):
    """Read the shortcut at a pixel of H×W: x itself, or if SIDE > 0 the 2×2 mean, SIDE zero channels around."""
    if SIDE == 0:
        x = tl.load(x_ptr + ((b * H + h) * W + w) * N + n, mask=live, other=0.0).to(tl.float32)
    else:
        CHANNELS: tl.constexpr = N - 2 * SIDE
        there = live & (n >= SIDE) & (n < SIDE + CHANNELS)
        corner = ((b * 2 * H + 2 * h) * 2 * W + 2 * w) * CHANNELS + n - SIDE
        x = tl.load(x_ptr + corner, mask=there, other=0.0).to(tl.float32)
        x += tl.load(x_ptr + corner + CHANNELS, mask=there, other=0.0).to(tl.float32)
        x += tl.load(x_ptr + corner + 2 * W * CHANNELS, mask=there, other=0.0).to(tl.float32)
        x += tl.load(x_ptr + corner + 2 * W * CHANNELS + CHANNELS, mask=there, other=0.0).to(tl.float32)
        x = x * 0.25
    return x


@triton.jit
def leave_moments(y, live, run, tile, total, partial_ptr, N: tl.constexpr, PIXELS: tl.constexpr):
    """Write mean and sum of squared deviations of each channel of a tile: no large squares to cancel."""
    n = tl.arange(0, N)
    count = tl.minimum(PIXELS, total - tile * PIXELS)
    partial_ptr = tile_sums(partial_ptr, run, tile, N)
    mean = tl.sum(tl.where(live, y, 0.0), 0) / count
    away = tl.where(live, y - mean[None, :], 0.0)
    tl.store(partial_ptr + n, mean)
    tl.store(partial_ptr + N + n, tl.sum(away * away, 0))


@triton.jit(do_not_specialize=["runs", "batch"])
def conv_forward(
    x_ptr,
    v_ptr,
    w_ptr,
    out_ptr,
    partial_ptr,
    s_ptr,
    short_ptr,
    runs,
    batch,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    STRIDE: tl.constexpr,
    ENTRY: tl.constexpr,
    EXIT: tl.constexpr,
    SIDE: tl.constexpr,
    TAPS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Convolve x [R, B, H, W, C] → y [R, B, H/STRIDE, W/STRIDE, N]; v and s: tables [·, R, C] and [·, R, N]."""
    OUT_H: tl.constexpr = H // STRIDE
    OUT_W: tl.constexpr = W // STRIDE
    total = batch * OUT_H * OUT_W
    tile, run, pixel, live = own_tile(total, PIXELS)
    n = tl.arange(0, N)[None, :]
    x_ptr += run * batch * H * W * C
    acc = convolved(
        x_ptr, x_ptr, v_ptr + run * C, runs * C, w_ptr + packed_weights(run, C, N, TAPS), pixel, live,
        H, W, OUT_H, OUT_W, C, N, STRIDE, ENTRY, TAPS, PIXELS,
    )  # fmt: skip
    live = live[:, None]
    if EXIT != STATISTICS:
        acc = acc * table_row(s_ptr, 0, runs, run, n, N) + table_row(s_ptr, 1, runs, run, n, N)
        if EXIT == ADD_ACTIVATE:
            b, h, w = place(pixel[:, None], OUT_H, OUT_W)
            acc += shortcut(short_ptr + shortcut_start(run, total, N, SIDE), b, h, w, n, live, OUT_H, OUT_W, N, SIDE)
        acc = relu(acc)
    y = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + run * total * N + pixel[:, None] * N + n, y, mask=live)
    if EXIT == STATISTICS:
        leave_moments(acc, live, run, tile, total, partial_ptr, N, PIXELS)


@triton.jit
def leave_gradient_sums(grad, below, mean_ptr, partial_ptr, run, tile, N: tl.constexpr):
    """Write Σ g and Σ g·(below − mean) of a tile; `grad` is zero where there is no pixel."""
    n = tl.arange(0, N)
    partial_ptr = tile_sums(partial_ptr, run, tile, N)
    tl.store(partial_ptr + n, tl.sum(grad, 0))
    tl.store(partial_ptr + N + n, tl.sum(grad * (below - tl.load(mean_ptr + n)[None, :]), 0))
