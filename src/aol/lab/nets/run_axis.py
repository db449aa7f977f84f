"""Functions of networks with a run axis, for `torch.func.vmap`: as quick as stacked layers, and runs are kept apart.

`vmap` has rules of its own. Here the run axis is the batch of matrix products, and is joined with the images of pools,
group norms and attention, or with the channels of batch norms and of convolutions with few channels. Other convolutions
are matrix products of columns, or one call for each run. A run that is not finite does not reach others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aol.lab.nets.columns import Windows, columns
from aol.lab.nets.conv_by_run import conv_by_run
from aol.lab.nets.layers import split_runs
from aol.lab.nets.stacked import CannotStack
from aol.lab.nets.stacked_layers import conv_of_runs

Axes = Sequence[int | None]  # the run axis of each argument; None: it has none
Result = tuple[Tensor, int]  # and its run axis

_FEW_CHANNELS = 32  # up to so many, one grouped convolution of all runs is quicker than one of each
_COLUMNS = 1 << 23  # the most values of a run's columns: larger maps keep a GPU busy by themselves


class RunAxis(TorchFunctionMode):
    """Use these rules under `vmap`; refuse convolutions that have none, since on CUDA a run could reach others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` by its rule, if it has one and an argument has a run axis."""
        named = {"x" if name == "input" else name: value for name, value in (kwargs or {}).items()}
        if func in _REFUSED:
            raise CannotStack(f"cannot stack: there is no rule for {func.__name__}")
        if func in _BY_IMAGE and args and _has_runs(args[0]) and not named.get("return_indices"):
            return _by_image(func, args, kwargs or {})
        if func not in _RULES or not any(map(_has_runs, (*args, *named.values()))):
            return func(*args, **(kwargs or {}))
        defaults, apply = _RULES[func]
        rest = [named.get(name, default) for name, default in defaults[len(args) :]]
        return apply(*args, *rest)


def _has_runs(value: object) -> bool:
    return isinstance(value, Tensor) and torch._C._functorch.is_batchedtensor(value)


def _first(value: Tensor, axis: int | None, runs: int) -> Tensor:
    """Return a tensor with its run axis in front; one without is the same for all runs."""
    return value.expand(runs, *value.shape) if axis is None else value.movedim(axis, 0)


def _flat(value: Tensor | None, axis: int | None, runs: int) -> Tensor | None:
    """Return vectors [C] of all runs as one, [R·C]; a view where there is a run axis."""
    return None if value is None else _first(value, axis, runs).reshape(-1)


def _channels(x: Tensor, axis: int | None, runs: int) -> Tensor:
    """Return a map [B, C, …] of each run as [B, R·C, …]."""
    by_run = x[:, None].expand(-1, runs, *x.shape[1:]) if axis is None else x.movedim(axis, 1)
    return by_run.flatten(1, 2)


def _conv2d(
    runs: int,
    axes: Axes,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Result:
    if x.dim() - (axes[0] is not None) != 4:
        raise CannotStack("cannot stack: a convolution of a single image")
    maps, axis = (x, None) if axes[0] is None else (x.movedim(axes[0], 0), 0)
    kernels, shift = _first(weight, axes[1], runs), None if bias is None else _first(bias, axes[2], runs)
    if isinstance(padding, str):
        maps, padding = _padded(maps, padding, kernels.shape[-2:], _pair(dilation)), 0
    windows, wide = Windows(_pair(kernels.shape[-2:]), _pair(stride), _pair(padding)), _pair(dilation)
    if groups == 1 and wide == (1, 1) and _is_quick(windows, maps.shape, 1 if axis is None else runs):
        matrix = kernels.movedim(2, -1).flatten(2)  # [R, O, k·k·I]; a view where channels lie last
        y, _ = _linear(runs, (axis, 0, 0), columns(_shortened(maps), windows), matrix, shift)
        return y.movedim(-1, 2), 0
    if kernels.shape[2] <= _FEW_CHANNELS:
        flat = None if shift is None else shift.flatten()
        side_by_side, rest = _channels(maps, axis, runs), (windows.stride, windows.padding, wide, groups)
        return split_runs(conv_of_runs(side_by_side, kernels.flatten(0, 1), flat, runs, *rest), runs, axis=1), 1
    by_run = _shortened(_first(maps, axis, runs)), _shortened(kernels)
    y = conv_by_run(*by_run, windows.stride, windows.padding, wide, groups)
    return y if shift is None else y + shift[:, None, :, None, None].to(y.dtype), 0


def _padded(x: Tensor, padding: str, kernel: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Pad maps with zeros, as `padding="same"` or `"valid"` says."""
    (high, wide) = (d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True))
    return F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


def _pair(value: Any) -> tuple[int, int]:
    each = tuple(value) if isinstance(value, Sequence) else (value,)
    return each[0], each[-1]


def _is_quick(windows: Windows, shape: torch.Size, runs: int) -> bool:
    """Whether a product of columns is the quickest: they are hardly larger than the map, or small."""
    size = windows.size(shape)
    return size <= shape.numel() or size <= _COLUMNS * runs


def _shortened(x: Tensor) -> Tensor:
    """Return what autocast makes of a factor of a product."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) and x.dtype == torch.float32 else x


def _batch_norm(
    runs: int,
    axes: Axes,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Result:
    if training and any(v is not None and a is None for v, a in ((running_mean, axes[1]), (running_var, axes[2]))):
        raise CannotStack("cannot stack: a batch norm whose statistics all runs share")
    mean, var, scale, shift = (
        _flat(value, axis, runs)
        for value, axis in zip((running_mean, running_var, weight, bias), axes[1:5], strict=True)
    )
    y = F.batch_norm(_channels(x, axes[0], runs), mean, var, scale, shift, training, momentum, eps)
    return split_runs(y, runs, axis=1), 1


def _group_norm(
    runs: int,
    axes: Axes,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Result:
    y = split_runs(F.group_norm(_first(x, axes[0], runs).flatten(0, 1), num_groups, eps=eps), runs)
    for value, axis, by_channel in ((weight, axes[2], torch.mul), (bias, axes[3], torch.add)):
        if value is not None:
            y = by_channel(y, _first(value, axis, runs).view(runs, 1, -1, *[1] * (y.dim() - 3)))
    return y, 0


def _linear(runs: int, axes: Axes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Result:
    rows, matrix = _first(x, axes[0], runs), _first(weight, axes[1], runs).transpose(1, 2)
    flat = rows.reshape(runs, -1, rows.shape[-1])
    y = torch.bmm(flat, matrix)
    if bias is not None:  # not `baddbmm`, which first writes the sum's other part to memory; here it can be fused
        y = y + _first(bias, axes[2], runs)[:, None].to(y.dtype)
    return y.view(*rows.shape[:-1], -1), 0


def _attention(
    runs: int,
    axes: Axes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Result:
    if dropout_p or attn_mask is not None or query.dim() - (axes[0] is not None) != 4:
        raise CannotStack("cannot stack: attention with a mask, with dropout, or without heads")
    q, k, v = (_first(each, axis, runs).flatten(0, 1) for each, axis in zip((query, key, value), axes[:3], strict=True))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    return split_runs(y, runs), 0


def _under_vmap(work: Callable[..., Result]) -> Callable[..., Tensor]:
    """Make a function whose result under `vmap` is that of `work(runs, axes, *arguments)`, gradients included."""

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> Tensor:
            raise NotImplementedError("only under vmap")

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Nothing to keep: the gradient is that of `work`."""

        @staticmethod
        def vmap(info: Any, axes: Any, *given: Any) -> Result:
            return work(info.batch_size, axes, *given)

    return Rule.apply


def _by_image(func: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Call a function that treats every image alike on the images of all runs."""

    def work(runs: int, axes: Axes, x: Tensor) -> Result:
        return split_runs(func(_first(x, axes[0], runs).flatten(0, 1), *args[1:], **kwargs), runs), 0

    return _under_vmap(work)(args[0])


_WORK: dict[Any, Callable[..., Result]] = {
    F.conv2d: _conv2d,
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
}
_RULES = {
    func: ([(each.name, each.default) for each in inspect.signature(work).parameters.values()][2:], _under_vmap(work))
    for func, work in _WORK.items()
}
_BY_IMAGE: tuple[Any, ...] = (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)
_REFUSED = (F.conv1d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
