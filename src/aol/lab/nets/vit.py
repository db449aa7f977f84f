"""A small vision transformer: patches of 4×4, width 192, depth 6, 3 heads.

Assumes square images of one size, a multiple of the patch, since it learns a vector for each position.
Cannot be stacked: attention and layer norm mix the channels of a token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol.lab.nets.layers import Head, Network


class Attention(nn.Module):
    """Multi-head self-attention: softmax(QKᵀ / √d) V for each head; [B, T, W] → [B, T, W].

    >>> Attention(12, heads=3)(torch.zeros(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] → [B, T, W]."""
        # The gradient of `chunk` lies in memory as the next product reads it; that of `unbind` would be copied.
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Pre-norm attention and a GELU layer of four times the width, both residual; [B, T, W] → [B, T, W].

    >>> TransformerBlock(12, heads=3)(torch.zeros(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] → [B, T, W]."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class ViT(Network):
    """Patches, a class token, positions, transformer blocks, linear on the token: [B, C, H, W] → [B, K].

    >>> net = ViT(10)
    >>> net(torch.zeros(2, 3, 32, 32)).shape, sum(p.numel() for p in net.parameters())
    (torch.Size([2, 10]), 2693578)
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        *,
        image_size: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise ValueError(f"image_size must be a multiple of the patch, {patch}; got {image_size}")
        self.image_size = image_size
        self.embed = nn.Conv2d(in_channels, width, patch, patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, (image_size // patch) ** 2 + 1, width))
        nn.init.trunc_normal_(self.token, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = Head(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] → logits [B, K]."""
        if x.shape[-2:] != (self.image_size, self.image_size):
            size = self.image_size
            raise ValueError(f"images must be {size}×{size}, got {x.shape[-2]}×{x.shape[-1]}")
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(tokens))[:, 0])  # type: ignore[no-any-return]
