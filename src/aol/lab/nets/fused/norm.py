"""The small kernels between convolutions: finishing batch norms, block ends, packing and unpacking weights."""
# mypy: ignore-errors
# ruff: noqa: N803, N806

from __future__ import annotations

import triton
import triton.language as tl

from aol.lab.nets.fused.addresses import on_map, own_tile, place, shortcut_start, table_row
from aol.lab.nets.fused.conv import leave_gradient_sums, shortcut
from aol.lab.nets.fused.tile_ops import relu


@triton.jit
def sums_of(start, tile, tiles, which, n, N: tl.constexpr):
    """Read the first or second sum of channels n from some tiles [BLOCK, PART], zero where there is no tile."""
    return tl.load(start + tile * 2 * N + which * N + n[None, :], mask=tile < tiles, other=0.0)


@triton.jit
def pixels_of(tile, total, PIXELS: tl.constexpr):
    """Count the pixels of each tile."""
    return tl.maximum(tl.minimum(PIXELS, total - tile * PIXELS), 0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "tiles", "total"])
def finish_forward(
    partial_ptr,
    weight_ptr,
    bias_ptr,
    running_mean_ptr,
    running_var_ptr,
    table_ptr,
    rows,
    tiles,
    total,
    momentum,
    eps,
    N: tl.constexpr,
    PIXELS: tl.constexpr,
    TRAINING: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
):
    """Merge the tiles' moments into the table [4, R, N] of scale, shift, mean, 1/σ; move the running statistics.

    Not training: the table from the running statistics. Deviations are merged by Chan's rule, so a mean far
    from zero costs no digits. A program takes PART channels of a run.
    """
    run = tl.program_id(0)
    n = tl.program_id(1) * PART + tl.arange(0, PART)
    here = run * N + n
    if TRAINING:
        start = partial_ptr + run.to(tl.int64) * tiles * 2 * N
        mean_sum = tl.zeros([BLOCK, PART], tl.float32)
        for first in range(0, tiles, BLOCK):
            tile = first + tl.arange(0, BLOCK)[:, None]
            mean_sum += pixels_of(tile, total, PIXELS) * sums_of(start, tile, tiles, 0, n, N)
        mean = tl.sum(mean_sum, 0) / total
        squares = tl.zeros([BLOCK, PART], tl.float32)
        for first in range(0, tiles, BLOCK):
            tile = first + tl.arange(0, BLOCK)[:, None]
            away = sums_of(start, tile, tiles, 0, n, N) - mean[None, :]
            squares += sums_of(start, tile, tiles, 1, n, N)
            squares += tl.where(tile < tiles, pixels_of(tile, total, PIXELS) * away * away, 0.0)
        deviations = tl.sum(squares, 0)
        var = deviations / total
        unbiased = deviations / tl.maximum(total - 1, 1)
        old_mean = tl.load(running_mean_ptr + here)
        old_var = tl.load(running_var_ptr + here)
        tl.store(running_mean_ptr + here, old_mean + momentum * (mean - old_mean))
        tl.store(running_var_ptr + here, old_var + momentum * (unbiased - old_var))
    else:
        mean = tl.load(running_mean_ptr + here)
        var = tl.load(running_var_ptr + here)
    deviation = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(weight_ptr + here) * deviation
    tl.store(table_ptr + here, scale)
    tl.store(table_ptr + rows + here, tl.load(bias_ptr + here) - mean * scale)
    tl.store(table_ptr + 2 * rows + here, mean)
    tl.store(table_ptr + 3 * rows + here, deviation)


