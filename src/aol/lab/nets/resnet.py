"""Residual networks: ResNet-34 for 224×224 images; ResNet-32 of the paper's tables and its ResNet-34 for 32×32 images.

Height and width must be multiples of 4 for ResNet-32, whose shortcuts say so if not. All layers have PyTorch's default
initialisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from aol.lab.nets.layers import HalvingShortcut, Head, Network
from aol.lab.nets.norm_relu import norm_relu

Shortcut = Callable[[int, int, int], nn.Module]  # (channels in, channels out, stride) → module


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Make ResNet-34's shortcut: nothing within a stage, a strided 1×1 convolution and a norm across stages.

    >>> projection(64, 64, 1)
    Identity()
    """
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


def parameter_free(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Make ResNet-32's shortcut: nothing within a stage, 2×2 mean and zero channels across stages.

    >>> parameter_free(16, 32, 2)
    HalvingShortcut(extra=16, runs=1)
    """
    return nn.Identity() if stride == 1 else HalvingShortcut(out_channels - in_channels)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, post-activation: relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)).

    [B, C_in, H, W] → [B, C_out, H/stride, W/stride].

    >>> import torch
    >>> BasicBlock(16, 32, 2, projection(16, 32, 2))(torch.zeros(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    channelwise_entry = None

    def __init__(self, in_channels: int, out_channels: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_in, H, W] → [B, C_out, H/stride, W/stride]."""
        branch = norm_relu(self.norm1, self.conv1(x))
        return norm_relu(self.norm2, self.conv2(branch), self.shortcut(x))


class ResNet(Network):
    """Stem, stages of blocks, global mean, linear: images [B, C, H, W] → logits [B, K].

    Stage s has `blocks[s]` blocks of `width`·2ˢ channels; every stage but the first halves the map.

    >>> import torch
    >>> stem = nn.Conv2d(3, 4, 3, padding=1)
    >>> net = ResNet(stem, (1, 1), width=4, num_classes=10, shortcut=projection)
    >>> net(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    channelwise_entry = "stem"

    def __init__(
        self, stem: nn.Module, blocks: Sequence[int], width: int, num_classes: int, shortcut: Shortcut
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential()
        channels = width
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            layers = nn.Sequential()
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(BasicBlock(channels, out, stride, shortcut(channels, out, stride)))
                channels = out
            self.stages.append(layers)
        self.head = Head(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] → logits [B, K]."""
        return self.head(self.stages(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


def resnet34(
    num_classes: int, in_channels: int = 3, *, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64
) -> ResNet:
    """ResNet-34 for 224×224 images: 7×7 stem, max-pool, stages of 3, 4, 6, 3 blocks, 64 to 512 channels.

    >>> sum(p.numel() for p in resnet34(1000).parameters())
    21797672
    """
    stem = [nn.Conv2d(in_channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return ResNet(nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1)), blocks, width, num_classes, projection)


def resnet32(num_classes: int, in_channels: int = 3, *, blocks: Sequence[int] = (5, 5, 5), width: int = 16) -> ResNet:
    """CIFAR ResNet-32: three stages of five basic blocks, 16, 32, 64 channels, shortcuts without parameters.

    >>> sum(p.numel() for p in resnet32(10).parameters())
    464154
    """
    return ResNet(_small_stem(in_channels, width), blocks, width, num_classes, parameter_free)


def resnet34_cifar(
    num_classes: int, in_channels: int = 3, *, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64
) -> ResNet:
    """CIFAR ResNet-34: 3×3 stem, no max-pool, the last batch-norm scale of each block starts at zero.

    Every block then starts as its shortcut, so that depth does no harm at a high first rate.

    >>> sum(p.numel() for p in resnet34_cifar(100).parameters())
    21328292
    """
    net = ResNet(_small_stem(in_channels, width), blocks, width, num_classes, projection)
    for module in net.modules():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.norm2.weight)
    return net


def _small_stem(in_channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
