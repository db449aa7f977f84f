from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aol.lab.nets.layers import HalvingShortcut, half_mean
from tests.support.small_nets import generator


def random_map(*shape: int, channels_last: bool, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.randn(shape, generator=generator(), dtype=torch.float64).to(dtype)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return x.contiguous(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_half_mean_is_average_pooling_bit_for_bit(dtype: torch.dtype, channels_last: bool) -> None:
    x = random_map(3, 5, 6, 8, channels_last=channels_last, dtype=dtype)
    ours, theirs = half_mean(x), F.avg_pool2d(x, 2)
    grad = torch.randn(ours.shape, generator=generator(1)).to(ours)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(out, x, grad)[0] for out in (ours, theirs)))


def test_the_half_mean_has_a_right_gradient_twice() -> None:
    x = random_map(1, 2, 4, 2, channels_last=False)
    assert torch.autograd.gradcheck(half_mean, x)
    assert torch.autograd.gradgradcheck(half_mean, x)


@pytest.mark.parametrize("channels_last", [False, True])
@settings(max_examples=15, deadline=None)
@given(runs=st.integers(1, 4), channels=st.integers(1, 4), side=st.integers(0, 3))
def test_each_run_is_padded_by_itself(channels_last: bool, runs: int, channels: int, side: int) -> None:
    x = random_map(2, runs * channels, 4, 6, channels_last=channels_last)
    alone = [F.pad(F.avg_pool2d(part, 2), (0, 0, 0, 0, side, side)) for part in x.chunk(runs, 1)]
    assert torch.equal(HalvingShortcut(2 * side, runs)(x), torch.cat(alone, 1))


@pytest.mark.parametrize("runs", [1, 3])
def test_the_shortcut_keeps_the_channels_last_layout_both_ways(runs: int) -> None:
    x = random_map(2, runs * 4, 4, 6, channels_last=True)
    out = HalvingShortcut(4, runs)(x)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert grad.is_contiguous(memory_format=torch.channels_last)


def test_an_odd_size_is_refused_with_the_size() -> None:
    with pytest.raises(ValueError, match="needs an even height and width, got 7×8"):
        HalvingShortcut(4)(torch.zeros(1, 4, 7, 8))
