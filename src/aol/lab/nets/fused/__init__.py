"""R stacked ResNets, or small CNNs, on one GPU, in Triton kernels that fuse convolutions, batch norms and activations.

Assumes a `Stacked` network, whose parameters and buffers are used as they are: its forward pass, state dict and
optimiser keep working. Needs Triton and a GPU only when run; `obstacle` says what is missing.
"""

from __future__ import annotations

import copy
import importlib.util
import os
from typing import cast

import torch
from torch import Tensor, nn

from aol.lab.nets.fused.plan import CannotFuse, plan
from aol.lab.nets.layers import split_runs
from aol.lab.nets.stacked import Stacked

__all__ = ["CannotFuse", "FusedStack", "obstacle"]


def obstacle(net: nn.Module, size: tuple[int, int] | None = None) -> str | None:
    """Why the kernels cannot run `net` here, on images of height and width `size`, in words; None if they can.

    >>> obstacle(nn.Linear(2, 2))
    'not a stack of residual networks, nor of small CNNs'
    """
    try:
        found = plan(net)
    except CannotFuse as error:
        return str(error)
    if size is not None and (reason := found.refuses(*size)):
        return reason
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not all(value.is_contiguous() for value in net.state_dict().values()):
        return "its weights do not lie in their plain order (channels last, say)"
    devices = {value.device.type for value in net.state_dict().values()}
    if devices != {"cuda"} and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the network lies on {', '.join(sorted(devices))}, not on a GPU"
    return None


class FusedStack(nn.Module):
    """A `Stacked` network run by kernels: images [R, B, C, H, W], or [B, C, H, W] for all → logits [R, B, K], fp32.

    Maps are kept in `dtype`, everything is added in fp32. It holds no values of its own: training it trains
    `stacked`. Not training, gradients are not to be had from the kernels: where one is asked for, the plain
    forward pass answers.
    """

    def __init__(self, stacked: Stacked, *, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.stacked = stacked
        self.dtype = dtype
        self.num_runs = stacked.num_runs
        self.training = stacked.training
        self._plan = plan(stacked)

    def forward(self, images: Tensor) -> Tensor:
        """Images → logits [R, B, K]."""
        self._check(images)
        from aol.lab.nets.fused import blocks, network, stage  # Triton is needed from here on, not before

        if self._plan.residual:  # others have none of the convolutions that these are for
            stage.prepare(training=self.training)
            if not self.training:
                blocks.prepare()

        if self.training:
            found = network.Features.apply(self._plan, self.dtype, images, *self._plan.parameters())  # type: ignore[no-untyped-call]
            features = cast(Tensor, found)
        elif torch.is_grad_enabled():
            return cast(Tensor, self.stacked(images))
        else:
            features = network.evaluate(self._plan, images, self.dtype)
        head = self.stacked.head
        weight = split_runs(head.weight, self.num_runs).transpose(1, 2)
        with torch.autocast(features.device.type, enabled=False):
            if head.bias is None:
                return torch.bmm(features, weight)
            return torch.baddbmm(split_runs(head.bias, self.num_runs)[:, None], features, weight)

    def failure(self, shape: tuple[int, int, int]) -> str | None:
        """Why the kernels fail on this device, in words; None if a copy trains and evaluates an image [C, H, W].

        For example there is no compiler, or a multiprocessor has too little shared memory.
        """
        try:
            from triton.errors import TritonError  # type: ignore[import-not-found]
        except ImportError as error:
            return str(error)
        trial = FusedStack(copy.deepcopy(self.stacked), dtype=self.dtype)
        image = torch.zeros((1, *shape), device=next(self.parameters()).device)
        try:
            with torch.enable_grad():
                trial.train()(image).sum().backward()
            with torch.no_grad():
                trial.eval()(image)
        except (RuntimeError, OSError, ImportError, TritonError) as error:
            return str(error)
        return None

    def _check(self, images: Tensor) -> None:
        channels = self._plan.stem.conv.in_channels
        own = images.dim() == 5 and images.shape[0] == self.num_runs
        if not (own or images.dim() == 4) or images.shape[-3] != channels:
            allowed = f"[{self.num_runs}, B, {channels}, H, W] or [B, {channels}, H, W]"
            raise ValueError(f"images must be {allowed}, got {list(images.shape)}")
        if reason := self._plan.refuses(images.shape[-2], images.shape[-1]):
            raise ValueError(reason)
