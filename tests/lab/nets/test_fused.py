"""What the kernels accept and why not: needs neither Triton nor a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from aol.lab.nets.cnn import CNN
from aol.lab.nets.fused import CannotFuse, FusedStack, obstacle
from aol.lab.nets.fused.plan import plan
from aol.lab.nets.layers import Network
from aol.lab.nets.registry import make
from aol.lab.nets.resnet import resnet32, resnet34_cifar
from aol.lab.nets.stacked import Stacked


def test_importing_it_needs_no_triton() -> None:
    assert all(sys.modules[name].__file__ for name in ("aol.lab.nets.fused", "aol.lab.nets.fused.plan"))


def test_resnet32_is_read_as_a_stem_and_fifteen_blocks() -> None:
    found = plan(Stacked([make("resnet32", num_classes=10, seed=seed) for seed in range(2)]))
    assert (found.runs, len(found.blocks), len(found.units), found.halvings) == (2, 15, 31, 2)
    assert len(found.parameters()) == 3 * 31


def test_a_cnn_is_read_as_a_stem_and_two_units_without_shortcut() -> None:
    found = plan(Stacked([make("cnn", num_classes=10, seed=seed) for seed in range(2)]))
    assert (found.runs, [len(block) for block in found.blocks], found.halvings) == (2, [1, 1], 2)
    assert [unit.conv.out_channels for unit in found.units] == [16, 32, 64]


class _Other(CNN):
    """A CNN whose forward pass may be another."""

    channelwise_entry = "conv1"


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Linear(2, 2), "not a stack"),
        (Stacked([_Other(2)]), "nor of small CNNs"),
        (Stacked([CNN(2, width=32)]), "conv3 has 128 channels"),
        (Stacked([CNN(2, 8)]), "more than 7 channels"),
        (Stacked([resnet34_cifar(2, blocks=(1, 1), width=16)]), "shortcut with parameters"),
        (Stacked([resnet32(2, blocks=(1,), width=8)]), "has 8 channels"),
        (Stacked([resnet32(2, 9, blocks=(1,))]), "more than 7 channels"),
    ],
)
def test_a_network_the_kernels_do_not_know_is_refused_with_a_reason(net: nn.Module, reason: str) -> None:
    assert reason in (obstacle(net) or "")
    if isinstance(net, Stacked):
        with pytest.raises(CannotFuse, match=reason):
            FusedStack(net)


@pytest.mark.parametrize(("size", "refused"), [((28, 28), False), ((8, 32), False), ((30, 28), True), ((28, 7), True)])
def test_sizes_that_do_not_halve_evenly_are_refused(size: tuple[int, int], refused: bool) -> None:
    net = Stacked([make("cnn", num_classes=2, seed=0)])
    assert ("multiples of 4" in (obstacle(net, size) or "")) == refused


@pytest.mark.parametrize("shape", [(3, 2, 3, 8, 8), (2, 2, 1, 8, 8), (2, 3, 8), (2, 2, 3, 6, 8)])
@pytest.mark.parametrize("make", [partial(resnet32, blocks=(1, 1, 1)), partial(CNN, in_channels=3)])
def test_images_of_a_wrong_shape_are_refused(make: Callable[[int], Network], shape: tuple[int, ...]) -> None:
    fused = FusedStack(Stacked([make(2) for _ in range(2)]))
    with pytest.raises(ValueError, match="must be"):
        fused(torch.zeros(shape))
