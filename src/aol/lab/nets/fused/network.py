"""The whole network as two passes of kernels: forward (training or not) and backward, by hand.

Assumes a `Plan`. Only raw outputs, block ends and tables of the norms are kept between convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aol.lab.nets.fused import blocks, launch, launch_back, stage, tiles
from aol.lab.nets.fused.plan import CHANNELS, Plan, Unit
from aol.lab.nets.fused.tiles import Partials


def _norm_of(unit: Unit) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    norm = unit.norm
    assert norm.weight is not None
    assert norm.bias is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.weight.detach(), norm.bias.detach(), norm.running_mean, norm.running_var


def evaluate(plan: Plan, images: Tensor, dtype: torch.dtype) -> Tensor:
    """Images → features [R, B, C] with running statistics: every norm, relu and shortcut inside a convolution.

    Where `blocks` is enabled, and can, all convolutions of a stage are one kernel.
    """

    def table(unit: Unit) -> Tensor:
        return launch.norm_table(*_norm_of(unit), unit.norm.eps, plan.runs)

    def convolved(x: Tensor, unit: Unit, shortcut: Tensor | None = None) -> Tensor:
        weight = unit.conv.weight.detach()
        if stage.fits(x, unit.conv.out_channels, unit.stride):
            return stage.forward(x, stage.pack([weight], plan.runs)[0][0], table=table(unit), shortcut=shortcut)[0]
        packed, _ = launch.pack(weight, plan.runs, dtype, unit.stride)
        return launch.conv_forward(x, packed, unit.stride, table=table(unit), shortcut=shortcut)[0]

    if blocks.fits(plan, images, dtype):
        return blocks.features(plan, images, lambda unit: (unit.conv.weight.detach(), table(unit)))
    stem = plan.stem
    x, _ = launch.stem_forward(images, stem.conv.weight.detach(), plan.runs, dtype, table=table(stem))
    for *inner, last in plan.blocks:
        y = x
        for unit in inner:
            y = convolved(y, unit)
        x = convolved(y, last, x if inner else None)
    return x.mean((2, 3), dtype=torch.float32)


@dataclass
class _Kept:
    """What the backward pass needs of a unit: its raw output, its norm's table, its packed weights, what follows.

    `read` is what the next convolution of a block read: y itself, or relu(norm(y)) where that is made.
    """

    y: Tensor
    table: Tensor
    back: Tensor
    read: Tensor


@dataclass
class _Tape:
    """What the backward pass needs of the network."""

    units: list[_Kept] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)  # output of the stem, then of every block
    made: tuple[int, ...] = tiles.MADE_CHANNELS  # channels of the units whose `read` is made


def _finished(unit: Unit, partials: Partials | None) -> Tensor:
    assert partials is not None
    assert unit.norm.momentum is not None
    return launch.finish_forward(partials, *_norm_of(unit), unit.norm.momentum, unit.norm.eps)


def _activated(y: Tensor, table: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what a block's second convolution reads, and through which norm."""
    return (y, table) if stage.fits(y, y.shape[4]) else launch.activated(y, table)