@triton.jit(do_not_specialize=["rows", "tiles", "total"])
def finish_backward(
    partial_ptr,
    table_ptr,
    weight_grad_ptr,
    bias_grad_ptr,
    out_ptr,
    rows,
    tiles,
    total,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
):
    """Add the tiles' sums: the norm's own gradients, and (α, β, δ) with dy = α·g + β·y + δ, a table [3, R, N]."""
    run = tl.program_id(0)
    n = tl.program_id(1) * PART + tl.arange(0, PART)
    here = run * N + n
    start = partial_ptr + run.to(tl.int64) * tiles * 2 * N
    plain = tl.zeros([BLOCK, PART], tl.float32)
    moment = tl.zeros([BLOCK, PART], tl.float32)
    for first in range(0, tiles, BLOCK):
        tile = first + tl.arange(0, BLOCK)[:, None]
        plain += sums_of(start, tile, tiles, 0, n, N)
        moment += sums_of(start, tile, tiles, 1, n, N)
    scale = tl.load(table_ptr + here)
    mean = tl.load(table_ptr + 2 * rows + here)
    deviation = tl.load(table_ptr + 3 * rows + here)
    bias_grad = tl.sum(plain, 0)
    weight_grad = tl.sum(moment, 0) * deviation
    tl.store(bias_grad_ptr + here, bias_grad)
    tl.store(weight_grad_ptr + here, weight_grad)
    beta = -scale * deviation * weight_grad / total
    tl.store(out_ptr + here, scale)
    tl.store(out_ptr + rows + here, beta)
    tl.store(out_ptr + 2 * rows + here, -scale * bias_grad / total - beta * mean)


