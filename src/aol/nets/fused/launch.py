"""Tensors in, kernels launched, tensors out: shapes, grids and tile sizes, one function a kernel.

Assumes maps [R, B, H, W, C], contiguous, and tables [rows, R·C] in fp32. Nothing here waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aol.nets.fused import conv, norm, rows, stem
from aol.nets.fused import tiles as cuts
from aol.nets.fused.pieces import NORM_BACK, NORM_RELU, RAW
from aol.nets.fused.tiles import ORDERS, Partials, cdiv, options, slots, taps, tile_for, walk


def pack(weight: Tensor, runs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """fp32 weights [R·N, C, 3, 3] → those of the forward and of the backward product, in `dtype`."""
    n, c = weight.shape[0] // runs, weight.shape[1]
    ahead = torch.empty((runs, slots(c), c, n), dtype=dtype, device=weight.device)
    back = torch.empty((runs, slots(n), n, c), dtype=dtype, device=weight.device)
    norm.pack_weights[(12, runs)](weight, ahead, back, C=c, N=n, TAPS_F=taps(c), TAPS_B=taps(n))
    return ahead, back


def conv_forward(
    x: Tensor,
    weights: Tensor,
    stride: int,
    *,
    entry: Tensor | None = None,
    table: Tensor | None = None,
    shortcut: Tensor | None = None,
) -> tuple[Tensor, Partials | None]:
    """Convolve x [R, B, H, W, C] → y [R, B, H', W', N]: raw with its moments, or finished where `table` says how.

    `entry` is the table of a norm (with relu) to take x through first; `shortcut` is what a block adds.
    """
    runs, batch, height, width, c = x.shape
    n = weights.shape[3]
    by_rows = walk("forward_rows", x, n) if stride == 1 else None
    tile = by_rows or tile_for("forward", c)
    out = torch.empty((runs, batch, height // stride, width // stride, n), dtype=x.dtype, device=x.device)
    total = batch * (height // stride) * (width // stride)
    each = tile.pixels * height if by_rows else tile.pixels
    partials = Partials.empty(x, runs, total, n, each) if table is None else None
    side = 0
    if shortcut is not None and shortcut.shape[4] != n:
        side = (n - shortcut.shape[4]) // 2
    leave = conv.STATISTICS if table is None else conv.ACTIVATE if shortcut is None else conv.ADD_ACTIVATE
    kernel, cut = (rows.conv_forward_rows, {}) if by_rows else (conv.conv_forward, {"STRIDE": stride, "TAPS": taps(c)})
    kernel[(cdiv(total, each), runs)](
        x, entry if entry is not None else x, weights, out, partials.values if partials else out,
        table if table is not None else x, shortcut if shortcut is not None else x, runs, batch,
        H=height, W=width, C=c, N=n, ENTRY=(RAW if entry is None else NORM_RELU).value,
        EXIT=leave.value, SIDE=side, PIXELS=tile.pixels, **cut, **options(tile, x.dtype),
    )  # fmt: skip
    return out, partials


def conv_backward(
    grad: Tensor,
    y: Tensor,
    through: Tensor,
    weights: Tensor,
    below: Tensor,
    table: Tensor,
    *,
    shortcut: Tensor | None = None,
    x: Tensor | None = None,
) -> tuple[Tensor, Partials, Tensor]:
    """Gradient of a convolution's output, before its norm, → that below the relu before it; sums; its weights'.

    `through` are the norm's backward coefficients for (grad, y). `below` is what the norm before the relu saw
    and `table` that norm's. At a block's start x is the relu's output, kept, and `shortcut` the gradient that
    joins above the relu; elsewhere the relu's output is made again from `below`.
    """
    tile = None
    if grad.shape == below.shape:
        tile = walk("backward_rows", below, grad.shape[4])
    if tile is None:
        weight_grad = conv_backward_weight(
            below if x is None else x, grad, y, through, entry=table if x is None else None
        )
        out, partials = conv_backward_input(grad, y, through, weights, below, table, shortcut=shortcut, x=x)
        return out, partials, weight_grad
    fused = grad.shape[4] in cuts.FUSED_CHANNELS
    runs, batch, height, width, n = below.shape
    out = torch.empty_like(below)
    partials = Partials.empty(grad, runs, batch * height * width, n, tile.pixels * height)
    tiles = partials.values.shape[1]
    sums = torch.empty((runs, tiles if fused else 1, 9 * n, n), dtype=torch.float32, device=grad.device)
    rows.conv_backward_rows[(tiles, runs)](
        grad, y, through, weights, out, partials.values, shortcut if shortcut is not None else grad,
        x if x is not None else below, below, table, sums, runs, batch, H=height, W=width, C=n, N=n,
        ENTRY=NORM_BACK.value, RESIDUAL=x is not None, WEIGHTS=fused, PIXELS=tile.pixels, **options(tile, grad.dtype),
    )  # fmt: skip
    if fused:
        return out, partials, _add_chunks(sums, n, "turned")
    weight_grad = conv_backward_weight(below if x is None else x, grad, y, through, entry=table if x is None else None)
    return out, partials, weight_grad


def conv_backward_input(
    grad: Tensor,
    y: Tensor,
    through: Tensor,
    weights: Tensor,
    below: Tensor,
    table: Tensor,
    *,
    shortcut: Tensor | None = None,
    x: Tensor | None = None,
) -> tuple[Tensor, Partials]:
    """Give the gradient of the input alone, as `conv_backward`, with any stride."""
    runs, batch, height, width, n = below.shape
    c = grad.shape[4]
    tile = tile_for("backward_input", c)
    out = torch.empty_like(below)
    total = batch * height * width
    partials = Partials.empty(grad, runs, total, n, tile.pixels)
    conv.conv_backward_input[(cdiv(total, tile.pixels), runs)](
        grad, y, through, weights, out, partials.values, shortcut if shortcut is not None else grad,
        x if x is not None else below, below, table, runs, batch, H=height, W=width, C=c, N=n,
        STRIDE=height // grad.shape[2], ENTRY=NORM_BACK.value, RESIDUAL=shortcut is not None,
        SIDE=(c - n) // 2, TAPS=taps(c), PIXELS=tile.pixels, **options(tile, grad.dtype),
    )  # fmt: skip
    return out, partials


def _add_chunks(sums: Tensor, channels: int, order: str) -> Tensor:
    """Add partial sums [R, chunks, rows, N] in order → weight gradients; `order` says what the rows are."""
    runs, chunks, padded, n = sums.shape
    rows_ = 9 * channels
    outputs = channels if order == "turned" else n
    inputs = n if order == "turned" else channels
    out = torch.empty((runs * outputs, inputs, 3, 3), dtype=torch.float32, device=sums.device)
    block = padded if order == "plain" else channels
    norm.add_chunks[(1 if order == "plain" else 9, runs)](
        sums, out, chunks, ROWS=rows_, PADDED=padded, N=n, ORDER=ORDERS[order], BLOCK=block
    )
    return out


def _chunks(runs: int, tiles: int, split: int) -> int:
    return max(1, min(tiles, cdiv(cuts.PROGRAMS, split * runs)))


def conv_backward_weight(x: Tensor, grad: Tensor, y: Tensor, through: Tensor, *, entry: Tensor | None = None) -> Tensor:
    """Input x (through `entry` if given) and gradient of the output → gradient of the weights [R·N, C, 3, 3]."""
    runs, batch, height, width, c = x.shape
    n = grad.shape[4]
    tile = tile_for("backward_weight", c)
    tiles = cdiv(batch * grad.shape[2] * grad.shape[3], tile.pixels)
    chunks = _chunks(runs, tiles, 3)
    partial = torch.empty((runs, chunks, 9 * c, n), dtype=torch.float32, device=x.device)
    conv.conv_backward_weight[(3 * chunks, runs)](
        x, entry if entry is not None else x, grad, y, through, partial, runs, batch, chunks, H=height, W=width,
        C=c, N=n, STRIDE=height // grad.shape[2], ENTRY=(RAW if entry is None else NORM_RELU).value,
        EXIT=NORM_BACK.value, PIXELS=tile.pixels, **options(tile, x.dtype),
    )  # fmt: skip
    return _add_chunks(partial, c, "tapwise")


def _image_strides(images: Tensor) -> tuple[int, ...]:
    return images.stride() if images.dim() == 5 else (0, *images.stride())


def _depth(channels: int) -> int:
    return max(16, 1 << (9 * channels - 1).bit_length())


def stem_forward(
    images: Tensor, weight: Tensor, runs: int, dtype: torch.dtype, *, table: Tensor | None = None
) -> tuple[Tensor, Partials | None]:
    """Images [R, B, C, H, W] or shared [B, C, H, W] → y [R, B, H, W, N], raw with moments or finished."""
    batch, c, height, width = images.shape[-4:]
    n = weight.shape[0] // runs
    tile = tile_for("stem_forward")
    out = torch.empty((runs, batch, height, width, n), dtype=dtype, device=images.device)
    total = batch * height * width
    partials = Partials.empty(images, runs, total, n, tile.pixels) if table is None else None
    stem.stem_forward[(cdiv(total, tile.pixels), runs)](
        images, weight, out, partials.values if partials else out, table if table is not None else weight, runs,
        batch, *_image_strides(images), H=height, W=width, C=c, N=n, K=_depth(c),
        EXIT=(conv.STATISTICS if table is None else conv.ACTIVATE).value, PIXELS=tile.pixels,
        **options(tile, dtype),
    )  # fmt: skip
    return out, partials


def stem_backward_weight(images: Tensor, grad: Tensor, y: Tensor, through: Tensor) -> Tensor:
    """Images and gradient of the stem's output → gradient of its weights [R·N, C, 3, 3]."""
    runs, batch, height, width, n = grad.shape
    c = images.shape[-3]
    tile = tile_for("stem_backward_weight")
    chunks = _chunks(runs, cdiv(batch * height * width, tile.pixels), 1)
    depth = _depth(c)
    partial = torch.empty((runs, chunks, depth, n), dtype=torch.float32, device=grad.device)
    stem.stem_backward_weight[(chunks, runs)](
        images, grad, y, through, partial, runs, batch, chunks, *_image_strides(images), H=height, W=width,
        C=c, N=n, K=depth, PIXELS=tile.pixels, **options(tile, grad.dtype),
    )  # fmt: skip
    return _add_chunks(partial, c, "plain")


