"""Evaluation of whole networks by stages: the kernels run thread by thread, all around them as on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aol.lab.nets.fused import blocks, network, stage
from aol.lab.nets.fused.plan import plan
from tests.support.emulated import call, compiled
from tests.support.fused_nets import cuts, error, images, stacked, twins
from tests.support.fused_stages import StageCase

H200 = 232_448  # bytes of shared memory that a block may have


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[blocks.Way]:
    """Put the emulation in the place of a GPU; lists the kernels of stages that were launched."""
    seen: list[blocks.Way] = []

    def convolving(device: int, shape: stage.Shape, words: tuple[str, ...]) -> object:
        if words == ("PACK",):
            library = compiled(tmp_path, shape, words)
            return lambda grid, *arguments: call(library.run_pack, *arguments, grid[1])
        library = compiled(tmp_path, shape, (*words, "PACK"))
        return lambda grid, *arguments: call(library.run_forward, *arguments, grid[0], shape.forward_bytes)

    def staging(device: int, shape: stage.Shape, way: blocks.Way, steps: int) -> object:
        seen.append(way)
        library = compiled(tmp_path, shape, (*way.words, "PACK"))
        bytes_ = blocks.shared_bytes(shape, steps)
        return lambda grid, *arguments: call(library.run_blocks, *arguments, grid[0], bytes_)

    monkeypatch.setattr(stage, "_kernel", convolving)
    monkeypatch.setattr(blocks, "_kernel", staging)
    monkeypatch.setattr(blocks, "fits", lambda own, x, _: blocks._can_follow(own, own.runs * x.shape[-4], H200))
    return seen


@pytest.mark.parametrize("channels", [32, 64])
def test_a_stage_gives_what_a_kernel_a_convolution_gives(channels: int, launched: list[blocks.Way]) -> None:
    """Where nothing is left to Triton's interpreter, which cuts off what bf16 cannot hold instead of rounding it."""
    case = StageCase.random(channels, runs=2, batch=3, count=5, device="cpu")
    case.behind = None
    found, wanted = case.together()[0], case.apart()[0]
    assert len(launched) == 1
    assert error(found, wanted) < 2e-3  # sums in another order, which bf16 rounds to a neighbour now and then
    assert float((found == wanted).double().mean()) > 0.95


@pytest.mark.parametrize("shared", [False, True])
def test_a_network_evaluates_by_stages_as_in_plain_pytorch(shared: bool, launched: list[blocks.Way]) -> None:
    fused, oracle = twins(stacked(2, (2, 1, 2)).eval(), torch.bfloat16)
    x = images(2, 3, 32)[0] if shared else images(2, 3, 32)
    with torch.no_grad():
        found, wanted = fused(x), oracle(x.double())
    assert launched == [blocks.Way(3, True), blocks.Way(0, True), blocks.Way(0, False)]
    assert error(found, wanted) < 0.02


def test_a_network_may_end_after_any_stage(launched: list[blocks.Way]) -> None:
    fused, oracle = twins(stacked(1, (1,), channels=1).eval(), torch.bfloat16)
    x = images(1, 1, 32, channels=1)
    with torch.no_grad():
        assert error(fused(x), oracle(x.double())) < 0.02
    assert launched == [blocks.Way(1, False)]


def test_what_has_no_room_is_left_to_the_other_kernels() -> None:
    whole = plan(stacked(1, (5, 5, 5)))
    assert blocks._can_follow(whole, 64 * 512, H200)
    assert not blocks._can_follow(whole, 64 * 512, 163 * 1024)  # an A100


def test_without_a_gpu_the_switch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "enabled", False)
    net = stacked(1, (1, 1)).eval()
    x = images(1, 2, 8)
    with torch.no_grad(), cuts(64):
        before = network.evaluate(plan(net), x, torch.bfloat16)
        monkeypatch.setattr(blocks, "enabled", True)
        blocks.prepare()
        assert torch.equal(network.evaluate(plan(net), x, torch.bfloat16), before)
