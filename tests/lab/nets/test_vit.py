from __future__ import annotations

import pytest
import torch

from aol.lab.nets import CannotStack, can_stack, make, obstacle, stack
from aol.lab.nets.vit import Attention, ViT


def test_the_transformer_is_the_small_one_of_the_protocol() -> None:
    net = make("vit", num_classes=10, seed=0)
    assert isinstance(net, ViT)
    assert (net.embed.kernel_size, net.embed.stride, net.head.in_features) == ((4, 4), (4, 4), 192)
    assert (len(net.blocks), net.blocks[0].attention.heads) == (6, 3)


def test_attention_is_the_softmax_of_scaled_products() -> None:
    attention = Attention(6, heads=2).double()
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    qkv = attention.qkv(x)
    mixed = torch.zeros_like(x)
    for head in range(2):
        q, k, v = (qkv[:, :, part * 6 + head * 3 :][:, :, :3] for part in range(3))
        mixed[:, :, head * 3 : head * 3 + 3] = (q @ k.transpose(1, 2) / 3**0.5).softmax(2) @ v
    torch.testing.assert_close(attention(x), attention.out(mixed))


def test_the_order_of_the_patches_matters() -> None:
    net = ViT(3, image_size=8, width=12, depth=1).eval()
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(net(x), net(x.roll(4, 3)))


def test_another_image_size_is_refused() -> None:
    with pytest.raises(ValueError, match="images must be 32×32, got 28×28"):
        make("vit", num_classes=3, seed=0)(torch.zeros(1, 3, 28, 28))


def test_the_transformer_cannot_be_stacked_and_says_which_module_stands_in_the_way() -> None:
    net = ViT(3, image_size=8, width=12, depth=1)
    assert not can_stack(net)
    assert obstacle(net) == "module 'blocks.0.norm1' is a LayerNorm, for which no stacked layer is known"
    with pytest.raises(CannotStack, match=r"cannot stack: module 'blocks\.0\.norm1' is a LayerNorm"):
        stack([net, net])
