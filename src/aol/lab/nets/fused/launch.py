"""The forward pass: tensors in, kernels launched, tensors out; shapes, grids, tile sizes, one function a kernel.

Assumes maps [R, B, H, W, C], contiguous, and tables [rows, R·C] in fp32. Nothing here waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aol.lab.nets.fused import conv, conv_rowwise, norm, stem
from aol.lab.nets.fused import tiles as cuts
from aol.lab.nets.fused.tile_ops import NORM_RELU, RAW
from aol.lab.nets.fused.tiles import Partials, cdiv, options, slots, taps, tile_for, walk


def pack(weight: Tensor, runs: int, dtype: torch.dtype, stride: int = 1) -> tuple[Tensor, Tensor]:
    """fp32 weights [R·N, C, 3, 3] → those of the forward and of the backward product, in `dtype`."""
    n, c = weight.shape[0] // runs, weight.shape[1]
    ahead = torch.empty((runs, slots(c), c, n), dtype=dtype, device=weight.device)
    shape = (runs, slots(n), n, c) if stride == 1 else (runs, 4, n, 4 * c)
    back = torch.empty(shape, dtype=dtype, device=weight.device)
    norm.pack_weights[(12 if stride == 1 else 16, runs)](
        weight, ahead, back, C=c, N=n, TAPS_F=taps(c), TAPS_B=taps(n), STRIDE=stride
    )
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
    kernel, cut = (
        (conv_rowwise.conv_forward_rows, {}) if by_rows else (conv.conv_forward, {"STRIDE": stride, "TAPS": taps(c)})
    )
    kernel[(cdiv(total, each), runs)](
        x, entry if entry is not None else x, weights, out, partials.values if partials else out,
        table if table is not None else x, shortcut if shortcut is not None else x, runs, batch,
        H=height, W=width, C=c, N=n, ENTRY=(RAW if entry is None else NORM_RELU).value,
        EXIT=leave.value, SIDE=side, PIXELS=tile.pixels, **cut, **options(tile, x.dtype),
    )  # fmt: skip
    return out, partials


def activated(y: Tensor, table: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the next convolution's input and the norm to apply first: relu(norm(y)) and none, or y and its norm."""
    if y.shape[4] in cuts.MADE_CHANNELS:
        return block_end(y, table, None), None
    return y, table


def image_strides(images: Tensor) -> tuple[int, ...]:
    """Strides of [R, B, C, H, W]; images that all runs share lie zero apart."""
    return images.stride() if images.dim() == 5 else (0, *images.stride())


def depth(channels: int) -> int:
    """Length of a patch of 3×3 pixels, padded to what a product takes."""
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
        batch, *image_strides(images), H=height, W=width, C=c, N=n, K=depth(c),
        EXIT=(conv.STATISTICS if table is None else conv.ACTIVATE).value, PIXELS=tile.pixels,
        **options(tile, dtype),
    )  # fmt: skip
    return out, partials


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
    norm.finish_forward[(runs, rows // runs // cuts.PART)](
        partials.values if partials else weight, weight, bias, mean, var, table, rows,
        partials.values.shape[1] if partials else 0, partials.total if partials else 0, momentum, eps,
        N=rows // runs, PIXELS=partials.pixels if partials else 1, TRAINING=partials is not None,
        **cuts.finishing(partials.values.shape[1] if partials else 1),
    )  # fmt: skip
    return table


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