@triton.jit(do_not_specialize=["runs", "batch"])
def block_end(
    y_ptr,
    s_ptr,
    short_ptr,
    out_ptr,
    runs,
    batch,
    H: tl.constexpr,
    W: tl.constexpr,
    N: tl.constexpr,
    SHORT: tl.constexpr,
    SIDE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """relu(scale·y + shift + shortcut), [R, B, H, W, N] → the same shape; without SHORT nothing is added."""
    total = batch * H * W
    _, run, pixel, live = own_tile(total, PIXELS)
    pixel, live = pixel[:, None], live[:, None]
    n = tl.arange(0, N)[None, :]
    here = on_map(run, total, pixel, n, N)
    y = tl.load(y_ptr + here, mask=live, other=0.0).to(tl.float32)
    y = y * table_row(s_ptr, 0, runs, run, n, N) + table_row(s_ptr, 1, runs, run, n, N)
    if SHORT:
        b, h, w = place(pixel, H, W)
        y += shortcut(short_ptr + shortcut_start(run, total, N, SIDE), b, h, w, n, live, H, W, N, SIDE)
    tl.store(out_ptr + here, relu(y).to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["runs", "batch"])
def pool_backward(
    pooled_ptr,
    x_ptr,
    below_ptr,
    s_ptr,
    out_ptr,
    partial_ptr,
    runs,
    batch,
    H: tl.constexpr,
    W: tl.constexpr,
    N: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Gradient [R, B, N] of the mean over places → gradient [R, B, H, W, N] below the last relu, with its sums."""
    total = batch * H * W
    tile, run, pixel, live = own_tile(total, PIXELS)
    pixel, live = pixel[:, None], live[:, None]
    n = tl.arange(0, N)[None, :]
    here = on_map(run, total, pixel, n, N)
    grad = tl.load(pooled_ptr + (run * batch + pixel // (H * W)) * N + n, mask=live, other=0.0) / (H * W)
    closed = tl.load(x_ptr + here, mask=live, other=0.0).to(tl.float32) <= 0
    grad = tl.where(closed, 0.0, grad)
    tl.store(out_ptr + here, grad.to(out_ptr.dtype.element_ty), mask=live)
    below = tl.load(below_ptr + here, mask=live, other=0.0).to(tl.float32)
    leave_gradient_sums(grad, below, s_ptr + (2 * runs + run) * N, partial_ptr, run, tile, N)


@triton.jit
def pack_weights(
    w_ptr, forward_ptr, backward_ptr, C: tl.constexpr, N: tl.constexpr, TAPS_F: tl.constexpr, TAPS_B: tl.constexpr,
    STRIDE: tl.constexpr,
):  # fmt: skip
    """fp32 weights [R·N, C, 3, 3] → [R, slots, C, N] for the forward pass, flipped [R, slots, N, C] for the backward.

    Slots are 9, or 12 where a row of taps is padded to four; the padding is written here, as zeros. With STRIDE 2
    the backward ones are [R, 4, N, 4, C]: what a pixel, its neighbour right, down and across give to each of the
    four pixels below the first, of which the even row and column see only the middle tap.
    """
    slot = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)[:, None]
    n = tl.arange(0, N)[None, :]
    dtype = forward_ptr.dtype.element_ty
    from_ = w_ptr + run * N * C * 9 + (n * C + c) * 9
    dy = slot // 4
    dx = slot % 4
    if STRIDE == 2:
        # To rows 2h and 2h + 1 go taps 1 and 2 from row h, none and 0 from row h + 1; columns alike.
        down, odd_row, right, odd_column = slot // 8, (slot // 2) % 2, (slot // 4) % 2, slot % 2
        there = (down <= odd_row) & (right <= odd_column)
        tap = (1 + odd_row - 2 * down) * 3 + 1 + odd_column - 2 * right
        weights = tl.load(from_ + tl.where(there, tap, 0))
        weights = tl.where(there, weights, 0.0).to(dtype)
        place_ = ((run * 4 + slot // 4) * N + n) * 4 + slot % 4
        tl.store(backward_ptr + place_ * C + c, weights)
    if (dx < 3) & (dy < 3):
        weights = tl.load(from_ + dy * 3 + dx).to(dtype)
        slot_f = slot if TAPS_F == 4 else dy * 3 + dx
        slot_b = (2 - dy) * TAPS_B + 2 - dx if TAPS_B == 4 else (2 - dy) * 3 + 2 - dx
        tl.store(forward_ptr + ((run * 3 * (4 if TAPS_F == 4 else 3) + slot_f) * C + c) * N + n, weights)
        if STRIDE == 1:
            tl.store(backward_ptr + ((run * 3 * (4 if TAPS_B == 4 else 3) + slot_b) * N + n) * C + c, weights)
    elif dy < 3:
        zeros = tl.zeros([C, N], dtype)
        if TAPS_F == 4:
            tl.store(forward_ptr + ((run * 12 + slot) * C + c) * N + n, zeros)
        if (TAPS_B == 4) & (STRIDE == 1):
            tl.store(backward_ptr + ((run * 12 + slot) * N + n) * C + c, zeros)


@triton.jit(do_not_specialize=["chunks"])
def add_chunks(
    partial_ptr,
    out_ptr,
    chunks,
    ROWS: tl.constexpr,
    PADDED: tl.constexpr,
    N: tl.constexpr,
    ORDER: tl.constexpr,
    GROUP: tl.constexpr,
    EACH: tl.constexpr,
):
    """Sum [R, chunks, PADDED, N] over chunks, always in one order → weight gradients [R, outputs, inputs, 3, 3].

    A program adds EACH of the gradients, GROUP chunks at a time: one run alone has hundreds of chunks. Rows come as
    (input, tap) with ORDER 0, as (tap, input) with 1, both with outputs as columns; with 2 as (tap, output) with
    inputs as columns, and a row's three taps from right to left.
    """
    CHANNELS: tl.constexpr = ROWS // 9
    run = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0) * EACH + tl.arange(0, EACH)
    there = element < ROWS * N
    group = tl.arange(0, GROUP)[:, None]
    partial_ptr += run * chunks * PADDED * N + element[None, :]
    sums = tl.zeros([GROUP, EACH], tl.float32)
    for first in range(0, chunks, GROUP):
        chunk = first + group
        sums += tl.load(partial_ptr + chunk * (PADDED * N), mask=(chunk < chunks) & there[None, :], other=0.0)
    k = element // N
    n = element % N
    out_ptr += run * N * ROWS
    tap = k // CHANNELS
    if ORDER == 0:
        to = n * ROWS + k
    elif ORDER == 1:
        to = n * ROWS + (k % CHANNELS) * 9 + tap
    else:
        to = ((k % CHANNELS) * N + n) * 9 + (tap // 3) * 3 + 2 - tap % 3
    tl.store(out_ptr + to, tl.sum(sums, 0), mask=there)
