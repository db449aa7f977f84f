"""Whole stages in one kernel, on a real GPU, beside evaluation with a kernel a convolution: run by `make test-gpu`."""

from __future__ import annotations

import copy

import pytest
import torch

from aol.lab.nets.fused import FusedStack, blocks, stage
from tests.support.fused_nets import error, images, stacked, twins
from tests.support.fused_stages import StageCase, halved

pytestmark = pytest.mark.skipif(not stage.usable(), reason="no NVRTC, or a GPU older than 8.0")


@torch.no_grad()
def both(fused: FusedStack, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with a kernel a convolution, and a kernel a stage."""
    found = []
    for on in (False, True):
        monkeypatch.setattr(blocks, "enabled", on)
        found.append(fused(x))
    return found[0], found[1]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Channels of the stages that went through the kernel: without it, these tests would compare a thing to itself."""
    seen: list[int] = []
    inside = blocks.forward

    def counted(x: torch.Tensor, convolutions: list[blocks.Convolution], *rest: object, **more: object) -> object:
        seen.append(convolutions[-1][0].shape[1])
        return inside(x, convolutions, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(blocks, "forward", counted)
    return seen


@pytest.mark.parametrize(("channels", "runs", "batch"), [(16, 70, 37), (32, 1, 1), (32, 70, 37), (64, 3, 131)])
def test_a_stage_in_one_kernel_does_what_its_convolutions_do(channels: int, runs: int, batch: int) -> None:
    case = StageCase.random(channels, runs, batch, count=5)
    (found, half), (wanted, end) = case.together(), case.apart()
    assert error(found, wanted) < 5e-3
    if end is not None:
        assert half is not None
        assert error(half, halved(end)) < 5e-3


@pytest.mark.parametrize(("runs", "batch"), [(1, 37), (64, 9)])
def test_networks_evaluate_as_with_a_kernel_a_convolution(
    runs: int, batch: int, launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, oracle = twins(stacked(runs, (5, 5, 5)).cuda().eval(), torch.bfloat16)
    x = images(runs, batch, 32).cuda()
    apart, together = both(fused, x, monkeypatch)
    assert launched == [16, 32, 64]
    with torch.no_grad():
        wanted = oracle(x.double())
    assert error(together, wanted) < 1.3 * error(apart, wanted) + 1e-3


def test_a_run_that_diverged_stays_alone(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    net = stacked(3, (2, 2, 2)).cuda().eval()
    x = images(3, 10, 32).cuda()
    _, before = both(FusedStack(copy.deepcopy(net)), x, monkeypatch)
    for value in net.parameters():
        value.data.view(3, -1)[1] = torch.nan
    _, found = both(FusedStack(net), x, monkeypatch)
    assert launched == 2 * [16, 32, 64]
    assert found[1].isnan().all()
    assert torch.equal(found[0], before[0])
    assert torch.equal(found[2], before[2])


def test_other_shapes_fall_back(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    fused, _ = twins(stacked(2, (2, 2, 2)).cuda().eval(), torch.bfloat16)
    apart, together = both(fused, images(2, 5, 16).cuda(), monkeypatch)
    assert launched == []
    assert torch.equal(apart, together)


def test_an_evaluation_can_be_captured_and_replayed(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    fused, _ = twins(stacked(2, (2, 2, 2)).cuda().eval(), torch.bfloat16)
    x = images(2, 16, 32).cuda()
    _, wanted = both(fused, x, monkeypatch)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = fused(x)
    graph.replay()
    assert launched == 2 * [16, 32, 64]
    assert torch.equal(captured, wanted)  # no atomics: the same sums in the same order
