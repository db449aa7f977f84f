"""The convolution of each run as one operator: values, gradients, and what a compiler is told about it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aol.lab.nets.conv_by_run import _forward, conv_by_run
from tests.support.small_nets import generator

CASES = [((1, 1), (1, 1), (1, 1), 1), ((2, 1), (0, 2), (1, 2), 2)]


def tensors() -> tuple[Tensor, Tensor]:
    x = torch.randn((3, 2, 4, 8, 7), generator=generator(0), dtype=torch.float64, requires_grad=True)
    return x, torch.randn((3, 6, 4, 3, 2), generator=generator(1), dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("case", CASES)
def test_each_run_has_its_own_convolution(case: tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]) -> None:
    x, weight = tensors()
    weight = weight[:, :, : 4 // case[-1]].detach().requires_grad_()
    y = conv_by_run(x, weight, *case)
    wanted = torch.stack([F.conv2d(x[run], weight[run], None, *case) for run in range(3)])
    torch.testing.assert_close(y, wanted)
    assert y.movedim(2, -1).is_contiguous()  # channels last
    grad = torch.randn(wanted.shape, generator=generator(2), dtype=torch.float64)
    for needed in ((x, weight), (weight,)):
        ours, theirs = (torch.autograd.grad(each, needed, grad, retain_graph=True) for each in (y, wanted))
        torch.testing.assert_close(ours, theirs)


def test_images_need_no_gradient() -> None:
    x, weight = tensors()
    y = conv_by_run(x.detach(), weight, *CASES[0])
    assert torch.autograd.grad(y.sum(), weight)[0].shape == weight.shape


@pytest.mark.parametrize("needed", [True, False])
def test_a_compiler_knows_its_results(needed: bool) -> None:
    x, weight = tensors()
    torch.library.opcheck(_forward, (x.detach().requires_grad_(needed), weight, [1, 1], [1, 1], [1, 1], 1))
