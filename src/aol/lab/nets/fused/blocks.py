"""A stage of the network in one kernel, for evaluation: maps stay in shared memory from one halving to the next.

Assumes what `stage` assumes, and a plan of 16, 32 and 64 channels on maps of 32, 16 and 8 pixels. Elsewhere, or where
it is not enabled, each convolution is a kernel of its own, with the same roundings to bf16 in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from aol.lab.nets.fused import launch, nvrtc, stage
from aol.lab.nets.fused.plan import Plan, Unit
from aol.lab.nets.fused.stage import Cut, Shape
from aol.lab.nets.fused.tiles import cdiv, processors

enabled = True  # benchmarks and tests turn this kernel off, to see what it is worth
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
    each = shape.images * max(1, groups * runs // (processors() * shape.resident * WAVES))
    return cdiv(batch, each), each


@dataclass(frozen=True)
class Way:
    """How a stage begins and ends, which a kernel is compiled for.

    `stem`: channels of the images it begins with; 0: it comes behind another stage. `halve`: another one follows.
    """

    stem: int
    halve: bool

    @property
    def words(self) -> tuple[str, ...]:
        """Definitions for the compiler."""
        return "BLOCKS", f"STEM={self.stem}", f"HALVE={int(self.halve)}"


def fits(plan: Plan, images: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel can take images through all stages of a plan here."""
    if not enabled or not stage.enabled or not images.is_cuda or not stage.usable():
        return False
    batch, _, *sides = images.shape[-4:]
    small = images.numel() > 0 and max(launch.image_strides(images)) < 2**31
    if images.dtype != torch.float32 or dtype != torch.bfloat16 or not small:
        return False
    most = nvrtc.most_shared_bytes(images.device.index or 0)
    return sides == [stage.SIDES.get(plan.stem.conv.out_channels)] * 2 and _can_follow(plan, plan.runs * batch, most)


def _can_follow(plan: Plan, maps: int, most_shared_bytes: int) -> bool:
    """Whether blocks have shortcuts, and stages have units, twice the channels of the last, a known size, and room."""
    channels = plan.stem.conv.out_channels
    if not plan.residual:
        return False
    for number, part in enumerate(plan.stages):
        if not part.units or part.lead.conv.out_channels != channels << number or channels << number not in CUTS:
            return False
        if shared_bytes(shape_for(channels << number, maps), len(part.units) + 3) > most_shared_bytes:
            return False
    return channels == min(CUTS)


def prepare() -> None:
    """Begin to compile what networks of three stages for images of three channels need, side by side."""
    if not enabled or not stage.usable():
        return
    for channels in CUTS:
        way = Way(3 if channels == min(CUTS) else 0, channels < max(CUTS))
        for maps in (0, 1 << 30):
            stage.cubin(shape_for(channels, maps), way.words, (SOURCE,))


@cache
def _kernel(device: int, shape: Shape, way: Way, steps: int) -> nvrtc.Kernel:
    made = stage.cubin(shape, way.words, (SOURCE,)).result()
    return nvrtc.Kernel(made, "blocks", threads=32 * shape.warps, shared_bytes=shared_bytes(shape, steps))


Convolution = tuple[Tensor, Tensor]  # weights [R·N, C, 3, 3] in fp32, and table [4, R·N] of the norm behind them


def features(plan: Plan, images: Tensor, convolution: Callable[[Unit], Convolution]) -> Tensor:
    """Take images through all stages → features [R, B, C]; `convolution` gives the weights and the table of a unit."""
    x, shortcut = images, None
    for part, after in zip(plan.stages, [*plan.stages[1:], None], strict=True):
        units = part.units if shortcut is not None else (part.lead, *part.units)
        behind = convolution(after.lead) if after else None
        x, shortcut = forward(x, [convolution(unit) for unit in units], shortcut, behind=behind, runs=plan.runs)
    return x.mean((2, 3), dtype=torch.float32)


def forward(
    x: Tensor, convolutions: Sequence[Convolution], shortcut: Tensor | None, *, behind: Convolution | None, runs: int
) -> tuple[Tensor, Tensor | None]:
    """Take a stage's input through its convolutions, two a block, with their norms, relus and shortcuts.

    Without `shortcut`, x are images [R, B, C', S, S], or [B, C', S, S] for all, and the stem comes first. Else it is
    what the second convolution of a block reads, [R, B, S, S, C], whose shortcut is given halved, [R, B, S, S, C/2].

    Returns [R, B, S, S, C]. With `behind`, the convolution of stride 2 that comes next: its output, normed and
    activated, [R, B, S/2, S/2, 2·C], and the halved map [R, B, S/2, S/2, C].
    """
    channels = convolutions[-1][0].shape[1]
    side, stem = stage.SIDES[channels], x.shape[-3] if shortcut is None else 0
    batch = x.shape[-4]
    shape = shape_for(channels, runs * batch)
    way = Way(stem, behind is not None)
    steps = [*convolutions, *(_halves(*behind, runs) if behind else ())]
    out = torch.empty((runs, batch, side, side, channels), dtype=torch.bfloat16, device=x.device)
    halved = None
    if behind:
        halved = out.new_empty((runs, batch, side // 2, side // 2, channels))
        out = out.new_empty((*halved.shape[:4], 2 * channels))
    count, each = chunks(shape, runs, batch)
    _kernel(x.device.index or 0, shape, way, len(steps))(
        (count, runs), x, shortcut, _packed(steps, runs), torch.stack([table for _, table in steps]), out, halved,
        len(convolutions), runs, batch, each, *(launch.image_strides(x) if stem else (0,) * 5),
    )  # fmt: skip
    return out, halved


def _packed(steps: Sequence[Convolution], runs: int) -> Tensor:
    """Weights of all steps as lanes take them; those of a stem are widened by channels of zeros."""
    channels = steps[-1][0].shape[1]
    lacking = [(weight, channels - weight.shape[1]) for weight, _ in steps]
    return stage.pack([F.pad(weight, (0, 0, 0, 0, 0, less)) if less else weight for weight, less in lacking], runs)[0]


def _halves(weight: Tensor, table: Tensor, runs: int) -> list[Convolution]:
    """Part a convolution by its output channels: weights [R·2·C, C, 3, 3] and table [4, R·2·C] → two of half the size.

    >>> parts = _halves(torch.arange(4.0).reshape(4, 1, 1, 1), torch.arange(16.0).reshape(4, 4), runs=2)
    >>> [weight.flatten().tolist() for weight, _ in parts], parts[1][1][0].tolist()
    ([[0.0, 2.0], [1.0, 3.0]], [1.0, 3.0])
    """
    each = weight.shape[0] // (2 * runs)
    weights = weight.reshape(runs, 2, each, *weight.shape[1:]).transpose(0, 1).contiguous()
    tables = table.reshape(4, runs, 2, each).movedim(2, 0).contiguous()
    return [(weights[half].flatten(0, 1), tables[half].flatten(1)) for half in range(2)]
