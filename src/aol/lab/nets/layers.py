"""Parts that networks share: their base class, what is channelwise, and a shortcut without parameters.

Assumes maps of shape [B, C, H, W]. A map may hold R networks side by side, run-major in its channels
([B, R·C, H, W], run r in channels r·C to (r + 1)·C); only modules that are channelwise may receive one.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Network(nn.Module):
    """A classifier of images [B, C, H, W] → logits [B, K] whose last linear layer is always `head`.

    >>> from aol.lab.nets.registry import make
    >>> make("cnn", num_classes=10, in_channels=1, seed=0).head.out_features
    10
    """

    head: nn.Linear


def head_name(net: nn.Module) -> str:
    """Return the name of the last linear layer with a bias: `head`, or what it is called; empty where there is none.

    >>> head_name(nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    '3'
    """
    linear = [name for name, part in net.named_modules() if isinstance(part, nn.Linear) and part.bias is not None]
    return "head" if "head" in linear else linear[-1] if linear else ""


class Head(nn.Linear):
    """A linear layer in the precision of its weights, also under autocast; for logits.

    bf16 has eight significant bits: near-equal logits would become equal, and the lower class would win.

    >>> head = Head(1, 2)
    >>> head.load_state_dict({"weight": torch.tensor([[1.0], [1.001]]), "bias": torch.zeros(2)})
    <All keys matched successfully>
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     head(torch.ones(1, 1)).argmax().item()
    1
    """

    def forward(self, x: Tensor) -> Tensor:
        """[B, I] → [B, O]."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


def is_channelwise(module: nn.Module) -> bool:
    """Whether the class of a module, not a parent of it, says that its forward pass treats all channels alike.

    It says so by `channelwise_entry` in its own body: the child that alone receives the input, if there is one, or
    None. Such a forward pass may call children, add or multiply maps, apply element-wise functions, average over places
    and flatten all but the batch. It must not read, pad, split, join or mix channels: those belong in a child of their
    own.

    >>> is_channelwise(nn.Sequential()), is_channelwise(nn.Transformer())
    (True, False)
    """
    return type(module) is nn.Sequential or "channelwise_entry" in vars(type(module))


def entry_of(module: nn.Module) -> nn.Module:
    """Return the innermost module known to be the only one that receives the network's input.

    >>> entry_of(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Flatten()))
    ReLU()
    """
    name = "0" if type(module) is nn.Sequential else vars(type(module)).get("channelwise_entry")
    children = dict(module.named_children())
    return entry_of(children[name]) if name in children else module


def split_runs(tensor: Tensor, runs: int, axis: int = 0) -> Tensor:
    """View […, R·d, …] as […, R, d, …], which is what run-major means.

    >>> split_runs(torch.arange(6), 2).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    shape = tensor.shape
    return tensor.view(*shape[:axis], runs, shape[axis] // runs, *shape[axis + 1 :])


class _HalfMean(torch.autograd.Function):
    """Mean of each 2×2 square: exactly `avg_pool2d`, forward and backward, with a cheaper backward.

    Its own backward looks for all windows that might hold a pixel, 5 % of a training step on a GPU; these do
    not overlap, so the gradient is g / 4 copied four times. Sums of strided slices would fill four tensors
    with zeros in the backward, round at each bf16 addition and lose the channels-last layout.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        """Nothing to keep: the gradient depends on the gradient alone."""

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        quarter = grad * 0.25
        if quarter.is_contiguous(memory_format=torch.channels_last):
            return F.interpolate(quarter, scale_factor=2.0, mode="nearest")
        b, c, h, w = quarter.shape  # on a CPU, `interpolate` is slow when channels come first
        return quarter[:, :, :, None, :, None].expand(b, c, h, 2, w, 2).reshape(b, c, 2 * h, 2 * w)


def half_mean(x: Tensor) -> Tensor:
    """Mean of each 2×2 square, [B, C, H, W] → [B, C, H/2, W/2]; height and width must be even.

    >>> half_mean(torch.arange(16.0).view(1, 1, 4, 4)).flatten().tolist()
    [2.5, 4.5, 10.5, 12.5]
    """
    if x.shape[-2] % 2 or x.shape[-1] % 2:
        raise ValueError(f"the 2×2 mean of a shortcut needs an even height and width, got {x.shape[-2]}×{x.shape[-1]}")
    return cast(Tensor, _HalfMean.apply(x))  # type: ignore[no-untyped-call]


class HalvingShortcut(nn.Module):
    """The shortcut across a stage: 2×2 mean, then zero channels, equally many on both sides. No parameters.

    [B, R·C, H, W] → [B, R·(C + extra), H/2, W/2]: of R = `runs` networks, each is padded by itself.

    >>> HalvingShortcut(2)(torch.ones(1, 1, 2, 2)).flatten().tolist()
    [0.0, 1.0, 0.0]
    >>> HalvingShortcut(2, runs=2)(torch.ones(1, 2, 2, 2)).flatten().tolist()
    [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    """

    def __init__(self, extra: int, runs: int = 1) -> None:
        super().__init__()
        self.extra = extra
        self.runs = runs

    def forward(self, x: Tensor) -> Tensor:
        """[B, R·C, H, W] → [B, R·(C + extra), H/2, W/2]."""
        side = self.extra // 2
        x = half_mean(x)
        if self.runs == 1:
            return F.pad(x, (0, 0, 0, 0, side, side))
        if x.is_contiguous(memory_format=torch.channels_last):
            # Pad where the channels lie last, or the five-dimensional pad would undo the layout.
            last = split_runs(x.permute(0, 2, 3, 1), self.runs, axis=3)
            return F.pad(last, (side, side)).flatten(3).permute(0, 3, 1, 2)
        return F.pad(split_runs(x, self.runs, axis=1), (0, 0, 0, 0, side, side)).flatten(1, 2)

    def extra_repr(self) -> str:
        """Say what tells two shortcuts apart."""
        return f"extra={self.extra}, runs={self.runs}"
