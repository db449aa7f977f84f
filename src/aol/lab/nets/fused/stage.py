"""Whole images in shared memory: CUDA kernels for the convolutions of a stage, compiled at run time by NVRTC.

Assumes bf16 maps [R, B, S, S, C] of a size in `SIDES`. Elsewhere, or where NVRTC is missing, the Triton kernels work.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from aol.lab.nets.fused import nvrtc
from aol.lab.nets.fused.tiles import cdiv, processors, soonest

SOURCE = Path(__file__).with_name("stage.cu")
SIDES = {16: 32, 32: 16, 64: 8}  # channels → side of the maps that fit
SUMS = 9
_MOST_PACKED = 16  # convolutions that a kernel packs, as in stage.cu
_RING = 4  # pieces of a map that are under way to each of these threads, as in stage.cu
_START = 4  # what a block takes besides its images, in images
enabled = True  # benchmarks and tests turn these kernels off, to see what they are worth


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for: channels, side of the map, images a block takes at once, warps of a block.

    `resident`: blocks that a multiprocessor holds at once.
    """

    channels: int
    side: int
    images: int
    warps: int
    resident: int = 1

    @property
    def key(self) -> tuple[int, ...]:
        """The numbers that tell shapes apart."""
        return self.channels, self.side, self.images, self.warps, self.resident

    def words(self, more: tuple[str, ...]) -> list[str]:
        """Return the compiler's definitions.

        >>> Shape(16, 32, 1, 8).words(("PACK",))
        ['C=16', 'S=32', 'I=1', 'WARPS=8', 'RESIDENT=1', 'PACK']
        """
        named = zip(("C", "S", "I", "WARPS", "RESIDENT"), self.key, strict=True)
        return [*(f"{name}={value}" for name, value in named), *more]

    @property
    def weights(self) -> int:
        """How many pieces of 16 bytes the packed weights of a run are."""
        return SUMS * (self.channels // 16) ** 2 * 32

    @property
    def _tile(self) -> int:
        planes = self.channels // 8
        pixels = self.images * (self.side + 2) ** 2
        return planes * ((pixels + 7) // 8 * 8 + 8 // planes)

    @property
    def _units(self) -> int:
        return self.images * self.side**2 * self.channels // 8

    @property
    def forward_bytes(self) -> int:
        """Shared memory of a block in the forward pass."""
        return 16 * (self._tile + self.weights + self._units) + 4 * 2 * self.channels

    @property
    def backward_bytes(self) -> int:
        """Shared memory of a block in the backward pass; at its end it holds the sums [parts, 9, C, C]."""
        tiles, staged, parts = 2, self._units, 1
        if self.channels < 64:  # half of the warps make the tiles of the image to come, from pieces under way
            tiles, staged = 4, min(self._units, _RING * 32 * self.warps // 2)
            parts = self.warps // 2 // (self.channels // 16) ** 2
        work = 16 * (tiles * self._tile + self.weights + 3 * staged) + 4 * 6 * self.channels
        return max(work, 4 * parts * SUMS * self.channels**2)

    def chunks(self, runs: int, batch: int) -> tuple[int, int]:
        """Cut each run's batch so that all blocks end soonest: how many chunks, and how many images each.

        >>> Shape(16, 32, 1, 8, 3).chunks(64, 128), Shape(16, 32, 1, 8, 3).chunks(1, 128)
        ((6, 22), (128, 1))
        >>> Shape(16, 32, 1, 8).chunks(64, 128), Shape(16, 32, 1, 8).chunks(50, 128)  # 128 blocks; 250 in two rounds
        ((2, 64), (5, 26))
        """
        each = soonest(processors() * self.resident, runs, batch, step=self.images, start=_START)
        return cdiv(batch, each), each


# Images a block takes at once, its warps, and blocks a multiprocessor: for many maps, and for few.
Cut = tuple[int, int, int]
FORWARD: dict[int, tuple[Cut, Cut]] = {
    16: ((1, 4, 3), (1, 8, 2)),
    32: ((1, 4, 3), (1, 8, 2)),
    64: ((4, 8, 1), (2, 8, 1)),
}
BACKWARD: dict[int, tuple[Cut, Cut]] = {
    16: ((1, 16, 1), (1, 16, 1)),
    32: ((1, 16, 1), (1, 16, 1)),
    64: ((2, 8, 1), (2, 8, 1)),
}


def forward_shape(channels: int, maps: int) -> Shape:
    """Choose how `maps` images (of all runs) of so many channels are cut in the forward pass."""
    return shape_of(FORWARD[channels], channels, maps)


def backward_shape(channels: int, maps: int) -> Shape:
    """Choose how `maps` images (of all runs) of so many channels are cut in the backward pass."""
    return shape_of(BACKWARD[channels], channels, maps)


def shape_of(cuts: tuple[Cut, Cut], channels: int, maps: int) -> Shape:
    """Choose the cut for many maps, or for few: where that for many would leave multiprocessors idle."""
    (images, _, resident), _ = cuts
    return Shape(channels, SIDES[channels], *cuts[maps < images * resident * processors()])


def fits(x: Tensor, channels: int, stride: int = 1) -> bool:
    """Whether these kernels can convolve a map x [R, B, S, S, C] to so many channels."""
    side, own = x.shape[3], x.shape[4]
    alike = stride == 1 and own == channels and SIDES.get(own) == side == x.shape[2]
    return enabled and alike and x.dtype == torch.bfloat16 and x.is_cuda and usable()


@cache
def usable() -> bool:
    """Whether kernels can be compiled and launched here: an A100 has too little shared memory for the largest."""
    return nvrtc.available() and nvrtc.most_shared_bytes(torch.cuda.current_device()) >= most_bytes()


def most_bytes() -> int:
    """Return how much shared memory the largest of these kernels asks for."""
    shapes = (
        (forward_shape(channels, maps), backward_shape(channels, maps)) for channels in SIDES for maps in (0, 1 << 30)
    )
    return max(max(ahead.forward_bytes, back.backward_bytes) for ahead, back in shapes)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix="aol-nvrtc")


@cache
def cubin(shape: Shape, words: tuple[str, ...], more: tuple[Path, ...] = ()) -> Future[bytes]:
    """Begin to compile stage.cu, with more source behind it, for a shape; what was asked for before is shared."""
    major, minor = torch.cuda.get_device_capability()
    source = "\n".join(path.read_text(encoding="utf-8") for path in (SOURCE, *more))
    return _pool().submit(nvrtc.compile_cubin, source, shape.words(words), f"sm_{major}{minor}")


def prepare(*, training: bool) -> None:
    """Begin to compile all that a network of these stages may need, side by side."""
    if not enabled or not usable():
        return
    for channels in SIDES:
        for maps in (0, 1 << 30):
            ahead, back = forward_shape(channels, maps), backward_shape(channels, maps)
            cubin(ahead, ("PACK",))
            if training:
                for entry in (False, True):
                    cubin(ahead, _forward_words(entry, 0, 0))
                for inner in (False, True):
                    cubin(back, _backward_words(inner))
            else:
                for leave, border in ((1, 0), (2, 0), *(((2, channels // 4),) if channels > 16 else ())):
                    cubin(ahead, _forward_words(False, leave, border))


def _forward_words(entry: bool, leave: int, border: int) -> tuple[str, ...]:
    return "FORWARD", f"ENTRY={int(entry)}", f"EXIT={leave}", f"BORDER={border}"


def _backward_words(inner: bool) -> tuple[str, ...]:
    return "BACKWARD", f"INNER={int(inner)}"


@cache
def _kernel(device: int, shape: Shape, words: tuple[str, ...]) -> nvrtc.Kernel:
    name = words[0].lower()
    shared = {"forward": shape.forward_bytes, "backward": shape.backward_bytes, "pack": 0}[name]
    return nvrtc.Kernel(cubin(shape, words).result(), name, threads=32 * shape.warps, shared_bytes=shared)


def _on(x: Tensor, shape: Shape, words: tuple[str, ...]) -> nvrtc.Kernel:
    return _kernel(x.device.index or 0, shape, words)


def pack(weights: Sequence[Tensor], runs: int) -> tuple[Tensor, Tensor]:
    """fp32 weights [R·C, C, 3, 3] of convolutions → as lanes take them, for products with maps and with gradients.

    Both are [convolutions, R, pieces, 8].
    """
    like = weights[0]
    shape = forward_shape(like.shape[1], 0)
    ahead = torch.empty((len(weights), runs, shape.weights, 8), dtype=torch.bfloat16, device=like.device)
    back = torch.empty_like(ahead)
    for first in range(0, len(weights), _MOST_PACKED):
        some = tuple(weights[first : first + _MOST_PACKED])
        grid = cdiv(shape.weights, 32 * shape.warps), runs * len(some)
        filled = some + some[:1] * (_MOST_PACKED - len(some))  # the array is always as long
        _on(like, shape, ("PACK",))(grid, filled, ahead[first:], back[first:], runs)
    return ahead, back


@dataclass(frozen=True)
class Norm:
    """A norm in training: its parameters and running statistics [R·C]; `arrived`, zeros [R], counts blocks."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    eps: float
    arrived: Tensor


def forward(
    x: Tensor,
    weights: Tensor,
    *,
    entry: Tensor | None = None,
    norm: Norm | None = None,
    table: Tensor | None = None,
    shortcut: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Convolve x [R, B, S, S, C] as `launch.conv_forward` does, with weights packed here.

    With `norm` the output is raw, the running statistics are moved, and the table of the batch's statistics is
    returned, as by `launch.finish_forward`. With `table` it is behind the norm of this table.
    """
    assert (norm is None) != (table is None)
    runs, batch, _, _, channels = x.shape
    shape = forward_shape(channels, runs * batch)
    chunks, each = shape.chunks(runs, batch)
    out, partial, made = torch.empty_like(x), None, None
    finish: tuple[Tensor | None, ...] = (None,) * 6
    if norm is not None:
        partial = torch.empty((runs, chunks, 2, channels), dtype=torch.float32, device=x.device)
        made = torch.empty((4, runs * channels), dtype=torch.float32, device=x.device)
        finish = norm.weight, norm.bias, norm.running_mean, norm.running_var, made, norm.arrived
    border = 0 if shortcut is None else (channels - shortcut.shape[4]) // 2
    leave = 0 if table is None else 1 if shortcut is None else 2
    kernel = _on(x, shape, _forward_words(entry is not None, leave, border))
    momentum, eps = (float(norm.momentum), float(norm.eps)) if norm else (0.0, 0.0)
    kernel(
        (chunks, runs), x, entry, weights, out, partial, table, shortcut, finish, momentum, eps, runs, batch, each,
    )  # fmt: skip
    return out, made


# Gradients of a norm's weight and bias [R·C], and coefficients [3, R·C] of the gradient before it.
NormGradients: TypeAlias = tuple[Tensor, Tensor, Tensor]


def backward(
    grad: Tensor, y: Tensor, through: Tensor, weights: Tensor, x: Tensor, below: Tensor, table: Tensor,
    sums: Tensor, arrived: Tensor, *, shortcut: Tensor | None,
) -> tuple[Tensor, NormGradients]:  # fmt: skip
    """Both gradients of a convolution of x, or without `shortcut` of relu(norm(x)), as `launch_back.conv_backward`.

    Returns the gradient below the relu, and what `launch_back.finish_backward` makes of its sums. Leaves the `sums` of
    the gradient of the weights, as allocated by `weight_sums`; `arrived`, zeros [R], counts blocks.
    """
    runs, batch, _, _, channels = x.shape
    shape = backward_shape(channels, runs * batch)
    chunks, each = shape.chunks(runs, batch)
    out = torch.empty_like(x)
    partial = torch.empty((runs, chunks, 2, channels), dtype=torch.float32, device=x.device)
    norm = torch.empty_like(table[0]), torch.empty_like(table[0]), torch.empty_like(table[:3])
    kernel = _on(x, shape, _backward_words(shortcut is None))
    kernel(
        (chunks, runs), grad, y, through, weights, x, below, table, shortcut, out, partial, sums, (*norm, arrived),
        runs, batch, each,
    )  # fmt: skip
    return out, norm


def weight_sums(x: Tensor, convolutions: int) -> Tensor:
    """Allocate sums [convolutions, R, chunks, 9·C, C] of the gradients of weights, for convolutions of maps like x."""
    runs, batch, _, _, channels = x.shape
    chunks, _ = backward_shape(channels, runs * batch).chunks(runs, batch)
    shape = (convolutions, runs, chunks, SUMS * channels, channels)
    return torch.empty(shape, dtype=torch.float32, device=x.device)
