"""All blocks of a stage in one kernel, for evaluation: an image is read and written once a stage, not once a convolution.

Assumes what `stage` assumes, and a `Stage` of a plan. Elsewhere, or where it is not enabled, each convolution is a
kernel of its own, with the same roundings to bf16 in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from aol.nets.fused import nvrtc, stage
from aol.nets.fused.stage import Cut, Shape
from aol.nets.fused.tiles import PROCESSORS, cdiv

enabled = False  # the one switch: on once `benchmarks/evaluation_kernels.py` has shown on a GPU that it pays
SOURCE = Path(__file__).with_name("blocks.cu")
APART = 4  # pieces between planes, as in stage.cu
WAVES = 32  # blocks one after the other on a multiprocessor, at least: the fewer, the longer some of them stand idle

# Images a block takes at once, its warps, and blocks a multiprocessor: for many maps, and for few.
CUTS: dict[int, tuple[Cut, Cut]] = {
    16: ((1, 8, 2), (1, 16, 1)),
    32: ((2, 8, 2), (1, 8, 2)),
    64: ((6, 12, 1), (2, 8, 2)),
}


def shape_for(channels: int, maps: int) -> Shape:
    """Choose how `maps` images (of all runs) of so many channels are cut.

    >>> shape_for(64, 1 << 20)
    Shape(channels=64, side=8, images=6, warps=12, resident=1)
    """
    return stage.shape_of(CUTS[channels], channels, maps)


def shared_bytes(shape: Shape, convolutions: int) -> int:
    """Shared memory of a block: two tiles, two slices of weights, and the tables of all norms.

    >>> [shared_bytes(shape_for(channels, 1 << 20), 9) for channels in (16, 32, 64)]
    [84864, 104192, 196096]
    """
    planes, pixels = shape.channels // 8, shape.images * (shape.side + 2) ** 2
    tile = planes * ((pixels + 7) // 8 * 8 + APART)
    slice_ = shape.weights // (shape.channels // 16)
    return 16 * (2 * tile + 2 * slice_) + 4 * 2 * shape.channels * convolutions


def chunks(shape: Shape, runs: int, batch: int) -> tuple[int, int]:
    """Cut a batch into many blocks, so that all multiprocessors end together: how many, and how many images each.

    >>> chunks(shape_for(16, 1 << 20), 64, 512), chunks(shape_for(64, 1 << 20), 64, 512)
    ((171, 3), (86, 6))
    """
    groups = cdiv(batch, shape.images)
    each = shape.images * max(1, groups * runs // (PROCESSORS * shape.resident * WAVES))
    return cdiv(batch, each), each


def fits(x: Tensor, convolutions: int) -> bool:
    """Whether the kernel can take a map x [R, B, S, S, C] through so many convolutions here."""
    runs, batch, _, _, channels = x.shape
    if not enabled or not stage.fits(x, channels):
        return False
    return shared_bytes(shape_for(channels, runs * batch), convolutions) <= _most_shared_bytes(x.device.index or 0)


@cache
def _most_shared_bytes(device: int) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def prepare() -> None:
    """Begin to compile all that a network of these stages may need, side by side."""
    if not enabled or not stage.usable():
        return
    for channels in stage.SIDES:
        for maps in (0, 1 << 30):
            stage.cubin(shape_for(channels, maps), _words(channels // 4 if channels > 16 else 0), (SOURCE,))


def _words(border: int) -> tuple[str, ...]:
    return "BLOCKS", f"BORDER={border}"


@cache
def _kernel(device: int, shape: Shape, border: int, convolutions: int) -> nvrtc.Kernel:
    made = stage.cubin(shape, _words(border), (SOURCE,)).result()
    shared = shared_bytes(shape, convolutions)
    return nvrtc.Kernel(made, "blocks", threads=32 * shape.warps, shared_bytes=shared)


def forward(x: Tensor, weights: Sequence[Tensor], tables: Sequence[Tensor], shortcut: Tensor | None = None) -> Tensor:
    """Take x [R, B, S, S, C] through the convolutions of a stage, two a block, with their norms, relus and shortcuts.

    `weights` are fp32 [R·C, C, 3, 3], `tables` those of the norms, [4, R·C]. With `shortcut`, the first convolution is
    the second of a block that halved the map `shortcut`, [R, B, 2·S, 2·S, C'].
    """
    runs, batch, _, _, channels = x.shape
    shape = shape_for(channels, runs * batch)
    packed = torch.empty((len(weights), runs, shape.weights, 8), dtype=torch.bfloat16, device=x.device)
    for number, weight in enumerate(weights):
        stage.pack(weight, runs, ahead=packed[number])
    out = torch.empty_like(x)
    count, each = chunks(shape, runs, batch)
    border = 0 if shortcut is None else (channels - shortcut.shape[4]) // 2
    kernel = _kernel(x.device.index or 0, shape, border, len(weights))
    kernel((count, runs), x, shortcut, packed, torch.stack(list(tables)), out, len(weights), runs, batch, each)
    return out
