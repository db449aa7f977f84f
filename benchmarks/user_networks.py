"""Networks as users write them, for `--net user_networks:NAME`: plain PyTorch, not marked for stacking by channels."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = norm(outside)
        self.down: nn.Module | None = None
        if stride > 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] → [B, C', H/stride, W/stride]."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return F.relu(y)


class ResNet18(nn.Module):
    """Stem, four stages of two blocks with 64 to 512 channels, linear layer."""

    def __init__(self, classes: int, stem: nn.Module, norm: Norm) -> None:
        super().__init__()
        self.stem = stem
        sides = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
        self.blocks = nn.Sequential(*(Block(*side, norm) for side in [*sides, (512, 512, 1)]))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] → logits [B, K]."""
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


def resnet18(classes: int, channels: int, size: int) -> nn.Module:
    """ResNet-18 for large images, as timm's: after its stem, images of 32 pixels are maps of 8 × 8."""
    stem = nn.Sequential(
        nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    )
    return ResNet18(classes, stem, nn.BatchNorm2d)


def group_norm_resnet18(classes: int, channels: int, size: int) -> nn.Module:
    """ResNet-18 for 32 × 32 images (3×3 stem, no pool), with group norms of 32 groups."""

    def norm(width: int) -> nn.Module:
        return nn.GroupNorm(32, width)

    stem = nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1, bias=False), norm(64), nn.ReLU(inplace=True))
    return ResNet18(classes, stem, norm)
