"""Gradients of 3×3 convolutions of R runs in Triton, from the gradient dy of their raw output.

dy is written once by `norm_backward`; products then read it as it lies, so that their loads run ahead. A norm's
formula inside them cost more instructions, and registers, than the pass it saved.
"""
# mypy: ignore-errors
# ruff: noqa: N803, N806

from __future__ import annotations

import triton
import triton.language as tl

from aol.lab.nets.fused.addresses import (
    chunk_and_row,
    chunk_sums,
    chunk_tiles,
    neighbour,
    on_map,
    own_tile,
    packed_weights,
    place,
    table_row,
    tile_pixels,
)
from aol.lab.nets.fused.conv import leave_gradient_sums
from aol.lab.nets.fused.tile_ops import NORM_BACK, RAW, convolved, product, read, vectors


@triton.jit(do_not_specialize=["runs", "total"])
def norm_backward(
    g_ptr, y_ptr, v_ptr, out_ptr, runs, total, N: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Gradient g [R, total, N] behind the norm of y → dy = v0·g + v1·y + v2 before it."""
    _, run, pixel, live = own_tile(total, PIXELS)
    here = pixel[:, None] * N + tl.arange(0, N)[None, :]
    live = live[:, None]
    move = run * total * N
    v0, v1, v2 = vectors(v_ptr + run * N, runs * N, tl.arange(0, N), NORM_BACK)
    dy = read(g_ptr + move, y_ptr + move, here, live, v0, v1, v2, NORM_BACK)
    tl.store(out_ptr + move + here, dy, mask=live)


@triton.jit(do_not_specialize=["runs", "batch"])
def conv_backward_input(
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
    TAPS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Gradient dy [R, B, H, W, C] of an output → gradient [R, B, H, W, N] below the relu before the convolution.

    `below` is what the norm before that relu saw, whose sums Σ g and Σ g·(below − mean) are left behind. With
    RESIDUAL the shortcut's gradient is added first and the relu's output x tells where it let through;
    without, scale·below + shift does. s: table of that norm, rows scale, shift, mean.
    """
    total = batch * H * W
    tile, run, pixel, live = own_tile(total, PIXELS)
    n = tl.arange(0, N)[None, :]
    g_ptr += run * total * C
    grad = convolved(
        g_ptr, g_ptr, s_ptr, runs * C, w_ptr + packed_weights(run, C, N, TAPS),
        pixel, live, H, W, H, W, C, N, 1, RAW, TAPS, PIXELS,
    )  # fmt: skip
    live = live[:, None]
    here = on_map(run, total, pixel[:, None], n, N)
    below = tl.load(below_ptr + here, mask=live, other=0.0).to(tl.float32)
    if RESIDUAL:
        grad += tl.load(short_ptr + here, mask=live, other=0.0).to(tl.float32)
        closed = tl.load(x_ptr + here, mask=live, other=0.0).to(tl.float32) <= 0
    else:
        closed = below * table_row(s_ptr, 0, runs, run, n, N) + table_row(s_ptr, 1, runs, run, n, N) <= 0
    grad = tl.where(closed | (live == 0), 0.0, grad)
    tl.store(out_ptr + here, grad.to(out_ptr.dtype.element_ty), mask=live)
    leave_gradient_sums(grad, below, s_ptr + (2 * runs + run) * N, partial_ptr, run, tile, N)


@triton.jit(do_not_specialize=["runs", "batch"])
def halving_backward_input(
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
    """As `conv_backward_input`, stride 2: dy and shortcut [R, B, H, W, C] → [R, B, 2·H, 2·W, N].

    A pixel of dy has four below it, whose gradients come from it and its neighbours right, down and across:
    a product [pixels, 4·C] with packed weights [4·C, 4·N]. Each of the four leaves its sums as a tile of its own.
    """
    SIDE: tl.constexpr = (C - N) // 2
    total = batch * H * W
    tile, run, pixel, live = own_tile(total, PIXELS)
    _, h, w = place(pixel, H, W)
    c = tl.arange(0, C)
    q = tl.arange(0, 4 * N)
    g_ptr += run * total * C
    w_ptr += run * 16 * C * N
    grad = tl.zeros([PIXELS, 4 * N], tl.float32)
    for tap in range(4):
        there = live & (h + tap // 2 < H) & (w + tap % 2 < W)
        source = (pixel + tap // 2 * W + tap % 2) * C
        a = tl.load(g_ptr + source[:, None] + c[None, :], mask=there[:, None], other=0.0)
        weights = tl.load(w_ptr + (tap * C + c)[:, None] * (4 * N) + q[None, :])
        grad = product(a, weights, grad)
    live = live[:, None]
    n = (q % N)[None, :]
    row = 2 * (pixel // W)[:, None] + (q // (2 * N))[None, :]
    here = run * total * 4 * N + (row * (2 * W) + 2 * w[:, None]) * N + (q % (2 * N))[None, :]
    below = tl.load(below_ptr + here, mask=live, other=0.0).to(tl.float32)
    if RESIDUAL:
        short_ptr += run * total * C + SIDE
        grad += 0.25 * tl.load(short_ptr + pixel[:, None] * C + n, mask=live, other=0.0).to(tl.float32)
        closed = tl.load(x_ptr + here, mask=live, other=0.0).to(tl.float32) <= 0
    else:
        closed = below * table_row(s_ptr, 0, runs, run, n, N) + table_row(s_ptr, 1, runs, run, n, N) <= 0
    grad = tl.where(closed | (live == 0), 0.0, grad)
    tl.store(out_ptr + here, grad.to(out_ptr.dtype.element_ty), mask=live)
    away = below - table_row(s_ptr, 2, runs, run, n, N)
    partial_ptr += (run * tl.num_programs(0) + tile) * 8 * N + (q // N) * (2 * N) + q % N
    tl.store(partial_ptr, tl.sum(grad, 0))
    tl.store(partial_ptr + N, tl.sum(grad * away, 0))


@triton.jit(do_not_specialize=["runs", "batch", "chunks"])
def weight_thin(
    x_ptr,
    s_ptr,
    g_ptr,
    out_ptr,
    runs,
    batch,
    chunks,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    ENTRY: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Gradient dy [R, B, H, W, C] and input x [R, B, H, W, N] through ENTRY, stride 1 → sums [R, chunks, 9, C, N].

    A program takes all taps over its chunk of the pixels: dy and its neighbours left and right [pixels, 4·C] (the
    fourth is padding), transposed, times the input above, beside and below. A row's taps come from right to left.
    """
    chunk = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    total = batch * H * W
    first, stop = chunk_tiles(chunk, chunks, total, PIXELS)
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, N)
    side = (k // C - 1)[None, :]
    s0, s1, s2 = vectors(s_ptr + run * N, runs * N, n, ENTRY)
    g_ptr += run * total * C
    x_ptr += run * total * N
    above = tl.zeros([4 * C, N], tl.float32)
    beside = tl.zeros([4 * C, N], tl.float32)
    under = tl.zeros([4 * C, N], tl.float32)
    for tile in range(first, stop):
        pixel, live = tile_pixels(tile, total, PIXELS)
        _, h, w = place(pixel, H, W)
        column = w[:, None] + side
        there = live[:, None] & (column >= 0) & (column < W) & (side < 2)
        g = tl.trans(tl.load(g_ptr + (pixel * C)[:, None] + (k - C)[None, :], mask=there, other=0.0))
        at = pixel[:, None] * N + n[None, :]
        a = read(x_ptr, x_ptr, at - W * N, (live & (h > 0))[:, None], s0, s1, s2, ENTRY)
        b = read(x_ptr, x_ptr, at, live[:, None], s0, s1, s2, ENTRY)
        u = read(x_ptr, x_ptr, at + W * N, (live & (h < H - 1))[:, None], s0, s1, s2, ENTRY)
        above = product(g, a, above)
        beside = product(g, b, beside)
        under = product(g, u, under)
    there = (k < 3 * C)[:, None]
    out_ptr += chunk_sums(run, chunk, chunks, 9 * C * N) + k[:, None] * N + n[None, :]
    tl.store(out_ptr, above, mask=there)
    tl.store(out_ptr + 3 * C * N, beside, mask=there)
    tl.store(out_ptr + 6 * C * N, under, mask=there)


@triton.jit(do_not_specialize=["runs", "batch", "chunks"])
def weight_thick(
    x_ptr,
    s_ptr,
    g_ptr,
    out_ptr,
    runs,
    batch,
    chunks,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    ENTRY: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """As `weight_thin` where all taps' sums are too many: a program takes one row of three."""
    chunk, dy = chunk_and_row()
    run = tl.program_id(1).to(tl.int64)
    total = batch * H * W
    first, stop = chunk_tiles(chunk, chunks, total, PIXELS)
    c = tl.arange(0, C)
    n = tl.arange(0, N)
    s0, s1, s2 = vectors(s_ptr + run * N, runs * N, n, ENTRY)
    g_ptr += run * total * C
    x_ptr += run * total * N
    left = tl.zeros([C, N], tl.float32)
    middle = tl.zeros([C, N], tl.float32)
    right = tl.zeros([C, N], tl.float32)
    for tile in range(first, stop):
        pixel, live = tile_pixels(tile, total, PIXELS)
        _, h, w = place(pixel, H, W)
        there = live & (h + dy >= 0) & (h + dy < H)
        a = read(x_ptr, x_ptr, (pixel + dy * W)[:, None] * N + n[None, :], there[:, None], s0, s1, s2, ENTRY)
        at = g_ptr + pixel[:, None] * C + c[None, :]
        before = tl.load(at - C, mask=(there & (w > 0))[:, None], other=0.0)
        here = tl.load(at, mask=there[:, None], other=0.0)
        after = tl.load(at + C, mask=(there & (w < W - 1))[:, None], other=0.0)
        left = product(tl.trans(before), a, left)
        middle = product(tl.trans(here), a, middle)
        right = product(tl.trans(after), a, right)
    out_ptr += chunk_sums(run, chunk, chunks, 9 * C * N) + (dy + 1) * 3 * C * N + c[:, None] * N + n[None, :]
    tl.store(out_ptr, left)
    tl.store(out_ptr + C * N, middle)
    tl.store(out_ptr + 2 * C * N, right)


@triton.jit(do_not_specialize=["batch", "chunks"])
def halving_backward_weight(
    x_ptr,
    g_ptr,
    out_ptr,
    batch,
    chunks,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Input x [R, B, H, W, C] and dy [R, B, H/2, W/2, N] → partial sums [R, chunks, 9, C, N], stride 2.

    A program takes all taps over its chunk of the pixels: dy is read, and a pixel found, once for three products
    of [4·C, pixels], a row of taps each (the fourth is padding), with [pixels, N].
    """
    OUT_H: tl.constexpr = H // 2
    OUT_W: tl.constexpr = W // 2
    chunk = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    total = batch * OUT_H * OUT_W
    first, stop = chunk_tiles(chunk, chunks, total, PIXELS)
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, N)
    dx = (k // C - 1)[None, :]
    x_ptr += run * batch * H * W * C
    g_ptr += run * total * N
    above = tl.zeros([4 * C, N], tl.float32)
    beside = tl.zeros([4 * C, N], tl.float32)
    under = tl.zeros([4 * C, N], tl.float32)
    for tile in range(first, stop):
        pixel, live = tile_pixels(tile, total, PIXELS)
        b, h, w = place(pixel[:, None], OUT_H, OUT_W)
        source, there = neighbour(b, h, w, 0, dx, H, W, 2)
        there = there & live[:, None] & (dx < 2)
        at = x_ptr + source * C + (k % C)[None, :]
        g = tl.load(g_ptr + pixel[:, None] * N + n[None, :], mask=live[:, None], other=0.0)
        above = product(tl.trans(tl.load(at - W * C, mask=there & (h > 0), other=0.0)), g, above)
        beside = product(tl.trans(tl.load(at, mask=there, other=0.0)), g, beside)
        under = product(tl.trans(tl.load(at + W * C, mask=there, other=0.0)), g, under)  # H is even: it exists
    there = (k < 3 * C)[:, None]
    out_ptr += chunk_sums(run, chunk, chunks, 9 * C * N) + k[:, None] * N + n[None, :]
    tl.store(out_ptr, above, mask=there)
    tl.store(out_ptr + 3 * C * N, beside, mask=there)
    tl.store(out_ptr + 6 * C * N, under, mask=there)
