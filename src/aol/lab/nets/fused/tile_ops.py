"""What kernels compute on tiles: reading shifted pixels, norm and activation on the way in, sums on the way out.

Assumes maps [R, B, H, W, C] in memory order, one run a program, and pointers already moved to that run.
"""
# Triton has no types, and its kernels are traced, not run: neither checker can follow them.
# mypy: ignore-errors
# ruff: noqa: N803, N806

from __future__ import annotations

import os

import triton
import triton.language as tl

from aol.lab.nets.fused.addresses import neighbour, place

# The interpreter multiplies bf16 as if it were integers; there, and only there, products are taken in fp32.
INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

# What happens to a map on its way into a product.
RAW: tl.constexpr = tl.constexpr(0)  # nothing
NORM_RELU: tl.constexpr = tl.constexpr(1)  # relu(v0·x + v1): batch norm and activation
NORM_BACK: tl.constexpr = tl.constexpr(2)  # v0·g + v1·y + v2: the gradient g through the batch norm of y


@triton.jit
def relu(x):
    """max(x, 0), keeping NaN: a run that diverged must show it."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def product(a, b, acc):
    """Accumulate a·b in fp32; fp32 operands are multiplied as such, not as tf32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def read(x_ptr, y_ptr, offset, there, v0, v1, v2, ENTRY: tl.constexpr):
    """Read x at `offset`, through ENTRY, zero where nothing is there: padding comes after norm and activation."""
    x = tl.load(x_ptr + offset, mask=there, other=0.0)
    if ENTRY == NORM_RELU:
        x = tl.where(there, relu(x.to(tl.float32) * v0 + v1), 0.0).to(x_ptr.dtype.element_ty)
    if ENTRY == NORM_BACK:
        y = tl.load(y_ptr + offset, mask=there, other=0.0)
        value = x.to(tl.float32) * v0 + (y.to(tl.float32) * v1 + v2)
        x = tl.where(there, value, 0.0).to(x_ptr.dtype.element_ty)
    return x


@triton.jit
def vectors(v_ptr, v_row, channel, ENTRY: tl.constexpr):
    """Coefficients of ENTRY for these channels; rows of the table lie `v_row` apart."""
    v0 = 0.0
    v1 = 0.0
    v2 = 0.0
    if ENTRY != RAW:
        v0 = tl.load(v_ptr + channel)[None, :]
        v1 = tl.load(v_ptr + v_row + channel)[None, :]
    if ENTRY == NORM_BACK:
        v2 = tl.load(v_ptr + 2 * v_row + channel)[None, :]
    return v0, v1, v2


@triton.jit
def convolved(
    x_ptr,
    y_ptr,
    v_ptr,
    v_row,
    w_ptr,
    pixel,
    live,
    H: tl.constexpr,
    W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
    ENTRY: tl.constexpr,
    TAPS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Sum over nine taps of map [.., C] × weights [slots, C, N] at PIXELS output pixels, in fp32.

    TAPS = 4 takes a row's three taps in one product: neighbours lie side by side in memory, so the row of the
    operand is 3·C long, padded to a power of two by a fourth slot of zeros. TAPS = 1 takes them one by one.
    """
    K: tl.constexpr = TAPS * C
    GROUPS: tl.constexpr = 3 if TAPS == 4 else 9
    k = tl.arange(0, K)
    n = tl.arange(0, N)
    channel = k % C
    v0, v1, v2 = vectors(v_ptr, v_row, channel, ENTRY)
    b, h, w = place(pixel[:, None], OUT_H, OUT_W)
    acc = tl.zeros([PIXELS, N], tl.float32)
    for group in range(GROUPS):
        if TAPS == 4:
            dy = group - 1
            dx = (k // C)[None, :] - 1
            source, there = neighbour(b, h, w, dy, dx, H, W, STEP)
            there = there & live[:, None] & (dx < 2)
        else:
            source, there = neighbour(b, h, w, group // 3 - 1, group % 3 - 1, H, W, STEP)
            there = there & live[:, None]
        a = read(x_ptr, y_ptr, source * C + channel[None, :], there, v0, v1, v2, ENTRY)
        weights = tl.load(w_ptr + (group * K + k)[:, None] * N + n[None, :])
        acc = product(a, weights, acc)
    return acc
