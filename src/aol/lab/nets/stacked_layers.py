"""The layers of R networks side by side: one class for each layer that has weights, and the table of them.

Assumes maps [B, R·C, H, W], run-major in their channels, and R layers alike but for their values. Every
parameter and buffer is the R plain ones joined along their first axis, run-major.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol.lab.nets.layers import HalvingShortcut, Head, split_runs


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Join R tensors [d, …] into one [R·d, …], run-major, and R scalars into [R]; always a copy."""
    return torch.cat([t.detach().reshape(t.shape or (1,)) for t in tensors])


def _parameter(layers: Sequence[nn.Module], name: str) -> Any:
    """Join a parameter of R layers; None if they have none of this name."""
    values = [value for layer in layers if (value := getattr(layer, name)) is not None]
    return nn.Parameter(_joined(values), requires_grad=values[0].requires_grad) if values else None


def _not_finite(x: Tensor, runs: int) -> Tensor:
    """Which runs of a map [B, R·C, H, W] hold a value that is not finite, [R]; their sums show it."""
    sums = split_runs(x.detach(), runs, axis=1).sum((0, *range(2, x.dim() + 1)), dtype=torch.float32)
    return ~sums.isfinite()


def _replaced(x: Tensor, diverged: Tensor, axis: int, value: float) -> Tensor:
    """Replace the values of runs that are not finite by `value`; runs are side by side along `axis`."""
    channels = diverged.repeat_interleave(x.shape[axis] // diverged.numel())
    return torch.where(channels.view([-1 if a == axis else 1 for a in range(x.dim())]), value, x)


class _ContainGradient(torch.autograd.Function):
    """Identity; in the backward pass, gradients of runs that are not finite become zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, runs: int) -> Tensor:
        ctx.runs = runs
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _replaced(grads[0], _not_finite(grads[0], ctx.runs), 1, 0.0), None


class StackedConv2d(nn.Module):
    """R convolutions as one grouped convolution: [B, R·C_in, H, W] → [B, R·C_out, H', W'].

    With `takes_shared`, a map of C_in channels is one that all runs share: one dense convolution then gives
    all R outputs, and the map need not be copied for each run.

    On CUDA, grouped convolutions multiply the maps of neighbouring runs with zeros, and NaN times zero is NaN. There
    (or where `contains` says so) a run that is not finite enters as zeros, and leaves as NaN by its own weights.

    >>> conv = StackedConv2d([nn.Conv2d(3, 4, 3) for _ in range(5)])
    >>> conv.takes_shared = True
    >>> conv(torch.zeros(2, 15, 8, 8)).shape, conv(torch.zeros(2, 3, 8, 8)).shape
    (torch.Size([2, 20, 6, 6]), torch.Size([2, 20, 6, 6]))
    """

    contains: bool | None = None  # None: where needed

    def __init__(self, layers: Sequence[nn.Conv2d]) -> None:
        super().__init__()
        first = layers[0]
        self.runs = len(layers)
        self.takes_shared = False
        self.in_channels, self.out_channels, self.groups = first.in_channels, first.out_channels, first.groups
        self.stride, self.padding, self.dilation = first.stride, first.padding, first.dilation
        self.weight: nn.Parameter = _parameter(layers, "weight")
        self.bias: nn.Parameter | None = _parameter(layers, "bias")

    def forward(self, x: Tensor) -> Tensor:
        """[B, R·C_in, H, W], or [B, C_in, H, W] shared → [B, R·C_out, H', W']."""
        runs = 1 if self.takes_shared and x.shape[1] == self.in_channels else self.runs
        weight: Tensor = self.weight
        contained = runs > 1 and (x.is_cuda if self.contains is None else self.contains)
        if contained:
            diverged = _not_finite(x, runs)
            x, weight = _replaced(x, diverged, 1, 0.0), _replaced(weight, diverged, 0, torch.nan)
        y = F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, runs * self.groups)
        if contained and y.requires_grad:
            y = cast(Tensor, _ContainGradient.apply(y, runs))  # type: ignore[no-untyped-call]
        return y


class StackedBatchNorm(nn.Module):
    """R batch norms as one: statistics are per channel anyway, so [B, R·C, …] is only more channels.

    >>> StackedBatchNorm([nn.BatchNorm2d(4) for _ in range(5)]).running_mean.shape
    torch.Size([20])
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, layers: Sequence[nn.BatchNorm1d | nn.BatchNorm2d]) -> None:
        super().__init__()
        first = layers[0]
        self.runs = len(layers)
        self.num_features, self.eps, self.momentum = first.num_features, first.eps, first.momentum
        self.weight: nn.Parameter | None = _parameter(layers, "weight")
        self.bias: nn.Parameter | None = _parameter(layers, "bias")
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            values = [layer.get_buffer(name) for layer in layers] if first.track_running_stats else None
            self.register_buffer(name, None if values is None else _joined(values))

    def forward(self, x: Tensor) -> Tensor:
        """[B, R·C, …] → the same shape."""
        assert self.momentum is not None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        by_batch = self.training or self.running_mean is None
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, by_batch, self.momentum, self.eps
        )


class StackedLinear(nn.Module):
    """R linear layers as one batched product, y_r = x_r W_rᵀ + b_r: [B, R·I] → [B, R·O].

    `weight` is [R·O, I] and `bias` [R·O], as if the R layers were written below each other.

    >>> StackedLinear([nn.Linear(4, 3) for _ in range(5)])(torch.zeros(2, 20)).shape
    torch.Size([2, 15])
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.runs = len(layers)
        self.in_features, self.out_features = layers[0].in_features, layers[0].out_features
        self.weight: nn.Parameter = _parameter(layers, "weight")
        self.bias: nn.Parameter | None = _parameter(layers, "bias")

    def forward(self, x: Tensor) -> Tensor:
        """[B, R·I] → [B, R·O]."""
        weight = split_runs(self.weight, self.runs).transpose(1, 2)
        by_run = split_runs(x, self.runs, axis=1).transpose(0, 1)
        if self.bias is None:
            out = torch.bmm(by_run, weight)
        else:
            out = torch.baddbmm(split_runs(self.bias, self.runs)[:, None], by_run, weight)
        return out.transpose(0, 1).flatten(1)


class StackedHead(StackedLinear):
    """R heads as one, in the precision of their weights also under autocast: [B, R·I] → [B, R·O].

    >>> StackedHead([Head(4, 3) for _ in range(5)])(torch.zeros(2, 20)).shape
    torch.Size([2, 15])
    """

    def forward(self, x: Tensor) -> Tensor:
        """[B, R·I] → [B, R·O]."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


# These act on each element or each channel alone. Dropout is not among them: it would draw other numbers.
_ALIKE: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Flatten),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d),
)
# How R layers of a class become one, which keeps the names of their parameters and buffers.
JOINS: dict[type[nn.Module], Callable[[Sequence[Any]], nn.Module]] = {
    nn.Conv2d: StackedConv2d,
    nn.BatchNorm1d: StackedBatchNorm,
    nn.BatchNorm2d: StackedBatchNorm,
    nn.Linear: StackedLinear,
    Head: StackedHead,
    HalvingShortcut: lambda layers: HalvingShortcut(layers[0].extra, runs=len(layers)),
    **dict.fromkeys(_ALIKE, lambda layers: copy.deepcopy(layers[0])),
}


def can_join(layer: nn.Module) -> bool:
    """Return whether layers of this class and with these settings can become one."""
    odd = (
        getattr(layer, "padding_mode", "zeros") != "zeros",
        isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.momentum is None,
        isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1),
    )
    return type(layer) in JOINS and not any(odd)