def record(plan: Plan, images: Tensor, dtype: torch.dtype) -> tuple[Tensor, _Tape]:
    """Images → features [R, B, C] with the batch's statistics, moving the running ones, and the tape."""
    tape = _Tape(made=tiles.MADE_CHANNELS)
    y, partials = launch.stem_forward(images, plan.stem.conv.weight.detach(), plan.runs, dtype)
    table = _finished(plan.stem, partials)
    tape.units.append(_Kept(y, table, y, y))
    x = launch.block_end(y, table, None)
    tape.ends.append(x)
    packed: dict[int, Iterator[tuple[Tensor, Tensor, Tensor]]] = {}  # by channels, of the units to come
    for block in plan.blocks:
        read: Tensor = x
        entry: Tensor | None = None
        for unit in block:
            weight, channels = unit.conv.weight.detach(), unit.conv.out_channels
            if stage.fits(read, channels, unit.stride):
                if channels not in packed:
                    weights = [alike.conv.weight.detach() for alike in plan.alike(channels)]
                    counters = torch.zeros((len(weights), plan.runs), dtype=torch.int32, device=weight.device)
                    packed[channels] = zip(*stage.pack(weights, plan.runs), counters, strict=True)
                ahead, back, arrived = next(packed[channels])
                assert unit.norm.momentum is not None
                norm = stage.Norm(*_norm_of(unit), unit.norm.momentum, unit.norm.eps, arrived)
                y, finished = stage.forward(read, ahead, entry=entry, norm=norm)
                assert finished is not None
                table = finished
            else:
                ahead, back = launch.pack(weight, plan.runs, dtype, unit.stride)
                y, partials = launch.conv_forward(read, ahead, unit.stride, entry=entry)
                table = _finished(unit, partials)
            read, entry = (y, None) if unit is block[-1] else _activated(y, table)
            tape.units.append(_Kept(y, table, back, read))
        x = launch.block_end(y, table, x if len(block) > 1 else None)
        tape.ends.append(x)
    counts = [count for unit in plan.units if (count := unit.norm.num_batches_tracked) is not None]
    torch._foreach_add_(counts, 1)
    return x.mean((2, 3), dtype=torch.float32), tape


def backward(plan: Plan, images: Tensor, tape: _Tape, grad: Tensor) -> list[Tensor]:
    """Gradient [R, B, C] of the features → gradients of `plan.parameters()`, in their order."""
    last = tape.units[-1]
    g, partials = launch_back.pool_backward(grad.contiguous(), tape.ends[-1], last.y, last.table)
    weight_grad, bias_grad, through = launch_back.finish_backward(partials, last.table)
    found: list[Tensor | None] = []  # from the last unit to the first, each unit's three in reverse
    chunked = launch_back.ChunkedSums({channels: len(plan.alike(channels)) for channels in CHANNELS})
    number = len(tape.units)
    for block, x in zip(reversed(plan.blocks), reversed(tape.ends[:-1]), strict=True):
        end = g
        for unit in reversed(block):
            number -= 1
            kept, under = tape.units[number], tape.units[number - 1]
            read: dict[str, Tensor | None]
            if unit is not block[0]:
                read = {"made": under.read if under.y.shape[4] in tape.made else None}
            else:
                read = {"x": x, "shortcut": end} if len(block) > 1 else {"made": x}
            found += [bias_grad, weight_grad]
            g, (weight_grad, bias_grad, through), conv_grad = launch_back.conv_backward(
                g, kept.y, through, kept.back, under.y, under.table, chunked, **read
            )
            found.append(conv_grad)
    found += [bias_grad, weight_grad, launch_back.stem_backward_weight(images, g, tape.units[0].y, through)]
    gradients = chunked.gradients()
    channels_of = (unit.conv.out_channels for unit in reversed(plan.units) for _ in range(3))
    added = [
        gradients[channels].pop() if gradient is None else gradient
        for gradient, channels in zip(found, channels_of, strict=True)
    ]
    return added[::-1]


class Features(torch.autograd.Function):
    """Images → features as one node of the graph; its inputs are the plan's parameters."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, dtype: torch.dtype, images: Tensor, *parameters: Tensor) -> Tensor:
        """Run the training pass and keep its tape."""
        features, tape = record(plan, images, dtype)
        ctx.plan, ctx.count, ctx.made = plan, len(tape.units), tape.made
        kept = [tensor for unit in tape.units for tensor in (unit.y, unit.table, unit.back, unit.read)]
        ctx.save_for_backward(images, *kept, *tape.ends)
        return features

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Run the backward kernels; images get no gradient."""
        images, *kept = ctx.saved_tensors
        units = [_Kept(*kept[4 * i : 4 * i + 4]) for i in range(ctx.count)]
        tape = _Tape(units, kept[4 * ctx.count :], ctx.made)
        return None, None, None, *backward(ctx.plan, images, tape, grads[0])
