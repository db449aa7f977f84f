"""The networks by name. A new one is a line in `NETWORKS`; importable without torch.

Those of timm and of your own (`external.py`) have a colon in their name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aol.lab.nets.layers import Network


@dataclass(frozen=True)
class Entry:
    """How to build a network, and which image sizes it takes."""

    build: Callable[[int, int, int], Network]  # (number of classes, channels, image size) → network
    image_size: int  # the default
    multiple: int = 1  # image sizes must be a multiple of this
    smallest: int = 1


def _build(module: str, name: str, classes: int, channels: int, size: int) -> Network:
    """Build a network of this package, whose module is imported only now."""
    network: Network = getattr(import_module(f"aol.lab.nets.{module}"), name)(classes, channels)
    return network


NETWORKS: dict[str, Entry] = {
    "cnn": Entry(partial(_build, "cnn", "CNN"), 8, smallest=4),
    "resnet32": Entry(partial(_build, "resnet", "resnet32"), 32, multiple=4),
    "resnet34-cifar": Entry(partial(_build, "resnet", "resnet34_cifar"), 32),
    "resnet34": Entry(partial(_build, "resnet", "resnet34"), 224, smallest=32),
}


def is_external(name: str) -> bool:
    """Return whether a name is `timm:NAME` or `MODULE:FUNCTION`.

    >>> is_external("timm:resnet18"), is_external("package.module:make_net"), is_external("resnet32")
    (True, True, False)
    """
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[\w.\-]+", name) is not None


def make(name: str, *, num_classes: int, in_channels: int = 3, image_size: int | None = None, seed: int) -> Network:
    """Build the network called `name` from `seed`: images [B, in_channels, size, size] → logits [B, K].

    Layers have PyTorch's default initialisation. The same seed gives the same network, and the global generator keeps
    its state. `image_size` defaults to the size the network is meant for.

    >>> import torch
    >>> net = make("resnet32", num_classes=10, seed=0)
    >>> net(torch.zeros(2, 3, 32, 32)).shape, net.head.in_features
    (torch.Size([2, 10]), 64)
    """
    import torch

    from aol.lab.nets.external import build_external

    if name not in NETWORKS and not is_external(name):
        raise ValueError(f"name must be one of {', '.join(NETWORKS)}, timm:NAME or MODULE:FUNCTION; got {name!r}")
    entry = NETWORKS.get(name) or Entry(partial(build_external, name), 32)
    size = entry.image_size if image_size is None else image_size
    if size < entry.smallest or size < 1 or size % entry.multiple:
        allowed = f"a multiple of {entry.multiple}" if entry.multiple > 1 else f"at least {entry.smallest}"
        raise ValueError(f"image_size must be {allowed} for {name}, got {size}")
    # Layers draw their first weights from the CPU's global generator: seed it while building, and build on the CPU
    # whatever the default device is, so that a seed gives the same network everywhere.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return entry.build(num_classes, in_channels, size)
