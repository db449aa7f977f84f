"""Where things lie: the pixels of a program, maps, tables, sums of tiles and packed weights. One home for the formulas.

Maps are [R, B, H, W, N] in memory order, with `total` = B·H·W pixels a run. A program takes one tile of PIXELS pixels
of one run, or one chunk of its tiles. Runs are counted in int64: maps have more numbers than int32 has.
"""
# Triton has no types, and its kernels are traced, not run: neither checker can follow them.
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def own_tile(total, PIXELS: tl.constexpr):
    """Tile and run of this program, its pixels [PIXELS], and which of them exist."""
    tile = tl.program_id(0)
    pixel, live = tile_pixels(tile, total, PIXELS)
    return tile, tl.program_id(1).to(tl.int64), pixel, live


@triton.jit
def tile_pixels(tile, total, PIXELS: tl.constexpr):
    """Pixels [PIXELS] of a tile, and which of them exist."""
    pixel = tile * PIXELS + tl.arange(0, PIXELS)
    return pixel, pixel < total


@triton.jit
def chunk_tiles(chunk, chunks, total, PIXELS: tl.constexpr):
    """First tile of a chunk, and the first one after it."""
    tiles = tl.cdiv(total, PIXELS)
    each = tl.cdiv(tiles, chunks)
    return chunk * each, tl.minimum(tiles, (chunk + 1) * each)


@triton.jit
def chunk_and_row():
    """Chunk, and row of taps (-1, 0, 1), of a program that takes one row of three."""
    return tl.program_id(0) // 3, tl.program_id(0) % 3 - 1


@triton.jit
def place(pixel, H: tl.constexpr, W: tl.constexpr):
    """Image, row and column of a pixel counted through a run's batch."""
    b = pixel // (H * W)
    inside = pixel % (H * W)
    return b, inside // W, inside % W


@triton.jit
def neighbour(b, h, w, dy, dx, H: tl.constexpr, W: tl.constexpr, STEP: tl.constexpr):
    """Pixel (h·STEP + dy, w·STEP + dx) of a map H×W, and whether it exists; STEP is a convolution's stride."""
    row = h * STEP + dy
    column = w * STEP + dx
    there = (row >= 0) & (column >= 0) & (row < H) & (column < W)
    return (b * H + row) * W + column, there


@triton.jit
def top_pixels(first_image, batch, H: tl.constexpr, W: tl.constexpr, PIXELS: tl.constexpr):
    """Of PIXELS // W whole images: image, whether it exists, column and pixel in the run of row 0, all [PIXELS, 1]."""
    pixel = tl.arange(0, PIXELS)[:, None]
    image = first_image + pixel // W
    column = pixel % W
    return image, image < batch, column, image * H * W + column


@triton.jit
def on_map(run, total, pixel, n, N: tl.constexpr):
    """Channels n of pixels of a run in a map of N channels."""
    return run * total * N + pixel * N + n


@triton.jit
def shortcut_start(run, total, N: tl.constexpr, SIDE: tl.constexpr):
    """Start of a run in the map of the shortcut; with SIDE, it has four times the pixels and fewer channels."""
    return run * total * 4 * (N - 2 * SIDE) if SIDE > 0 else run * total * N


@triton.jit
def table_row(table_ptr, row, runs, run, n, N: tl.constexpr):
    """Read channels n of a run in one row of a table [rows, R, N]."""
    return tl.load(table_ptr + (row * runs + run) * N + n)


@triton.jit
def tile_sums(partial_ptr, run, tile, N: tl.constexpr):
    """Start of the two sums of each channel that this tile leaves, in [R, tiles, 2, N]."""
    return partial_ptr + (run * tl.num_programs(0) + tile) * 2 * N


@triton.jit
def packed_weights(run, C: tl.constexpr, N: tl.constexpr, TAPS: tl.constexpr):
    """Start of a run in packed weights [R, slots, C, N]: 9 slots, or 12 where a row of taps is padded to four."""
    return run * (9 if TAPS == 1 else 12) * C * N


@triton.jit
def chunk_sums(run, chunk, chunks, SIZE: tl.constexpr):
    """Start of the sums of a chunk in [R, chunks, SIZE]."""
    return (run * chunks + chunk) * SIZE
