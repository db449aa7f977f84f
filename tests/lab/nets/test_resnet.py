from __future__ import annotations

import torch

from aol.lab.nets.resnet import BasicBlock, resnet34, resnet50


def test_resnet34_has_the_standard_stages() -> None:
    net = resnet34(1000)
    shapes = [(len(stage), stage[0].conv1.out_channels, stage[0].conv1.stride[0]) for stage in net.stages]
    assert shapes == [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)]
    assert sum(isinstance(module, torch.nn.Conv2d) for module in net.modules()) == 33 + 3


def test_resnet50_has_the_standard_stages_with_the_stride_in_the_middle() -> None:
    net = resnet50(1000)
    shapes = [(len(stage), stage[0].conv3.out_channels, stage[0].conv2.stride[0]) for stage in net.stages]
    assert shapes == [(3, 256, 1), (4, 512, 2), (6, 1024, 2), (3, 2048, 2)]
    assert sum(isinstance(module, torch.nn.Conv2d) for module in net.modules()) == 49 + 4


def test_the_map_before_the_mean_is_a_32nd_of_the_image() -> None:
    net = resnet34(10, blocks=(1, 1, 1, 1), width=4).eval()
    assert net.stages(net.stem(torch.zeros(1, 3, 224, 224))).shape == (1, 32, 7, 7)


def test_a_block_activates_after_the_sum() -> None:
    block = BasicBlock(4, 4, 1, torch.nn.Identity()).eval()
    torch.nn.init.zeros_(block.norm2.weight)
    x = torch.linspace(-1, 1, 64).view(1, 4, 4, 4)
    assert torch.equal(block(x), x.clamp(min=0))
