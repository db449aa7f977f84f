"""The backward pass: tensors in, kernels launched, tensors out; shapes, grids, tile sizes, one function a kernel.

Assumes what `launch` does. Sums of tiles and chunks are added in one order: the same inputs give the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aol.lab.nets.fused import conv_backward as kernels
from aol.lab.nets.fused import conv_rowwise, norm, stage, stem
from aol.lab.nets.fused import tiles as cuts
from aol.lab.nets.fused.launch import depth, image_strides
from aol.lab.nets.fused.tile_ops import NORM_RELU, RAW
from aol.lab.nets.fused.tiles import ORDERS, Partials, Tile, cdiv, options, soonest, taps, tile_for, walk

_START = 8  # what a sum over pixels takes besides its tiles, in tiles: it is written, read and added


class ChunkedSums:
    """The sums, by chunks, of the gradients of weights that `stage` leaves: those of a size are added at once.

    `convolutions`: how many there are, by channels.
    """

    def __init__(self, convolutions: dict[int, int]) -> None:
        self._left = dict(convolutions)
        self._sums: dict[int, Tensor] = {}
        self._arrived: dict[int, Tensor] = {}

    def next(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the next convolution of maps like y leaves its sums, and zeros [R] for its blocks to count."""
        channels = y.shape[4]
        if channels not in self._sums:
            number = self._left[channels]
            self._sums[channels] = stage.weight_sums(y, number)
            self._arrived[channels] = torch.zeros((number, y.shape[0]), dtype=torch.int32, device=y.device)
        self._left[channels] -= 1
        return self._sums[channels][self._left[channels]], self._arrived[channels][self._left[channels]]

    def gradients(self) -> dict[int, list[Tensor]]:
        """Return the gradients [R·C, C, 3, 3] of weights by channels C, in reverse order of `next`."""
        return {
            channels: list(_add_chunks(sums.flatten(0, 1), channels, "tapwise").chunk(len(sums)))
            for channels, sums in self._sums.items()
        }


def conv_backward(
    grad: Tensor,
    y: Tensor,
    through: Tensor,
    weights: Tensor,
    below: Tensor,
    table: Tensor,
    chunked: ChunkedSums,
    *,
    shortcut: Tensor | None = None,
    x: Tensor | None = None,
    made: Tensor | None = None,
) -> tuple[Tensor, stage.NormGradients, Tensor | None]:
    """Gradient of a convolution's output, behind its norm, → below the relu before it; of that norm; of its weights.

    The last is None where its sums are left in `chunked`.

    `through` are the norm's backward coefficients for (grad, y). `below` is what the norm before the relu saw
    and `table` that norm's. At the start of a block with a shortcut, x is the relu's output, kept, and `shortcut` the
    gradient that joins above the relu; elsewhere the relu's output is `made`, or made again from `below`.
    """
    if stage.fits(y, below.shape[4]) and y.shape == below.shape:
        start = below if x is None else x
        return *stage.backward(
            grad, y, through, weights, start, below, table, *chunked.next(y), shortcut=shortcut
        ), None  # fmt: skip
    dy = norm_backward(grad, y, through)
    read = made if x is None else x
    if dy.shape != below.shape:
        assert read is not None
        out, partials = halving_backward_input(dy, weights, below, table, shortcut=shortcut, x=x)
        return out, finish_backward(partials, table), halving_backward_weight(read, dy)
    out, partials = conv_backward_input(dy, weights, below, table, shortcut=shortcut, x=x)
    return out, finish_backward(partials, table), conv_backward_weight(read, dy, below, table)


def norm_backward(grad: Tensor, y: Tensor, through: Tensor) -> Tensor:
    """Gradient behind the norm of y → gradient dy of y itself."""
    runs, n = y.shape[0], y.shape[4]
    total = y[0].numel() // n
    tile = tile_for("norm_backward")
    out = torch.empty_like(y)
    kernels.norm_backward[(cdiv(total, tile.pixels), runs)](
        grad, y, through, out, runs, total, N=n, PIXELS=tile.pixels, **options(tile, y.dtype)
    )
    return out


def conv_backward_input(
    dy: Tensor, weights: Tensor, below: Tensor, table: Tensor, *, shortcut: Tensor | None, x: Tensor | None
) -> tuple[Tensor, Partials]:
    """Return the gradient below the relu and its sums, as `conv_backward`; stride 1, by rows or by tiles of pixels."""
    runs, batch, height, width, n = below.shape
    c = dy.shape[4]
    by_rows = walk("backward_rows", below, c)
    tile = by_rows or tile_for("backward_input", c)
    each = tile.pixels * height if by_rows else tile.pixels
    out = torch.empty_like(below)
    partials = Partials.empty(dy, runs, batch * height * width, n, each)
    kernel, cut = (conv_rowwise.conv_backward_rows, {}) if by_rows else (kernels.conv_backward_input, {"TAPS": taps(c)})
    kernel[(partials.values.shape[1], runs)](
        dy, weights, out, partials.values, shortcut if shortcut is not None else dy,
        x if x is not None else below, below, table, runs, batch, H=height, W=width, C=c, N=n,
        RESIDUAL=x is not None, PIXELS=tile.pixels, **cut, **options(tile, dy.dtype),
    )  # fmt: skip
    return out, partials


