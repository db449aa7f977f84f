"""Batch norm, an optional shortcut and relu over maps with channels last: out = relu(norm(x) + shortcut).

Plain PyTorch passes over the map for the statistics, the norm, the sum and the relu, forward and backward; here these
are two passes each way. Assumes x [B, C, H, W] that lies as [B, H, W, C], C a multiple of 16: rows of C numbers.
"""
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import warnings

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from aol.lab.nets.fused.norm import finish_backward, finish_forward
from aol.lab.nets.fused.tile_ops import relu
from aol.lab.nets.fused.tiles import PART, cdiv, finishing

_PROGRAMS = 528  # chunks of rows, of all blocks of channels together: four a multiprocessor of an H100
_LAST = torch.channels_last


@triton.jit(do_not_specialize=["total", "tiles"])
def moments(x_ptr, partial_ptr, total, tiles, channels, chunk, N: tl.constexpr, ROWS: tl.constexpr):
    """Mean and sum of squared deviations of each channel over a chunk of rows, [blocks, tiles, 2, N].

    Values are taken relative to the chunk's first row, so that a mean far from zero costs no digits.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    n = tl.arange(0, N)[None, :]
    column = block * N + n
    start = tile * chunk
    stop = tl.minimum(start + chunk, total)
    first = tl.load(x_ptr + start.to(tl.int64) * channels + column).to(tl.float32)
    sums = tl.zeros([ROWS, N], tl.float32)
    squares = tl.zeros([ROWS, N], tl.float32)
    for at in range(start, stop, ROWS):
        row = at + tl.arange(0, ROWS)[:, None]
        live = row < stop
        x = tl.load(x_ptr + row.to(tl.int64) * channels + column, mask=live, other=0.0).to(tl.float32)
        away = tl.where(live, x - first, 0.0)
        sums += away
        squares += away * away
    count = (stop - start).to(tl.float32)
    away = tl.sum(sums, 0)[None, :] / count
    out = partial_ptr + (block * tiles + tile) * 2 * N + n
    tl.store(out, first + away)
    tl.store(out + N, tl.maximum(tl.sum(squares, 0)[None, :] - count * away * away, 0.0))


@triton.jit(do_not_specialize=["total"])
def leave(
    x_ptr, table_ptr, short_ptr, out_ptr, total, channels, SHORT: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr
):
    """relu(scale·x + shift + shortcut), a tile of rows and a block of channels a program."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    live, here = row < total, row * channels + column
    y = tl.load(x_ptr + here, mask=live, other=0.0).to(tl.float32)
    y = y * tl.load(table_ptr + column) + tl.load(table_ptr + channels + column)
    if SHORT:
        y += tl.load(short_ptr + here, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptr + here, relu(y).to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def masked(g_ptr, x, out_ptr, here, live, scale, shift, SHORT: tl.constexpr):
    """Load the gradient below the relu: zero where its output was zero, as x shows unless a shortcut was added."""
    g = tl.load(g_ptr + here, mask=live, other=0.0).to(tl.float32)
    shown = x * scale + shift
    if SHORT:
        shown = tl.load(out_ptr + here, mask=live, other=0.0).to(tl.float32)
    return tl.where(live & (shown <= 0.0), 0.0, g)


@triton.jit(do_not_specialize=["total", "tiles"])
def gradient_sums(
    g_ptr, x_ptr, out_ptr, table_ptr, partial_ptr, total, tiles, channels, chunk,
    SHORT: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Σ g and Σ g·(x − mean) of each channel over a chunk of rows, [blocks, tiles, 2, N]."""
    tile, block = tl.program_id(0), tl.program_id(1)
    n = tl.arange(0, N)[None, :]
    column = block * N + n
    scale, shift = tl.load(table_ptr + column), tl.load(table_ptr + channels + column)
    mean = tl.load(table_ptr + 2 * channels + column)
    start = tile * chunk
    stop = tl.minimum(start + chunk, total)
    sums = tl.zeros([ROWS, N], tl.float32)
    moment = tl.zeros([ROWS, N], tl.float32)
    for at in range(start, stop, ROWS):
        row = at + tl.arange(0, ROWS)[:, None]
        live = row < stop
        here = row.to(tl.int64) * channels + column
        x = tl.load(x_ptr + here, mask=live, other=0.0).to(tl.float32)
        g = masked(g_ptr, x, out_ptr, here, live, scale, shift, SHORT)
        sums += g
        moment += g * (x - mean)
    out = partial_ptr + (block * tiles + tile) * 2 * N + n
    tl.store(out, tl.sum(sums, 0)[None, :])
    tl.store(out + N, tl.sum(moment, 0)[None, :])


@triton.jit(do_not_specialize=["total"])
def gradients(
    g_ptr, x_ptr, out_ptr, table_ptr, back_ptr, dx_ptr, short_ptr, total, channels,
    SHORT: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Leave dx = α·g + β·x + δ below the relu, and the gradient of the shortcut, g itself."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    column = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    live, here = row < total, row * channels + column
    x = tl.load(x_ptr + here, mask=live, other=0.0).to(tl.float32)
    scale, shift = tl.load(table_ptr + column), tl.load(table_ptr + channels + column)
    g = masked(g_ptr, x, out_ptr, here, live, scale, shift, SHORT)
    if SHORT:
        tl.store(short_ptr + here, g.to(short_ptr.dtype.element_ty), mask=live)
    alpha, beta = tl.load(back_ptr + column), tl.load(back_ptr + channels + column)
    dx = alpha * g + beta * x + tl.load(back_ptr + 2 * channels + column)
    tl.store(dx_ptr + here, dx.to(dx_ptr.dtype.element_ty), mask=live)


class _Cut:
    """How a map is cut: blocks of N channels, chunks of rows for sums, tiles of ROWS rows for what stays."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.total = x.numel() // self.channels
        self.n = next(n for n in (64, 32, 16) if self.channels % n == 0)
        self.blocks = self.channels // self.n
        self.rows = 4096 // self.n
        wanted = cdiv(self.total, max(1, _PROGRAMS // self.blocks))
        self.chunk = max(self.rows, triton.next_power_of_2(wanted))  # few different ones, which are compiled
        self.tiles = cdiv(self.total, self.chunk)
        self.sums, self.maps = (self.tiles, self.blocks), (cdiv(self.total, self.rows), self.blocks)
        self.shape = {"N": self.n, "ROWS": self.rows}

    def partials(self, x: Tensor) -> Tensor:
        return torch.empty((self.blocks, self.tiles, 2, self.n), dtype=torch.float32, device=x.device)


class NormRelu(torch.autograd.Function):
    """relu(batch_norm(x) + shortcut); in training the running statistics [C] are moved in place."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, shortcut, training, momentum, eps):
        """Take x [B, C, H, W], weight and bias [C], shortcut as x or None → as x."""
        cut, short = _Cut(x), shortcut is not None
        table = torch.empty((4, cut.channels), dtype=torch.float32, device=x.device)
        partial = cut.partials(x) if training else table
        if training:
            moments[cut.sums](x, partial, cut.total, cut.tiles, cut.channels, cut.chunk, **cut.shape)
        finish_forward[(cut.blocks, cut.n // PART)](
            partial, weight, bias, running_mean, running_var, table, cut.channels, cut.tiles, cut.total, momentum, eps,
            N=cut.n, PIXELS=cut.chunk if training else 1, TRAINING=training, **finishing(cut.tiles if training else 1),
        )  # fmt: skip
        out = torch.empty_like(x)
        leave[cut.maps](x, table, shortcut if short else x, out, cut.total, cut.channels, SHORT=short, **cut.shape)
        ctx.save_for_backward(x, table, out if short else None)
        ctx.short = short
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        """Return the gradients of x, weight, bias and the shortcut."""
        x, table, out = ctx.saved_tensors
        cut, g = _Cut(x), g.contiguous(memory_format=_LAST)
        partial, seen = cut.partials(x), x if out is None else out
        gradient_sums[cut.sums](
            g, x, seen, table, partial, cut.total, cut.tiles, cut.channels, cut.chunk, SHORT=ctx.short, **cut.shape
        )
        weight_grad, bias_grad = (torch.empty(cut.channels, device=x.device) for _ in range(2))
        back = torch.empty((3, cut.channels), dtype=torch.float32, device=x.device)
        finish_backward[(cut.blocks, cut.n // PART)](
            partial, table, weight_grad, bias_grad, back, cut.channels, cut.tiles, cut.total,
            N=cut.n, **finishing(cut.tiles),
        )  # fmt: skip
        dx = torch.empty_like(x)
        short = torch.empty_like(x) if ctx.short else dx
        gradients[cut.maps](g, x, seen, table, back, dx, short, cut.total, cut.channels, SHORT=ctx.short, **cut.shape)
        return dx, weight_grad, bias_grad, None, None, short if ctx.short else None, None, None, None


def works(device: torch.device) -> bool:
    """Return whether the kernels run on this device: by a step of 16 channels."""
    x = torch.zeros((1, 16, 1, 1), dtype=torch.bfloat16, device=device, requires_grad=True)
    one = torch.ones(16, device=device)
    try:
        with torch.enable_grad():
            last = x.to(memory_format=_LAST)
            y = NormRelu.apply(last, one, one, one.clone(), one.clone(), last, True, 0.1, 1e-5)
            torch.autograd.grad(y.sum(), x)
    except (RuntimeError, OSError, ImportError, TritonError) as error:  # for example no compiler for the kernels
        warnings.warn(f"Using PyTorch instead of aol's kernels, which fail here: {error}", stacklevel=2)
        return False
    return True
