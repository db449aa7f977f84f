"""Windows of a map as rows of a matrix: products of them are convolutions, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aol.lab.nets.columns import Windows, columns
from tests.support.small_nets import generator

CASES = [
    Windows((3, 3), (1, 1), (1, 1)),
    Windows((3, 3), (2, 2), (1, 1)),
    Windows((7, 7), (2, 2), (3, 3)),
    Windows((1, 1), (2, 2)),
    Windows((2, 2), (2, 2)),
    Windows((2, 3), (3, 2), (0, 2)),
    Windows((2, 2), (3, 3)),  # leaves pixels out
]


@pytest.mark.parametrize("windows", CASES)
@pytest.mark.parametrize("size", [(7, 7), (8, 6)])
def test_their_product_with_kernels_is_a_convolution(windows: Windows, size: tuple[int, int]) -> None:
    x = torch.randn((5, 3, *size), generator=generator(0), dtype=torch.float64, requires_grad=True)
    kernels = torch.randn((4, 3, *windows.kernel), generator=generator(1), dtype=torch.float64, requires_grad=True)
    rows = columns(x, windows)
    y = (rows @ kernels.permute(2, 3, 1, 0).flatten(0, 2)).movedim(-1, 1)
    wanted = F.conv2d(x, kernels, None, windows.stride, windows.padding)
    torch.testing.assert_close(y, wanted)
    assert windows.places(x.shape) == wanted.shape[-2:]
    assert windows.size(x.shape) == rows.numel()
    grad = torch.randn(wanted.shape, generator=generator(2), dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(y, (x, kernels), grad), torch.autograd.grad(wanted, (x, kernels), grad), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_maps_may_have_more_axes() -> None:
    x = torch.randn((2, 5, 3, 8, 8), generator=generator(0))
    windows = CASES[1]
    assert torch.equal(columns(x, windows)[1], columns(x[1], windows))