def conv_backward_weight(x: Tensor | None, dy: Tensor, below: Tensor, table: Tensor) -> Tensor:
    """Gradient of the weights [R·N, C, 3, 3] of a convolution of x, or of relu(norm(below)); stride 1."""
    runs, batch, height, width, n = below.shape
    c = dy.shape[4]
    tile = tile_for("backward_weight", c)
    thin = taps(c) == 4
    split = 1 if thin else 3
    chunks = _chunks(tile, runs, batch * height * width, split)
    partial = torch.empty((runs, chunks, 9 * c, n), dtype=torch.float32, device=dy.device)
    kernel = kernels.weight_thin if thin else kernels.weight_thick
    kernel[(split * chunks, runs)](
        below if x is None else x, table, dy, partial, runs, batch, chunks, H=height, W=width, C=c, N=n,
        ENTRY=(NORM_RELU if x is None else RAW).value, PIXELS=tile.pixels, **options(tile, dy.dtype),
    )  # fmt: skip
    return _add_chunks(partial, c, "turned")


def halving_backward_input(
    dy: Tensor, weights: Tensor, below: Tensor, table: Tensor, *, shortcut: Tensor | None, x: Tensor | None
) -> tuple[Tensor, Partials]:
    """Return the gradient below the relu and its sums, as `conv_backward`; stride 2, weights packed for that."""
    runs, batch, height, width, c = dy.shape
    n = below.shape[4]
    tile = tile_for("halving_input", c)
    out = torch.empty_like(below)
    tiles = cdiv(batch * height * width, tile.pixels)
    values = torch.empty((runs, 4 * tiles, 2, n), dtype=torch.float32, device=dy.device)
    kernels.halving_backward_input[(tiles, runs)](
        dy, weights, out, values, shortcut if shortcut is not None else dy, x if x is not None else below, below,
        table, runs, batch, H=height, W=width, C=c, N=n, RESIDUAL=x is not None, PIXELS=tile.pixels,
        **options(tile, dy.dtype),
    )  # fmt: skip
    return out, Partials(values, tile.pixels, 4 * batch * height * width)


def halving_backward_weight(x: Tensor, dy: Tensor) -> Tensor:
    """Gradient of the weights [R·N, C, 3, 3] of a convolution of x with stride 2."""
    runs, batch, height, width, c = x.shape
    n = dy.shape[4]
    tile = tile_for("halving_weight", c)
    chunks = _chunks(tile, runs, batch * dy.shape[2] * dy.shape[3])
    partial = torch.empty((runs, chunks, 9 * c, n), dtype=torch.float32, device=x.device)
    kernels.halving_backward_weight[(chunks, runs)](
        x, dy, partial, batch, chunks, H=height, W=width, C=c, N=n, PIXELS=tile.pixels, **options(tile, x.dtype)
    )
    return _add_chunks(partial, c, "tapwise")


def _add_chunks(sums: Tensor, channels: int, order: str) -> Tensor:
    """Add partial sums [R, chunks, rows, N] in order → weight gradients; `order` says what the rows are."""
    runs, chunks, padded, n = sums.shape
    outputs = channels if order == "turned" else n
    inputs = n if order == "turned" else channels
    out = torch.empty((runs * outputs, inputs, 3, 3), dtype=torch.float32, device=sums.device)
    group = cuts.power_over(min(chunks, 256))
    each = 4096 // group
    norm.add_chunks[(cdiv(9 * channels * n, each), runs)](
        sums, out, chunks, ROWS=9 * channels, PADDED=padded, N=n, ORDER=ORDERS[order], GROUP=group, EACH=each
    )
    return out


def _chunks(tile: Tile, runs: int, total: int, split: int = 1) -> int:
    """Cut a sum over pixels so that all programs, `split` a chunk, end soonest."""
    tiles = cdiv(total, tile.pixels)
    each = soonest(cuts.processors() * tile.resident, split * runs, tiles, step=1, start=_START)
    return cdiv(tiles, each)


def stem_backward_weight(images: Tensor, grad: Tensor, y: Tensor, through: Tensor) -> Tensor:
    """Images and gradient of the stem's output → gradient of its weights [R·N, C, 3, 3]."""
    runs, batch, height, width, n = grad.shape
    c = images.shape[-3]
    tile = tile_for("stem_backward_weight")
    chunks = _chunks(tile, runs, batch * height * width)
    k = depth(c)
    partial = torch.empty((runs, chunks, k, n), dtype=torch.float32, device=grad.device)
    stem.stem_backward_weight[(chunks, runs)](
        images, grad, y, through, partial, runs, batch, chunks, *image_strides(images), H=height, W=width,
        C=c, N=n, K=k, PIXELS=tile.pixels, **options(tile, grad.dtype),
    )  # fmt: skip
    return _add_chunks(partial, c, "plain")


def finish_backward(partials: Partials, table: Tensor) -> stage.NormGradients:
    """Turn the tiles' sums into gradients of the norm's weight and bias, and its backward coefficients [3, R·N]."""
    runs, tiles, _, n = partials.values.shape
    weight_grad, bias_grad = torch.empty_like(table[0]), torch.empty_like(table[0])
    through = torch.empty_like(table[:3])
    norm.finish_backward[(runs, n // cuts.PART)](
        partials.values, table, weight_grad, bias_grad, through, runs * n, tiles, partials.total, N=n,
        **cuts.finishing(tiles),
    )  # fmt: skip
    return weight_grad, bias_grad, through


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
