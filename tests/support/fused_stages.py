"""Stages of R ResNets with random weights, through one kernel and through a kernel a convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aol.lab.nets.fused import blocks, launch, stage

BF16 = torch.bfloat16


def halved(x: Tensor) -> Tensor:
    """Means of 2 × 2 pixels of [R, B, 2·S, 2·S, C]."""
    side = x.shape[2] // 2
    return x.unflatten(2, (side, 2)).unflatten(4, (side, 2)).float().mean((3, 5)).to(BF16)


@dataclass
class StageCase:
    """What a stage reads: images, or the output of the convolution that halved its map, and the halved map."""

    x: Tensor
    shortcut: Tensor | None
    wide: Tensor | None  # the map before it was halved, which the kernels of single convolutions read
    convolutions: list[blocks.Convolution]
    behind: blocks.Convolution | None
    runs: int

    @staticmethod
    def random(channels: int, runs: int, batch: int, count: int = 0, device: str = "cuda") -> StageCase:
        """A stage of ResNet-32, or one of `count` convolutions, an odd number."""
        side, first = stage.SIDES[channels], channels == 16

        def maps(c: int, s: int) -> Tensor:
            return torch.randn((runs, batch, s, s, c), device=device).relu().to(BF16)

        def convolution(inputs: int, outputs: int) -> blocks.Convolution:
            weight = torch.randn((runs * outputs, inputs, 3, 3), device=device) / (3 * inputs**0.5)
            return weight, torch.rand((4, runs * outputs), device=device) + 0.2

        steps = [convolution(channels, channels) for _ in range(count or (11 if first else 9))]
        behind = convolution(channels, 2 * channels) if 2 * channels in stage.SIDES else None
        if first:
            steps[0] = convolution(3, channels)
            return StageCase(torch.randn((runs, batch, 3, side, side), device=device), None, None, steps, behind, runs)
        wide = maps(channels // 2, 2 * side)
        return StageCase(maps(channels, side), halved(wide), wide, steps, behind, runs)

    def together(self) -> tuple[Tensor, Tensor | None]:
        """All of it in one kernel."""
        return blocks.forward(self.x, self.convolutions, self.shortcut, behind=self.behind, runs=self.runs)

    def apart(self) -> tuple[Tensor, Tensor | None]:
        """A kernel a convolution, weights packed each time, as evaluation does without `blocks`; the map not halved."""
        (weight, table), *others = self.convolutions
        if self.wide is None:
            x, _ = launch.stem_forward(self.x, weight, self.runs, BF16, table=table)
        else:
            x = self._convolved(self.x, weight, table, self.wide)
        for one, two in zip(others[::2], others[1::2], strict=True):
            x = self._convolved(self._convolved(x, *one), *two, x)
        if self.behind is None:
            return x, None
        packed, _ = launch.pack(self.behind[0], self.runs, BF16, 2)
        return launch.conv_forward(x, packed, 2, table=self.behind[1])[0], x

    def _convolved(self, x: Tensor, weight: Tensor, table: Tensor, shortcut: Tensor | None = None) -> Tensor:
        return stage.forward(x, stage.pack([weight], self.runs)[0][0], table=table, shortcut=shortcut)[0]
