"""Batch norm, shortcut and relu in one step: without a GPU that is PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aol.lab.nets.norm_relu import norm_relu


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_relu_of_the_norm_and_the_shortcut(training: bool, added: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, shortcut = torch.randn((2, 3, 16, 4, 4), generator=generator).to(dtype)
    norms = [nn.BatchNorm2d(16).train(training) for _ in range(2)]
    y = norms[0](x)
    ours = norm_relu(norms[1], x, shortcut if added else None)
    assert torch.equal(ours, F.relu(y + shortcut if added else y))
    assert torch.equal(norms[0].running_mean, norms[1].running_mean)
    assert norms[1].num_batches_tracked == training


def test_its_arguments_keep_their_values_and_get_their_gradients() -> None:
    given = torch.randn((2, 3, 16, 4, 4), generator=torch.Generator().manual_seed(0))
    ours, plain = ([each.clone().requires_grad_() for each in given] for _ in range(2))
    norm_relu(nn.BatchNorm2d(16), *ours).square().sum().backward()
    F.relu(nn.BatchNorm2d(16)(plain[0]) + plain[1]).square().sum().backward()
    for one, other, value in zip(ours, plain, given, strict=True):
        assert torch.equal(one, value)
        assert torch.equal(one.grad, other.grad)
