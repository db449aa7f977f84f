"""Whole stages in one kernel, on a real GPU, beside the evaluation that takes a kernel a convolution: `make test-gpu`."""

from __future__ import annotations

import copy

import pytest
import torch

from aol.nets.fused import FusedStack, blocks, stage
from fused_nets import error, images, stacked, twins

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

    def counted(x: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(x.shape[4])
        return inside(x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(blocks, "forward", counted)
    return seen


@pytest.mark.parametrize("channels", [16, 32, 64])
@pytest.mark.parametrize(("runs", "batch"), [(1, 1), (1, 5), (3, 131), (70, 37)])
def test_a_stage_in_one_kernel_does_what_its_convolutions_do(channels: int, runs: int, batch: int) -> None:
    side, doubled = stage.SIDES[channels], channels > 16

    def maps(c: int, s: int) -> torch.Tensor:
        return torch.randn((runs, batch, s, s, c), device="cuda").relu().to(torch.bfloat16)

    x, shortcut = maps(channels, side), maps(channels // 2, 2 * side) if doubled else None
    count = 5 if doubled else 4
    weights = [
        torch.randn((runs * channels, channels, 3, 3), device="cuda") / (3 * channels**0.5) for _ in range(count)
    ]
    tables = [torch.rand((4, runs * channels), device="cuda") + 0.2 for _ in range(count)]
    found = blocks.forward(x, weights, tables, shortcut)
    ahead = [stage.pack(weight, runs)[0] for weight in weights]
    first = 0
    if doubled:
        x, first = stage.forward(x, ahead[0], table=tables[0], shortcut=shortcut)[0], 1
    for number in range(first, count, 2):
        inner, _ = stage.forward(x, ahead[number], table=tables[number])
        x, _ = stage.forward(inner, ahead[number + 1], table=tables[number + 1], shortcut=x)
    assert error(found, x) < 5e-3


@pytest.mark.parametrize(("runs", "batch"), [(1, 37), (3, 128), (64, 9)])
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
