from __future__ import annotations

import torch
from torch import nn

from aol.lab.nets.layers import HalvingShortcut
from aol.lab.nets.resnet import BasicBlock, resnet32, resnet34, resnet34_cifar


def test_resnet34_has_the_standard_stages() -> None:
    net = resnet34(1000)
    shapes = [(len(stage), stage[0].conv1.out_channels, stage[0].conv1.stride[0]) for stage in net.stages]
    assert shapes == [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)]
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == 33 + 3


def test_the_map_before_the_mean_is_a_32nd_of_the_image() -> None:
    net = resnet34(10, blocks=(1, 1, 1, 1), width=4).eval()
    assert net.stages(net.stem(torch.zeros(1, 3, 224, 224))).shape == (1, 32, 7, 7)


def test_a_block_activates_after_the_sum() -> None:
    block = BasicBlock(4, 4, 1, nn.Identity()).eval()
    nn.init.zeros_(block.norm2.weight)
    x = torch.linspace(-1, 1, 64).view(1, 4, 4, 4)
    assert torch.equal(block(x), x.clamp(min=0))


def test_resnet32_is_the_one_of_the_protocol() -> None:
    net = resnet32(10)
    assert [(len(stage), stage[0].conv1.out_channels) for stage in net.stages] == [(5, 16), (5, 32), (5, 64)]
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == 31
    assert sum(isinstance(module, HalvingShortcut) for module in net.modules()) == 2
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.1, 1e-5)}
    assert all((norm.weight == 1).all() for norm in norms)


def test_resnet32_keeps_full_size_until_the_second_stage() -> None:
    net = resnet32(10, blocks=(1, 1, 1)).eval()
    x = net.stem(torch.zeros(1, 3, 32, 32))
    sizes = [tuple((x := stage(x)).shape[1:]) for stage in net.stages]
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_cifar_resnet34_has_a_small_stem_and_begins_with_its_blocks_as_shortcuts() -> None:
    net = resnet34_cifar(5, width=8)
    blocks = [module for module in net.modules() if isinstance(module, BasicBlock)]
    assert len(blocks) == 16
    assert all((block.norm2.weight == 0).all() and (block.norm1.weight == 1).all() for block in blocks)
    assert (net.stem[0].kernel_size, net.stem[0].stride) == ((3, 3), (1, 1))
    assert not any(isinstance(module, nn.MaxPool2d) for module in net.modules())
    assert net(torch.zeros(2, 3, 27, 27)).shape == (2, 5)  # of any size
