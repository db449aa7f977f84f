"""Evaluation of whole networks by stages: the kernels run thread by thread, all around them as on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from aol.nets.fused import blocks, network, nvrtc, stage
from aol.nets.fused.plan import plan
from emulated import call, compiled
from fused_nets import cuts, error, images, stacked, twins

H200 = 232_448  # bytes of shared memory that a block may have


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[blocks.Way]:
    """Put the emulation in the place of a GPU; lists the kernels of stages that were launched."""
    seen: list[blocks.Way] = []

    def packing(device: int, shape: stage.Shape, words: tuple[str, ...]) -> object:
        assert words == ("PACK",)
        library = compiled(tmp_path, shape, words)
        return lambda grid, *arguments: call(library.run_pack, *arguments, grid[1])

    def staging(device: int, shape: stage.Shape, way: blocks.Way, steps: int) -> object:
        seen.append(way)
        library = compiled(tmp_path, shape, (*way.words, "PACK"))
        bytes_ = blocks.shared_bytes(shape, steps)
        return lambda grid, *arguments: call(library.run_blocks, *arguments, grid[0], bytes_)

    def fits(x: Tensor, channels: int, stride: int = 1) -> bool:
        return stride == 1 and x.shape[4] == channels and x.shape[2] == x.shape[3] == stage.SIDES.get(channels)

    monkeypatch.setattr(blocks, "enabled", True)
    monkeypatch.setattr(stage, "_kernel", packing)
    monkeypatch.setattr(blocks, "_kernel", staging)
    monkeypatch.setattr(stage, "fits", fits)
    monkeypatch.setattr(nvrtc, "most_shared_bytes", lambda device: H200)
    return seen


@pytest.mark.parametrize("halves", [True, False])
def test_a_network_evaluates_by_stages_as_in_plain_pytorch(
    halves: bool, launched: list[blocks.Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "halves", halves)
    net = stacked(2, (2, 1, 2)).eval()
    fused, oracle = twins(net, torch.bfloat16)
    x = images(2, 3, 32)
    with torch.no_grad(), cuts(128):
        found, wanted = fused(x), oracle(x.double())
    assert launched == [blocks.Way(0, False, halves), blocks.Way(8, halves, halves), blocks.Way(16, halves)]
    assert error(found, wanted) < 0.02


def test_what_does_not_fit_is_done_convolution_by_convolution(
    launched: list[blocks.Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less shared memory the last stage does not fit, so the stage before it must not reach into it."""
    monkeypatch.setattr(nvrtc, "most_shared_bytes", lambda device: 90_000)
    monkeypatch.setattr(stage, "forward", lambda *_, **__: pytest.fail("no kernel of this size was asked for"))
    net = stacked(1, (1, 1, 1)).eval()
    fused, oracle = twins(net, torch.bfloat16)
    x = images(1, 1, 32)
    only = stage.fits
    monkeypatch.setattr(stage, "fits", lambda y, channels, stride=1: channels < 64 and only(y, channels, stride))
    with torch.no_grad(), cuts(128):
        found = fused(x)
    assert launched == [blocks.Way(0, False, True), blocks.Way(8, True, False)]
    assert error(found, oracle(x.double())) < 0.02


def test_without_a_gpu_the_switch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not blocks.enabled, "off until a measurement says otherwise"
    net = stacked(1, (1, 1)).eval()
    x = images(1, 2, 8)
    with torch.no_grad(), cuts(64):
        before = network.evaluate(plan(net), x, torch.bfloat16)
        monkeypatch.setattr(blocks, "enabled", True)
        blocks.prepare()
        assert torch.equal(network.evaluate(plan(net), x, torch.bfloat16), before)
