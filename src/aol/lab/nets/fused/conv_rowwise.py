"""Stride-1 convolutions that walk down the rows of a few images, so that a row is read and normed once, not thrice.

A program holds three output rows at once: an input row adds its three taps to the row below, its own and the
row above, which is then complete. Per pixel this is a sixth of the instructions of a tile read tap by tap, and
these networks are so thin that instructions, not memory, bound the latter.
"""
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from aol.lab.nets.fused.addresses import on_map, packed_weights, shortcut_start, table_row, tile_sums, top_pixels
from aol.lab.nets.fused.conv import ADD_ACTIVATE, STATISTICS, shortcut
from aol.lab.nets.fused.tile_ops import product, read, relu, vectors


@triton.jit
def row_weights(w_ptr, C: tl.constexpr, N: tl.constexpr):
    """Weights of the three rows of taps, each [4·C, N], the fourth tap zero."""
    at = w_ptr + tl.arange(0, 4 * C)[:, None] * N + tl.arange(0, N)[None, :]
    return tl.load(at), tl.load(at + 4 * C * N), tl.load(at + 8 * C * N)


@triton.jit
def added(rolling, fresh):
    """Add, but not inside the product: sums that change places between rows must not lie in its accumulators."""
    return tl.fma(fresh, 1.0, rolling)


@triton.jit
def row_start(first_image, batch, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PIXELS: tl.constexpr):
    """Where the surroundings [PIXELS, 4·C] of row 0 begin in each image, which of them exist, and their channels."""
    pixel = tl.arange(0, PIXELS)
    image = first_image + pixel // W
    k = tl.arange(0, 4 * C)
    column = (pixel % W)[:, None] + (k // C)[None, :] - 1
    there = (image < batch)[:, None] & (column >= 0) & (column < W) & (k < 3 * C)[None, :]
    return (image * H * W)[:, None] * C + column * C + (k % C)[None, :], there, k % C


@triton.jit(do_not_specialize=["runs", "batch"])
def conv_forward_rows(
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
    ENTRY: tl.constexpr,
    EXIT: tl.constexpr,
    SIDE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """As `conv_forward`, stride 1; a program takes PIXELS // W whole images."""
    tile = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    total = batch * H * W
    first_image = tile * (PIXELS // W)
    x_ptr += run * total * C
    w0, w1, w2 = row_weights(w_ptr + packed_weights(run, C, N, 4), C, N)
    start, there, channel = row_start(first_image, batch, H, W, C, PIXELS)
    v0, v1, v2 = vectors(v_ptr + run * C, runs * C, channel, ENTRY)

    n = tl.arange(0, N)[None, :]
    image, live, column, pixel = top_pixels(first_image, batch, H, W, PIXELS)
    out_ptr += on_map(run, total, pixel, n, N)
    if EXIT != STATISTICS:
        scale = table_row(s_ptr, 0, runs, run, n, N)
        shift = table_row(s_ptr, 1, runs, run, n, N)
        short_ptr += shortcut_start(run, total, N, SIDE)

    # Row 0 knows nothing above it; it and row 1 are begun by the first input row.
    a = read(x_ptr, x_ptr, start, there, v0, v1, v2, ENTRY)
    zeros = tl.zeros([PIXELS, N], tl.float32)
    current = product(a, w1, zeros)
    following = product(a, w0, zeros)
    origin = zeros
    moved = zeros
    squares = zeros
    for row in range(H):
        below = there & (row + 1 < H)
        a = read(x_ptr, x_ptr, start + (row + 1) * (W * C), below, v0, v1, v2, ENTRY)
        done = added(current, product(a, w2, zeros))
        current = added(following, product(a, w1, zeros))
        following = product(a, w0, zeros)
        if EXIT != STATISTICS:
            done = done * scale + shift
            if EXIT == ADD_ACTIVATE:
                done += shortcut(short_ptr, image, row, column, n, live, H, W, N, SIDE)
            done = relu(done)
        y = done.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * (W * N), y, mask=live)
        if EXIT == STATISTICS:
            # Sums of what is left after each column's first value: no large squares to cancel.
            origin = tl.where(row == 0, done, origin)
            away = done - origin
            moved += away
            squares += away * away
    if EXIT == STATISTICS:
        partial_ptr = tile_sums(partial_ptr, run, tile, N) + tl.arange(0, N)
        columns = tl.minimum(PIXELS // W, batch - first_image) * W
        column_mean = origin + moved / H
        mean = tl.sum(tl.where(live, column_mean, 0.0), 0) / columns
        apart = column_mean - mean[None, :]
        deviations = squares - moved * moved / H + H * apart * apart
        tl.store(partial_ptr, mean)
        tl.store(partial_ptr + N, tl.sum(tl.where(live, deviations, 0.0), 0))


@triton.jit(do_not_specialize=["runs", "batch"])
def conv_backward_rows(
    g_ptr,
    w_ptr,
    out_ptr,
    partial_ptr,
    short_ptr,
    x_ptr,
    below_ptr,
    s_ptr,
    runs,
    batch,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """As `conv_backward.conv_backward_input`; a program takes PIXELS // W whole images."""
    tile = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    total = batch * H * W
    first_image = tile * (PIXELS // W)
    g_ptr += run * total * C
    w0, w1, w2 = row_weights(w_ptr + packed_weights(run, C, N, 4), C, N)
    start, there, _ = row_start(first_image, batch, H, W, C, PIXELS)

    dtype = out_ptr.dtype.element_ty
    n = tl.arange(0, N)[None, :]
    _, live, _, pixel = top_pixels(first_image, batch, H, W, PIXELS)
    here = on_map(run, total, pixel, n, N)
    scale = table_row(s_ptr, 0, runs, run, n, N)
    shift = table_row(s_ptr, 1, runs, run, n, N)
    mean = table_row(s_ptr, 2, runs, run, n, N)

    a = tl.load(g_ptr + start, mask=there, other=0.0)
    zeros = tl.zeros([PIXELS, N], tl.float32)
    current = product(a, w1, zeros)
    following = product(a, w0, zeros)
    plain = zeros
    moment = zeros
    # Of the row whose gradient is about to be complete, read one row ahead.
    below = tl.load(below_ptr + here, mask=live, other=0.0)
    passed = tl.load(x_ptr + here, mask=live, other=0.0) if RESIDUAL else below
    for row in range(H):
        at = here + row * (W * N)
        if RESIDUAL:
            short = tl.load(short_ptr + at, mask=live, other=0.0)
        a = tl.load(g_ptr + start + (row + 1) * (W * C), mask=there & (row + 1 < H), other=0.0)
        grad = added(current, product(a, w2, zeros))
        current = added(following, product(a, w1, zeros))
        following = product(a, w0, zeros)
        if RESIDUAL:
            grad += short.to(tl.float32)
            closed = passed.to(tl.float32) <= 0
        else:
            closed = below.to(tl.float32) * scale + shift <= 0
        grad = tl.where(closed, 0.0, grad)
        tl.store(out_ptr + at, grad.to(dtype), mask=live)
        plain += grad
        moment += grad * (below.to(tl.float32) - mean)
        below = tl.load(below_ptr + at + W * N, mask=live & (row + 1 < H), other=0.0)
        passed = tl.load(x_ptr + at + W * N, mask=live & (row + 1 < H), other=0.0) if RESIDUAL else below
    partial_ptr = tile_sums(partial_ptr, run, tile, N) + tl.arange(0, N)
    tl.store(partial_ptr, tl.sum(tl.where(live, plain, 0.0), 0))
    tl.store(partial_ptr + N, tl.sum(tl.where(live, moment, 0.0), 0))