def norm_table(weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, runs: int) -> Tensor:
    """Scale, shift, mean and 1/σ [4, R·N] of a norm that uses its running statistics."""
    return _finish(None, weight, bias, mean, var, 0.0, eps, runs)


def finish_forward(
    partials: Partials, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> Tensor:
    """Scale, shift, mean and 1/σ [4, R·N] of the batch; the running mean and variance are moved in place."""
    return _finish(partials, weight, bias, mean, var, momentum, eps, partials.values.shape[0])


def _finish(
    partials: Partials | None, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float,
    runs: int,
) -> Tensor:  # fmt: skip
    rows = weight.shape[0]
    table = torch.empty((4, rows), dtype=torch.float32, device=weight.device)
    norm.finish_forward[(runs,)](
        partials.values if partials else weight, weight, bias, mean, var, table, rows,
        partials.values.shape[1] if partials else 0, partials.total if partials else 0, momentum, eps,
        N=rows // runs, PIXELS=partials.pixels if partials else 1, TRAINING=partials is not None, BLOCK=cuts.FINISH,
    )  # fmt: skip
    return table


def finish_backward(partials: Partials, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the tiles' sums into gradients of the norm's weight and bias, and its backward coefficients [3, R·N]."""
    runs, tiles, _, n = partials.values.shape
    weight_grad, bias_grad = torch.empty_like(table[0]), torch.empty_like(table[0])
    through = torch.empty_like(table[:3])
    norm.finish_backward[(runs,)](
        partials.values, table, weight_grad, bias_grad, through, runs * n, tiles, partials.total, N=n, BLOCK=cuts.FINISH
    )
    return weight_grad, bias_grad, through


def block_end(y: Tensor, table: Tensor, shortcut: Tensor | None) -> Tensor:
    """relu(norm(y) + shortcut), where the shortcut may be a map twice as large with fewer channels."""
    runs, batch, height, width, n = y.shape
    tile = tile_for("block_end")
    out = torch.empty_like(y)
    side = (n - shortcut.shape[4]) // 2 if shortcut is not None else 0
    norm.block_end[(cdiv(batch * height * width, tile.pixels), runs)](
        y, table, shortcut if shortcut is not None else y, out, runs, batch, H=height, W=width, N=n,
        SHORT=shortcut is not None, SIDE=side, PIXELS=tile.pixels, **options(tile, y.dtype),
    )  # fmt: skip
    return out


def pool_backward(pooled: Tensor, x: Tensor, below: Tensor, table: Tensor) -> tuple[Tensor, Partials]:
    """Gradient [R, B, N] of the global mean of x → gradient below the relu that made x."""
    runs, batch, height, width, n = x.shape
    tile = tile_for("pool_backward")
    out = torch.empty_like(x)
    total = batch * height * width
    partials = Partials.empty(x, runs, total, n, tile.pixels)
    norm.pool_backward[(cdiv(total, tile.pixels), runs)](
        pooled, x, below, table, out, partials.values, runs, batch, H=height, W=width, N=n, PIXELS=tile.pixels,
        **options(tile, x.dtype),
    )  # fmt: skip
    return out, partials
