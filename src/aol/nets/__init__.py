"""The networks by name, each started from an explicit seed; `stack` turns R of them into one.

Assumes nothing of the data but channels, image size and number of classes. Every network ends in a linear
layer called `head`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from aol.nets.cnn import CNN
from aol.nets.layers import Network, channelwise
from aol.nets.resnet import resnet34
from aol.nets.resnet_cifar import resnet32, resnet34_cifar
from aol.nets.stacked import CannotStack, Stacked, can_stack, obstacle, stack
from aol.nets.vit import ViT

__all__ = [
    "CannotStack",
    "Network",
    "Stacked",
    "can_stack",
    "channelwise",
    "make",
    "names",
    "obstacle",
    "stack",
]


@dataclass(frozen=True)
class _Entry:
    build: Callable[[int, int, int], Network]  # (number of classes, channels, image size) → network
    image_size: int  # its own size: the default
    multiple: int = 1  # image sizes must be a multiple of this
    smallest: int = 1


_NETWORKS: dict[str, _Entry] = {
    "cnn": _Entry(lambda classes, channels, size: CNN(classes, channels), 8, smallest=4),
    "resnet32": _Entry(lambda classes, channels, size: resnet32(classes, channels), 32, multiple=4),
    "resnet34-cifar": _Entry(lambda classes, channels, size: resnet34_cifar(classes, channels), 32),
    "resnet34": _Entry(lambda classes, channels, size: resnet34(classes, channels), 224, smallest=32),
    "vit": _Entry(lambda classes, channels, size: ViT(classes, channels, image_size=size), 32, multiple=4),
}


def names() -> tuple[str, ...]:
    """List the names `make` knows.

    >>> names()
    ('cnn', 'resnet32', 'resnet34-cifar', 'resnet34', 'vit')
    """
    return tuple(_NETWORKS)


def make(name: str, *, num_classes: int, in_channels: int = 3, image_size: int | None = None, seed: int) -> Network:
    """Build the network called `name` from `seed`: images [B, in_channels, size, size] → logits [B, K].

    Layers start as the framework starts them. The same seed gives the same network whatever was drawn before,
    and the global generator is left as it was. `image_size` defaults to the size the network is meant for.

    >>> net = make("resnet32", num_classes=10, seed=0)
    >>> net(torch.zeros(2, 3, 32, 32)).shape, net.head.in_features
    (torch.Size([2, 10]), 64)
    """
    if name not in _NETWORKS:
        raise ValueError(f"name must be one of {', '.join(names())}; got {name!r}")
    for argument, value in (("num_classes", num_classes), ("in_channels", in_channels)):
        if value < 1:
            raise ValueError(f"{argument} must be at least 1, got {value}")
    entry = _NETWORKS[name]
    size = entry.image_size if image_size is None else image_size
    if size < entry.smallest or size < 1 or size % entry.multiple:
        allowed = f"a multiple of {entry.multiple}" if entry.multiple > 1 else f"at least {entry.smallest}"
        raise ValueError(f"image_size must be {allowed} for {name}, got {size}")
    # Layers draw their first weights from the process's CPU generator: lend it for the time of building, on
    # the CPU whatever the default device, so that a seed means the same network everywhere.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return entry.build(num_classes, in_channels, size)
