"""The cases of benchmarks/kernels.py: inputs, the call, what it must give (in fp64), the bytes it must move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from aol.lab.nets.fused import launch, launch_back, tiles

Results = dict[str, Tensor]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU only with the interpreter, to check


@dataclass(frozen=True)
class Shape:
    """A convolution of R runs: input [R, B, size, size, c], output [R, B, size/stride, size/stride, n]."""

    runs: int
    batch: int
    size: int
    c: int
    n: int

    @property
    def stride(self) -> int:
        """Two where a stage begins, which is where the channels double."""
        return 1 if self.c == self.n else 2

    @property
    def below(self) -> tuple[int, ...]:
        """Shape of the input."""
        return self.runs, self.batch, self.size, self.size, self.c

    @property
    def above(self) -> tuple[int, ...]:
        """Shape of the output."""
        return self.runs, self.batch, self.size // self.stride, self.size // self.stride, self.n


@dataclass
class Case:
    """`call` launches the kernel on bf16 inputs; `reference` computes the same in fp64; `moved` counts the bytes."""

    call: Callable[[], Results]
    reference: Callable[[], Results]
    moved: int


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def table(runs: int, channels: int) -> Tensor:
    """Scale, shift, mean, 1/σ of a norm."""
    values = torch.randn(4, runs * channels, device=DEVICE)
    values[0] = values[0].abs() + 0.5
    return values


def channels_first(x: Tensor) -> Tensor:
    """[R, B, H, W, C] → [B, R·C, H, W]."""
    return x.permute(1, 0, 4, 2, 3).flatten(1, 2)


def runs_first(x: Tensor, runs: int) -> Tensor:
    return x.unflatten(1, (runs, -1)).permute(1, 0, 3, 4, 2).contiguous()


def per_channel(vector: Tensor, runs: int) -> Tensor:
    return vector.double().view(runs, 1, 1, 1, -1)


def normed(x: Tensor, of: Tensor, runs: int) -> Tensor:
    return x.double() * per_channel(of[0], runs) + per_channel(of[1], runs)


def weights(shape: Shape) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    plain = (torch.randn(shape.runs * shape.n, shape.c, 3, 3, device=DEVICE) / (9 * shape.c) ** 0.5).bfloat16().float()
    return plain, launch.pack(plain, shape.runs, torch.bfloat16, shape.stride)


def moments(partials: tiles.Partials, channels: int) -> Results:
    """Mean and 1/σ as the finishing kernel finds them."""
    rows = partials.values.shape[0] * channels
    one, zero = torch.ones(rows, device=DEVICE), torch.zeros(rows, device=DEVICE)
    found = launch.finish_forward(partials, one, zero, zero.clone(), one.clone(), 0.1, 1e-5)
    return {"mean": found[2], "deviation": found[3]}


def forward(shape: Shape, *, entry: bool) -> Case:
    """Make a convolution of the training pass; with `entry` the norm before it is taken on the way in."""
    x, before = noise(*shape.below), table(shape.runs, shape.c)
    plain, (packed, _) = weights(shape)

    def call() -> Results:
        read, through = launch.activated(x, before) if entry else (x, None)
        y, partials = launch.conv_forward(read, packed, shape.stride, entry=through)
        assert partials is not None
        return {"y": y} if shape.batch > 16 else {"y": y, **moments(partials, shape.n)}

    def reference() -> Results:
        a = normed(x, before, shape.runs).relu() if entry else x.double()
        y = F.conv2d(channels_first(a), plain.double(), None, shape.stride, 1, 1, shape.runs)
        var, mean = torch.var_mean(y, (0, 2, 3), correction=0)
        return {"y": runs_first(y, shape.runs), "mean": mean, "deviation": (var + 1e-5).rsqrt()}

    return Case(call, reference, 2 * (x.numel() + x.numel() * shape.n // shape.c // shape.stride**2))


def finished(shape: Shape, *, short: bool) -> Case:
    """Make a convolution of the evaluation pass: norm, relu and shortcut on the way out."""
    x, after = noise(*shape.below), table(shape.runs, shape.n)
    add = noise(*shape.above) if short else None
    plain, (packed, _) = weights(shape)

    def call() -> Results:
        return {"y": launch.conv_forward(x, packed, shape.stride, table=after, shortcut=add)[0]}

    def reference() -> Results:
        y = F.conv2d(channels_first(x.double()), plain.double(), None, shape.stride, 1, 1, shape.runs)
        y = normed(runs_first(y, shape.runs), after, shape.runs)
        return {"y": (y + add if add is not None else y).relu()}

    outputs = x.numel() * shape.n // shape.c // shape.stride**2
    return Case(call, reference, 2 * (x.numel() + (2 if short else 1) * outputs))


def backward(shape: Shape, *, residual: bool) -> Case:
    """Make both gradients of a convolution, with the norm behind it and the relu before it."""
    g, y = noise(*shape.above), noise(*shape.above)
    through, before = table(shape.runs, shape.n)[:3].contiguous(), table(shape.runs, shape.c)
    below = noise(*shape.below)
    plain, (_, packed) = weights(shape)
    x = noise(*shape.below).relu() if residual else None
    short = noise(*shape.above) if residual else None
    made = launch.block_end(below, before, None) if shape.c in tiles.MADE_CHANNELS and not residual else None

    def call() -> Results:
        out, partials, grad = launch_back.conv_backward(
            g, y, through, packed, below, before, shortcut=short, x=x, made=made
        )
        return {"input": out, "weight": grad, "sums": partials.values if shape.batch > 16 else partials.values.sum(1)}

    def reference() -> Results:
        runs = shape.runs
        dy = g.double() * per_channel(through[0], runs) + y.double() * per_channel(through[1], runs)
        dy = channels_first((dy + per_channel(through[2], runs)).bfloat16().double())
        a = x.double() if x is not None else normed(below, before, runs).relu()
        size = channels_first(a).shape
        grad = torch.nn.grad.conv2d_input(size, plain.double(), dy, shape.stride, 1, 1, runs)
        grad = runs_first(grad, runs)
        if short is not None:
            joined = short.double()
            if shape.stride == 2:
                side = (shape.n - shape.c) // 2
                joined = joined[..., side : side + shape.c].repeat_interleave(2, 2).repeat_interleave(2, 3) / 4
            grad = grad + joined
        grad = torch.where(a > 0, grad, 0.0)
        away = below.double() - per_channel(before[2], runs)
        sums = torch.stack([grad.sum((1, 2, 3)), (grad * away).sum((1, 2, 3))], 1)
        weight = torch.nn.grad.conv2d_weight(
            channels_first(a.bfloat16().double()), plain.shape, dy, shape.stride, 1, 1, runs
        )
        return {"input": grad, "weight": weight, "sums": sums}

    inputs, outputs = below.numel(), g.numel()
    return Case(call, reference, 2 * ((3 if residual else 2) * inputs + (3 if residual else 2) * outputs))


def backward_parts(shape: Shape, *, residual: bool) -> dict[str, Callable[[], object]]:
    """Make the three kernels of `backward` to be timed alone; the last with the adding of its chunks."""
    g, y, below = noise(*shape.above), noise(*shape.above), noise(*shape.below)
    through, before = table(shape.runs, shape.n)[:3].contiguous(), table(shape.runs, shape.c)
    _, packed = weights(shape)[1]
    x = noise(*shape.below).relu() if residual else None
    if shape.stride == 2:
        assert x is not None
        return {
            "dy": lambda: launch_back.norm_backward(g, y, through),
            "input": lambda: launch_back.halving_backward_input(g, packed, below, before, shortcut=y, x=x),
            "weight": lambda: launch_back.halving_backward_weight(x, g),
        }
    short = y if residual else None
    return {
        "dy": lambda: launch_back.norm_backward(g, y, through),
        "input": lambda: launch_back.conv_backward_input(g, packed, below, before, shortcut=short, x=x),
        "weight": lambda: launch_back.conv_backward_weight(x, g, below, before),
        "weight, input made": lambda: launch_back.conv_backward_weight(below, g, below, before),
    }


def all_parts(runs: int, batch: int, size: int) -> dict[str, Callable[[], dict[str, Callable[[], object]]]]:
    """List builders of the parts of every stage's backward pass, by the names of `all_cases` and `other_cases`."""
    found: dict[str, Callable[[], dict[str, Callable[[], object]]]] = {}
    for c in (16, 32, 64):
        shape = Shape(runs, batch, size * 16 // c, c, c)
        found[f"backward{c}.inner"] = partial(backward_parts, shape, residual=False)
        found[f"backward{c}.start"] = partial(backward_parts, shape, residual=True)
        if c < 64:
            half = Shape(runs, batch, size * 16 // c, c, 2 * c)
            found[f"halving{c}.backward"] = partial(backward_parts, half, residual=True)
    return found


def end(shape: Shape) -> Case:
    """Make a block's end: norm, shortcut, relu."""
    y, x, after = noise(*shape.above), noise(*shape.below), table(shape.runs, shape.n)

    def reference() -> Results:
        short = x.double()
        if shape.stride == 2:
            side = (shape.n - shape.c) // 2
            halves = short.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
            short = F.pad(halves, (side, side))
        return {"y": (normed(y, after, shape.runs) + short).relu()}

    return Case(lambda: {"y": launch.block_end(y, after, x)}, reference, 2 * (2 * y.numel() + x.numel()))


def stem(runs: int, batch: int, size: int = 32, n: int = 16) -> tuple[Case, Case]:
    """Make the first convolution, and the gradient of its weights."""
    x = noise(runs, batch, 3, size, size)
    plain = (torch.randn(runs * n, 3, 3, 3, device=DEVICE) / 5).bfloat16().float()
    g, y = noise(runs, batch, size, size, n), noise(runs, batch, size, size, n)
    through = table(runs, n)[:3].contiguous()
    stacked = x.double().transpose(0, 1).flatten(1, 2) if batch <= 16 else x

    def ahead() -> Results:
        return {"y": runs_first(F.conv2d(stacked, plain.double(), None, 1, 1, 1, runs), runs)}

    def back() -> Results:
        dy = g.double() * per_channel(through[0], runs) + y.double() * per_channel(through[1], runs)
        dy = channels_first((dy + per_channel(through[2], runs)).bfloat16().double())
        return {"weight": torch.nn.grad.conv2d_weight(stacked, plain.shape, dy, 1, 1, 1, runs)}

    return (
        Case(lambda: {"y": launch.stem_forward(x, plain, runs, torch.bfloat16)[0]}, ahead, 2 * (x.numel() + y.numel())),
        Case(
            lambda: {"weight": launch_back.stem_backward_weight(x, g, y, through)},
            back,
            2 * (x.numel() + 2 * y.numel()),
        ),
    )


def pool(shape: Shape) -> Case:
    """Make the gradient of the global mean, spread below the last relu."""
    grad = torch.randn(shape.runs, shape.batch, shape.n, device=DEVICE)
    x, below, before = noise(*shape.above), noise(*shape.above), table(shape.runs, shape.n)

    def call() -> Results:
        out, partials = launch_back.pool_backward(grad, x, below, before)
        return {"input": out, "sums": partials.values if shape.batch > 16 else partials.values.sum(1)}

    def reference() -> Results:
        spread = grad.double()[:, :, None, None] / (shape.size * shape.size)
        out = torch.where(x > 0, spread, 0.0)
        away = below.double() - per_channel(before[2], shape.runs)
        return {"input": out, "sums": torch.stack([out.sum((1, 2, 3)), (out * away).sum((1, 2, 3))], 1)}

    return Case(call, reference, 2 * 3 * x.numel())


def all_cases(runs: int, batch: int, size: int, channels: tuple[int, ...]) -> dict[str, Callable[[], Case]]:
    """List builders of the convolutions of every stage, by name: those within stages."""
    found: dict[str, Callable[[], Case]] = {}
    for c in channels:
        shape = Shape(runs, batch, size * 16 // c, c, c)
        found[f"forward{c}.raw"] = partial(forward, shape, entry=False)
        found[f"forward{c}.norm"] = partial(forward, shape, entry=True)
        found[f"finished{c}"] = partial(finished, shape, short=False)
        found[f"finished{c}.add"] = partial(finished, shape, short=True)
        found[f"backward{c}.inner"] = partial(backward, shape, residual=False)
        found[f"backward{c}.start"] = partial(backward, shape, residual=True)
    return found


def other_cases(runs: int, batch: int, size: int) -> dict[str, Callable[[], Case]]:
    """List builders of everything else: between stages, block ends, the stem, the pooling."""
    found: dict[str, Callable[[], Case]] = {}
    for c in (16, 32):
        shape = Shape(runs, batch, size * 16 // c, c, 2 * c)
        found[f"halving{c}.forward"] = partial(forward, shape, entry=False)
        found[f"halving{c}.backward"] = partial(backward, shape, residual=True)
        found[f"halving{c}.end"] = partial(end, shape)
    for c in (16, 32, 64):
        found[f"end{c}"] = partial(end, Shape(runs, batch, size * 16 // c, c, c))
    found["pool"] = partial(pool, Shape(runs, batch, size // 4, 64, 64))
    found["stem.forward"] = lambda: stem(runs, batch, size)[0]
    found["stem.backward"] = lambda: stem(runs, batch, size)[1]
    return found
