"""Residual networks for 32×32 images: ResNet-32 of the paper's tables, ResNet-34 of its first observation.

Assumes images whose height and width are multiples of 4 for ResNet-32 (its shortcuts say so if not).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from aol.lab.nets.layers import HalvingShortcut
from aol.lab.nets.resnet import BasicBlock, ResNet, projection


def parameter_free(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Make ResNet-32's shortcut: nothing within a stage, 2×2 mean and zero channels across stages.

    >>> parameter_free(16, 32, 2)
    HalvingShortcut(extra=16, runs=1)
    """
    if stride == 1:
        return nn.Identity()
    return HalvingShortcut(out_channels - in_channels)


def _stem(in_channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def resnet32(num_classes: int, in_channels: int = 3, *, blocks: Sequence[int] = (5, 5, 5), width: int = 16) -> ResNet:
    """CIFAR ResNet-32: three stages of five basic blocks, 16, 32, 64 channels, shortcuts without parameters.

    >>> sum(p.numel() for p in resnet32(10).parameters())
    464154
    """
    stem = _stem(in_channels, width)
    return ResNet(stem, blocks=blocks, width=width, num_classes=num_classes, shortcut=parameter_free)


def resnet34_cifar(
    num_classes: int, in_channels: int = 3, *, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64
) -> ResNet:
    """CIFAR ResNet-34: 3×3 stem, no max-pool, the last batch-norm scale of each block starts at zero.

    Every block then starts as its shortcut, so that depth does no harm at a high first rate.

    >>> sum(p.numel() for p in resnet34_cifar(100).parameters())
    21328292
    """
    net = ResNet(_stem(in_channels, width), blocks=blocks, width=width, num_classes=num_classes, shortcut=projection)
    for module in net.modules():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.norm2.weight)
    return net
