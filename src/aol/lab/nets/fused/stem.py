"""The first convolution: few input channels, so all nine taps of all channels make one short row of a product.

Images [R, B, C, H, W] come in any layout and type (strides are arguments; a run's stride of zero shares them).
"""
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from aol.lab.nets.fused.addresses import chunk_sums, chunk_tiles, own_tile, place, table_row, tile_pixels
from aol.lab.nets.fused.conv import ACTIVATE, STATISTICS, leave_moments
from aol.lab.nets.fused.tile_ops import NORM_BACK, product, read, relu, vectors


@triton.jit
def image_patches(
    x_ptr, pixel, live, stride_b, stride_c, stride_h, stride_w,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Read the 3×3 surroundings of pixels as rows of 9·C values, in the order the weights have, padded to K."""
    k = tl.arange(0, K)[None, :]
    b, h, w = place(pixel[:, None], H, W)
    row = h + (k % 9) // 3 - 1
    column = w + k % 3 - 1
    there = live[:, None] & (k < 9 * C) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    offset = b.to(tl.int64) * stride_b + (k // 9) * stride_c + row * stride_h + column * stride_w
    return tl.load(x_ptr + offset, mask=there, other=0.0)


@triton.jit(do_not_specialize=["runs", "batch"])
def stem_forward(
    x_ptr,
    w_ptr,
    out_ptr,
    partial_ptr,
    s_ptr,
    runs,
    batch,
    stride_r,
    stride_b,
    stride_c,
    stride_h,
    stride_w,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    EXIT: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Images → y [R, B, H, W, N], raw with its moments or normed and activated; weights [R·N, C, 3, 3]."""
    total = batch * H * W
    tile, run, pixel, live = own_tile(total, PIXELS)
    k = tl.arange(0, K)[:, None]
    n = tl.arange(0, N)[None, :]
    dtype = out_ptr.dtype.element_ty
    a = image_patches(x_ptr + run * stride_r, pixel, live, stride_b, stride_c, stride_h, stride_w, H, W, C, K)
    weights = tl.load(w_ptr + (run * N + n) * (9 * C) + k, mask=k < 9 * C, other=0.0)
    acc = product(a.to(dtype), weights.to(dtype), tl.zeros([PIXELS, N], tl.float32))
    if EXIT == ACTIVATE:
        acc = relu(acc * table_row(s_ptr, 0, runs, run, n, N) + table_row(s_ptr, 1, runs, run, n, N))
    y = acc.to(dtype)
    tl.store(out_ptr + run * total * N + pixel[:, None] * N + n, y, mask=live[:, None])
    if EXIT == STATISTICS:
        leave_moments(acc, live[:, None], run, tile, total, partial_ptr, N, PIXELS)


@triton.jit(do_not_specialize=["runs", "batch", "chunks"])
def stem_backward_weight(
    x_ptr,
    g_ptr,
    y_ptr,
    v_ptr,
    out_ptr,
    runs,
    batch,
    chunks,
    stride_r,
    stride_b,
    stride_c,
    stride_h,
    stride_w,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Images and the output's gradient (through the norm's) → partial sums [R, chunks, K, N]."""
    chunk = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    total = batch * H * W
    first, stop = chunk_tiles(chunk, chunks, total, PIXELS)
    k = tl.arange(0, K)
    n = tl.arange(0, N)
    v0, v1, v2 = vectors(v_ptr + run * N, runs * N, n, NORM_BACK)
    x_ptr += run * stride_r
    g_ptr += run * total * N
    y_ptr += run * total * N
    acc = tl.zeros([K, N], tl.float32)
    for tile in range(first, stop):
        pixel, live = tile_pixels(tile, total, PIXELS)
        a = image_patches(x_ptr, pixel, live, stride_b, stride_c, stride_h, stride_w, H, W, C, K)
        g = read(g_ptr, y_ptr, pixel[:, None] * N + n[None, :], live[:, None], v0, v1, v2, NORM_BACK)
        acc = product(tl.trans(a.to(g.dtype)), g, acc)
    out_ptr += chunk_sums(run, chunk, chunks, K * N)
    tl.store(out_ptr + k[:, None] * N + n[None, :], acc)
