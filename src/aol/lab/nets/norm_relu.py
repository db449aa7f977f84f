"""Batch norm and relu as one step of a network, by aol's kernels where they apply."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def norm_relu(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """Return relu(norm(x) + shortcut) of maps [B, C, H, W]; `norm` is a batch norm, or R of them (`StackedBatchNorm`).

    On a GPU, bf16 maps with channels last go through kernels that pass over them half as often.

    >>> norm_relu(nn.BatchNorm2d(1), torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)).flatten().round(decimals=3).tolist()
    [0.0, 1.0]
    """
    if not _applies(norm, x, shortcut):
        y = norm(x) if shortcut is None else norm(x) + shortcut
        return F.relu(y, inplace=y.device.type == "cpu")  # no gradient needs y: one map less to write
    from aol.lab.nets.fused.norm_relu import NormRelu  # needs Triton

    if norm.training:
        norm.get_buffer("num_batches_tracked").add_(1)
    if shortcut is not None:
        shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
    fused: Tensor = NormRelu.apply(
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, shortcut, norm.training, norm.momentum, norm.eps
    )  # type: ignore[no-untyped-call]
    return fused


def _applies(norm: nn.Module, x: Tensor, shortcut: Tensor | None) -> bool:
    """Whether the kernels can do it: plain bf16 maps with channels last, and statistics that are kept."""
    if x.dtype != torch.bfloat16 or not _kernels(x.device):
        return False
    needed = ("weight", "bias", "running_mean", "running_var", "momentum")
    wanted = norm.training or not torch.is_grad_enabled()  # gradients in evaluation mode are PyTorch's
    return (
        wanted
        and x.shape[1] % 16 == 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and all(getattr(norm, name, None) is not None for name in needed)
        and (shortcut is None or shortcut.shape == x.shape)
    )


@functools.cache
def _kernels(device: torch.device) -> bool:
    """Whether the kernels run on this device: tried once."""
    if find_spec("triton") is None or (device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1"):
        return False
    from aol.lab.nets.fused.norm_relu import works

    return works(device)
