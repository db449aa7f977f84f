"""Tile sizes of the kernels, by kernel and channels, and the partial sums that tiles write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from aol.lab.nets.fused.tile_ops import INTERPRETED


@dataclass
class Tile:
    """How a kernel is cut: pixels and warps a program, loads in flight, most registers a thread (0: any).

    `resident`: programs that fit on a multiprocessor at once, for sums over pixels cut into that many.
    """

    pixels: int = 128
    warps: int = 4
    stages: int = 3
    registers: int = 0
    resident: int = 6


# By kernel and channels of the product's depth; what is not listed takes the default. Tuned on an H200; tests make
# tiles small.
TILES: dict[tuple[str, int], Tile] = {
    ("forward_rows", 16): Tile(64, 4, 3),
    ("forward_rows", 32): Tile(64, 4, 3),
    ("forward", 32): Tile(64, 4, 3),
    ("backward_rows", 16): Tile(64, 4, 3),
    ("backward_rows", 32): Tile(64, 4, 3),
    ("backward_input", 64): Tile(64, 4, 3),
    ("backward_weight", 16): Tile(64, 4, 3, resident=5),
    ("backward_weight", 32): Tile(64, 4, 2, resident=3),
    ("backward_weight", 64): Tile(64, 4, 2, resident=3),
    ("halving_input", 32): Tile(64, 4, 3),
    ("halving_input", 64): Tile(64, 8, 3),
    ("halving_weight", 16): Tile(32, 4, 3, resident=5),
    ("halving_weight", 32): Tile(32, 8, 3, resident=2),
    ("norm_backward", 0): Tile(128, 4, 1),
    ("stem_backward_weight", 0): Tile(128, 4, 2, resident=4),
    ("stem_forward", 0): Tile(128, 4, 1),
    ("block_end", 0): Tile(128, 4, 1),
    ("pool_backward", 0): Tile(128, 4, 1),
}
FEWEST = 200  # programs below which walking whole images leaves multiprocessors idle
MADE_CHANNELS: tuple[int, ...] = (16, 32, 64)  # where relu(norm(y)) is written for the next convolution, and kept
ROW_CHANNELS = (16, 32)  # with more, three rows of weights and sums do not fit
ORDERS = {"plain": 0, "tapwise": 1, "turned": 2}
PART = 16  # channels of a finishing program: all layers have a multiple of these
FINISH = 16384  # the most sums of tiles a finishing program reads at once: one run alone has a thousand tiles


def processors() -> int:
    """Return how many multiprocessors the current CUDA device has; without one, those of an H200."""
    return _processors(torch.cuda.current_device()) if torch.cuda.is_available() else 132


@cache
def _processors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def cdiv(a: int, b: int) -> int:
    """Divide, rounding up: how many pieces of b it takes to cover a."""
    return -(-a // b)


@cache
def soonest(at_once: int, runs: int, parts: int, *, step: int, start: int) -> int:
    """Return how many of a run's parts a program takes, a multiple of `step`, so that rounds of programs end soonest.

    A program takes the time of its parts and of `start` more.

    >>> soonest(132, 64, 128, step=1, start=4), soonest(132, 50, 128, step=1, start=4)  # 128 at once; 250, two rounds
    (64, 26)
    """

    def time(each: int) -> int:
        return cdiv(runs * cdiv(parts, each), at_once) * (each + start)

    return min(range(cdiv(parts, step) * step, 0, -step), key=time)


def tile_for(kernel: str, channels: int = 0) -> Tile:
    """Look up the cut of a kernel."""
    return TILES.get((kernel, channels), Tile())


def options(tile: Tile, dtype: torch.dtype = torch.bfloat16) -> dict[str, int]:
    """Return the compiler options of a tile; fp32 maps leave no space for prefetching."""
    if dtype == torch.float32:
        return {"num_warps": tile.warps, "num_stages": 1}
    cap = {"maxnreg": tile.registers} if tile.registers and not INTERPRETED.value else {}
    return {"num_warps": tile.warps, "num_stages": tile.stages, **cap}


def taps(channels: int) -> int:
    """Taps a product: with few channels a row of three (padded to four) makes a product deep enough."""
    return 4 if channels in ROW_CHANNELS else 1


def walk(kernel: str, like: Tensor, channels: int) -> Tile | None:
    """Decide whether the kernel may walk down whole images of maps like `like`, and how many at once."""
    runs, batch, _, width, n = like.shape
    if n != channels or channels not in ROW_CHANNELS:
        return None
    tile = tile_for(kernel, channels)
    images = tile.pixels // width
    if tile.pixels % width or runs * cdiv(batch, max(images, 1)) < FEWEST:
        return None
    return tile


def power_over(number: int) -> int:
    """Round up to a power of two.

    >>> power_over(5), power_over(8)
    (8, 8)
    """
    return 1 << max(0, number - 1).bit_length()


def finishing(tiles: int) -> dict[str, int]:
    """Say how many tiles' sums, of how many channels, a finishing program reads at once, and by how many warps.

    >>> finishing(64), finishing(1024)
    ({'BLOCK': 64, 'PART': 16, 'num_warps': 4}, {'BLOCK': 1024, 'PART': 16, 'num_warps': 16})
    """
    block = min(power_over(tiles), FINISH // PART)
    return {"BLOCK": block, "PART": PART, "num_warps": min(16, max(4, block * PART // 512))}


def slots(channels: int) -> int:
    """Count the places of taps in packed weights, padding included."""
    return 12 if taps(channels) == 4 else 9


@dataclass(frozen=True)
class Partials:
    """Two sums of each channel from every tile, [R, tiles, 2, C], of `total` pixels a run."""

    values: Tensor
    pixels: int
    total: int

    @staticmethod
    def empty(like: Tensor, runs: int, total: int, channels: int, pixels: int) -> Partials:
        """Allocate the sums of all tiles; every one of them is written."""
        shape = (runs, cdiv(total, pixels), 2, channels)
        return Partials(torch.empty(shape, dtype=torch.float32, device=like.device), pixels, total)
