"""Every stackable network, made small enough to test, and R of them trained the plain way: the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol.lab.nets.cnn import CNN
from aol.lab.nets.layers import Network
from aol.lab.nets.resnet import resnet32, resnet34, resnet34_cifar

CLASSES, BATCH = 3, 4


@dataclass(frozen=True)
class Small:
    build: Callable[[], Network]
    channels: int
    size: int


SMALL = {
    "cnn": Small(lambda: CNN(CLASSES, 1, width=4), 1, 8),
    "resnet32": Small(lambda: resnet32(CLASSES, blocks=(1, 1, 2), width=4), 3, 8),
    "resnet34-cifar": Small(lambda: resnet34_cifar(CLASSES, blocks=(1, 2), width=4), 3, 8),
    "resnet34": Small(lambda: resnet34(CLASSES, blocks=(1, 1), width=4), 3, 32),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scatter(net: nn.Module, seed: int) -> nn.Module:
    """Move values away from where layers start, so that scales, shifts and statistics differ by channel."""
    source = generator(seed)
    for value in [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]:
        noise = torch.rand(value.shape, generator=source, dtype=value.dtype)
        value.data.add_(noise if value.dim() == 1 else (noise - 0.5) / 2)
    return net


def several(name: str, runs: int, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return [scatter(SMALL[name].build().to(dtype), seed) for seed in range(runs)]


def images(name: str, runs: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    small = SMALL[name]
    shape = (runs, BATCH, small.channels, small.size, small.size)
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def labels(runs: int, seed: int = 0) -> Tensor:
    return torch.randint(CLASSES, (runs, BATCH), generator=generator(seed))


def losses(logits: Tensor, target: Tensor) -> Tensor:
    """Mean loss of each run, [R]."""
    return F.cross_entropy(logits.transpose(1, 2), target, reduction="none").mean(1)


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
