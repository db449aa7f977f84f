"""All blocks of a stage in one kernel, for evaluation: an image is read and written once a stage, not once a convolution.

Assumes what `stage` assumes, and a `Stage` of a plan. Elsewhere, or where it is not enabled, each convolution is a
kernel of its own, with the same roundings to bf16 in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from aol.nets.fused import nvrtc, stage
from aol.nets.fused.plan import Stage, Unit
from aol.nets.fused.stage import Cut, Shape
from aol.nets.fused.tiles import PROCESSORS, cdiv

enabled = False  # the one switch: on once `benchmarks/evaluation_kernels.py` has shown on a GPU that it pays
halves = True  # whether the convolution that halves a map is done with the stage before it
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


def shared_bytes(shape: Shape, steps: int) -> int:
    """Shared memory of a block: two tiles, two slices of weights, and the tables of all norms.

    Steps are convolutions; one with twice as many channels counts twice.

    >>> [shared_bytes(shape_for(channels, 1 << 20), 9) for channels in (16, 32, 64)]
    [84864, 104192, 196096]
    """
    planes, pixels = shape.channels // 8, shape.images * (shape.side + 2) ** 2
    tile = planes * ((pixels + 7) // 8 * 8 + APART)
    slice_ = shape.weights // (shape.channels // 16)
    return 16 * (2 * tile + 2 * slice_) + 4 * 2 * shape.channels * steps


def chunks(shape: Shape, runs: int, batch: int) -> tuple[int, int]:
    """Cut a batch into many blocks, so that all multiprocessors end together: how many, and how many images each.

    >>> chunks(shape_for(16, 1 << 20), 64, 512), chunks(shape_for(64, 1 << 20), 64, 512)
    ((171, 3), (86, 6))
    """
    groups = cdiv(batch, shape.images)
    each = shape.images * max(1, groups * runs // (PROCESSORS * shape.resident * WAVES))
    return cdiv(batch, each), each


@dataclass(frozen=True)
class Way:
    """How a stage begins and ends, which a kernel is compiled for.

    `border`: channels on both sides that the shortcut into the stage lacks; 0: the stage begins with a whole block.
    `halved`: that shortcut has been halved already. `halve`: the convolution behind the stage is done with it.
    """

    border: int = 0
    halved: bool = False
    halve: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Definitions for the compiler."""
        return "BLOCKS", f"BORDER={self.border}", f"HALVED={int(self.halved)}", f"HALVE={int(self.halve)}"


def fits(x: Tensor, part: Stage) -> bool:
    """Whether the kernel can take a map x [R, B, S, S, C] through a stage here."""
    return enabled and stage.fits(x, x.shape[4]) and _has_room(x, x.shape[4], len(part.units))


def within_reach(x: Tensor, part: Stage, after: Stage | None) -> Unit | None:
    """Give the unit that halves the map behind a stage that fits, if the kernel can do it too and go on from there."""
    if not halves or after is None or after.lead is None:
        return None
    side, narrow, wide = x.shape[3], x.shape[4], after.lead.conv.out_channels
    alike = wide == 2 * narrow and stage.SIDES.get(wide) == side // 2
    room = alike and _has_room(x, narrow, len(part.units) + 2) and _has_room(x, wide, len(after.units) + 2)
    return after.lead if room else None


def _has_room(x: Tensor, channels: int, steps: int) -> bool:
    shape = shape_for(channels, x.shape[0] * x.shape[1])
    return shared_bytes(shape, steps) <= nvrtc.most_shared_bytes(x.device.index or 0)


def prepare() -> None:
    """Begin to compile all that a network of these stages may need, side by side."""
    if not enabled or not stage.usable():
        return
    for channels in stage.SIDES:
        first, last = channels == min(stage.SIDES), channels == max(stage.SIDES)
        way = Way(0 if first else channels // 4, halves and not first, halves and not last)
        for maps in (0, 1 << 30):
            stage.cubin(shape_for(channels, maps), way.words, (SOURCE,))


@cache
def _kernel(device: int, shape: Shape, way: Way, steps: int) -> nvrtc.Kernel:
    made = stage.cubin(shape, way.words, (SOURCE,)).result()
    return nvrtc.Kernel(made, "blocks", threads=32 * shape.warps, shared_bytes=shared_bytes(shape, steps))


def forward(
    x: Tensor,
    weights: Sequence[Tensor],
    tables: Sequence[Tensor],
    shortcut: Tensor | None = None,
    *,
    behind: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Take x [R, B, S, S, C] through the convolutions of a stage, two a block, with their norms, relus and shortcuts.

    `weights` are fp32 [R·C, C, 3, 3], `tables` those of the norms, [4, R·C]. With `shortcut`, the first convolution is
    the second of a block that halved the map `shortcut`, [R, B, 2·S, 2·S, C'], or which is that map halved. `behind`:
    weights [R·2·C, C, 3, 3] and table of the convolution that halves the map next; its outputs then are what returns,
    and the halved map, [R, B, S/2, S/2, C], the shortcut of its block.
    """
    runs, batch, side, _, channels = x.shape
    shape = shape_for(channels, runs * batch)
    if behind is not None:
        lower, upper = _halves(*behind, runs)
        weights, tables = [*weights, lower[0], upper[0]], [*tables, lower[1], upper[1]]
    packed = torch.empty((len(weights), runs, shape.weights, 8), dtype=torch.bfloat16, device=x.device)
    for number, weight in enumerate(weights):
        stage.pack(weight, runs, ahead=packed[number])
    out, halved = torch.empty_like(x), None
    if behind is not None:
        out, halved = _half(x, 2 * channels), _half(x, channels)
    way = Way(0, halve=behind is not None)
    if shortcut is not None:
        way = replace(way, border=(channels - shortcut.shape[4]) // 2, halved=shortcut.shape[2] == side)
    count, each = chunks(shape, runs, batch)
    _kernel(x.device.index or 0, shape, way, len(weights))(
        (count, runs), x, shortcut, packed, torch.stack(list(tables)), out, halved,
        len(weights) - 2 * way.halve, runs, batch, each,
    )  # fmt: skip
    return out, halved


def _half(x: Tensor, channels: int) -> Tensor:
    runs, batch, height, width, _ = x.shape
    return x.new_empty((runs, batch, height // 2, width // 2, channels))


def _halves(weight: Tensor, table: Tensor, runs: int) -> list[tuple[Tensor, Tensor]]:
    """Part a convolution by its output channels: weights [R·2·C, C, 3, 3] and table [4, R·2·C] → two of half the size.

    >>> parts = _halves(torch.arange(4.0).reshape(4, 1, 1, 1), torch.arange(16.0).reshape(4, 4), runs=2)
    >>> [weight.flatten().tolist() for weight, _ in parts], parts[1][1][0].tolist()
    ([[0.0, 2.0], [1.0, 3.0]], [1.0, 3.0])
    """
    each = weight.shape[0] // (2 * runs)
    weights = weight.reshape(runs, 2, each, *weight.shape[1:]).transpose(0, 1).contiguous()
    tables = table.reshape(4, runs, 2, each).movedim(2, 0).contiguous()
    return [(weights[half].flatten(0, 1), tables[half].flatten(1)) for half in range(2)]
