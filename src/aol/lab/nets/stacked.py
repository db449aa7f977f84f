"""R networks as one: the same outputs, gradients and running statistics, in one forward and backward pass.

Assumes networks alike but for their values, built of layers in `stacked_layers.JOINS` and of channelwise modules. Runs
are side by side in the channels and independent: a run that diverges does not affect the others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from aol.lab.nets.layers import entry_of, head_name, is_channelwise, split_runs
from aol.lab.nets.stacked_layers import JOINS, StackedConv2d, StackedLinear, can_join


def obstacle(net: nn.Module) -> str | None:
    """Why `net` cannot be stacked, in words that name the module; None if it can.

    >>> obstacle(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)))
    "module '1' is a GroupNorm, for which no stacked layer is known"
    """
    number = 0
    for path, module in net.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if not can_join(module) and (own or not is_channelwise(module)):
            what = f"module {path!r}" if path else "the network"
            return f"{what} is a {type(module).__name__}, for which no stacked layer is known"
        number += len(list(module.parameters(recurse=False)))
    return "two modules share a parameter" if number > len(list(net.parameters())) else None


class Stacked(nn.Module):
    """R networks as one: images [R, B, C, H, W], or [B, C, H, W] seen by all runs → logits [R, B, K].

    Every parameter and buffer is the R plain ones joined along their first axis; `run_view` splits them.
    A loss summed over the runs gives each run its own gradient, and an element-wise optimiser (SGD with
    momentum and weight decay, AdamW) trains R independent networks. What is not element-wise, such as a
    gradient norm, must be taken on `run_view`.

    `obstacle` must be None for each network; they must be alike but for their values, and are not touched. Images that
    lie in memory as [B, R, C, H, W], or as [B, H, W, R, C] (channels last), are not copied.

    >>> import torch
    >>> from aol.lab.nets.registry import make
    >>> nets = [make("cnn", num_classes=10, in_channels=1, seed=seed) for seed in range(3)]
    >>> stacked = Stacked(nets)
    >>> stacked(torch.zeros(3, 2, 1, 8, 8)).shape, stacked.num_runs
    (torch.Size([3, 2, 10]), 3)
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.num_runs = len(networks)
        self.network = _join(networks)
        self.training = self.network.training
        self._head = head_name(networks[0])
        self._shapes = {name: value.shape for name, value in networks[0].state_dict().items()}
        entry = entry_of(self.network)
        self._takes_shared = isinstance(entry, StackedConv2d) and entry.groups == 1
        if isinstance(entry, StackedConv2d):
            entry.takes_shared = self._takes_shared

    @property
    def head(self) -> StackedLinear:
        """The last linear layer of all runs, `weight` [R·K, I] and `bias` [R·K]."""
        return cast(StackedLinear, self.network.get_submodule(self._head))

    def forward(self, images: Tensor) -> Tensor:
        """Images [R, B, C, H, W] or [B, C, H, W] → logits [R, B, K]."""
        if images.dim() == 5:
            images = images.movedim(0, 1).flatten(1, 2)
        elif not self._takes_shared:
            images = images.repeat(1, self.num_runs, 1, 1)
        logits: Tensor = self.network(images)
        return split_runs(logits, self.num_runs, axis=1).transpose(0, 1)

    def run_view(self, tensor: Tensor) -> Tensor:
        """View a parameter, gradient, buffer or optimiser state [R·d, …] as [R, d, …], to read or to write.

        >>> stacked = Stacked([nn.Sequential(nn.Conv2d(1, 4, 3)) for _ in range(3)])
        >>> [tuple(stacked.run_view(p).shape) for p in stacked.parameters()]
        [(3, 4, 1, 3, 3), (3, 4)]
        """
        return split_runs(tensor, self.num_runs)

    def unstack(self, run: int) -> dict[str, Tensor]:
        """Copy run `run` out as the state dict of a plain network, with its names and shapes.

        >>> import torch
        >>> nets = [nn.Sequential(nn.Linear(2, 1)) for _ in range(3)]
        >>> torch.equal(Stacked(nets).unstack(2)["0.weight"], nets[2][0].weight)
        True
        """
        return {
            name: self.run_view(value.detach())[run].reshape(self._shapes[name]).clone().contiguous()
            for name, value in self.network.state_dict().items()
        }


def _join(networks: Sequence[nn.Module]) -> nn.Module:
    """Copy the first network with each known layer replaced by the stacked one; forwards stay as they are."""
    stacked: dict[int, nn.Module] = {}
    for name, layer in networks[0].named_modules():
        if join := JOINS.get(type(layer)):
            joint = join([network.get_submodule(name) for network in networks])
            stacked[id(layer)] = joint.train(layer.training)
    # What deepcopy finds in its memo it takes as already copied: the tree, modules used twice included,
    # keeps its form.
    return copy.deepcopy(networks[0], dict[int, object](stacked))
