"""A convolution for each run, as one operator: compiled, a network of many runs is as small as that of one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def conv_by_run(
    x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], groups: int
) -> Tensor:
    """Convolve the maps of each run with its kernels: [R, B, C, H, W], [R, O, C / groups, k, k] → [R, B, O, H', W'].

    The channels of the result lie last in memory, as those of its gradients.

    >>> x, weight = torch.ones(2, 1, 1, 3, 3), torch.tensor([1.0, 10.0]).view(2, 1, 1, 1, 1).expand(2, 1, 1, 3, 3)
    >>> conv_by_run(x, weight, (1, 1), (0, 0), (1, 1), 1).flatten().tolist()
    [9.0, 90.0]
    """
    maps: Tensor = _forward(_last(x), _last(weight), [*stride], [*padding], [*dilation], groups)
    return maps


def _last(maps: Tensor) -> Tensor:
    """Let the channels of maps [R, B, C, H, W] lie last in memory; compiled, they are written so in the first place."""
    return maps.movedim(2, -1).contiguous().movedim(-1, 2)


def _joined(maps: list[Tensor]) -> Tensor:
    """Stack maps [B, C, H, W] with their channels last in memory."""
    return torch.stack([each.movedim(1, -1) for each in maps]).movedim(-1, 2)


@torch.library.custom_op("aol::conv_by_run", mutates_args=())
def _forward(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    pairs = zip(x, weight, strict=True)
    return _joined([F.conv2d(maps, kernel, None, stride, padding, dilation, groups) for maps, kernel in pairs])


@torch.library.custom_op("aol::conv_by_run_backward", mutates_args=())
def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    of_maps: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of maps (nothing unless `of_maps`) and of kernels."""
    grads = [
        torch.ops.aten.convolution_backward(
            *each, None, stride, padding, dilation, False, [0, 0], groups, [of_maps, True, False]
        )[:2]
        for each in zip(grad, x, weight, strict=True)
    ]
    of_x = _joined([each for each, _ in grads]) if of_maps else x.new_empty(0)
    return of_x, _joined([each for _, each in grads])


@_forward.register_fake
def _(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    one = F.conv2d(x[0], weight[0], None, stride, padding, dilation, groups)
    return _like(x, one.shape)


@_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _like(x, x.shape[1:]) if rest[-1] else x.new_empty(0), _like(weight, weight.shape[1:])


def _like(maps: Tensor, shape: torch.Size) -> Tensor:
    b, c, h, w = shape
    return maps.new_empty((maps.shape[0], b, h, w, c)).movedim(-1, 2)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.rest = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    of_maps = ctx.needs_input_grad[0]
    of_x, of_weight = _backward(_last(grad), x, weight, *ctx.rest, of_maps)
    return of_x if of_maps else None, of_weight, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
